"""Table of what rounding activations costs: a decoder of a `.gguf` file after some steps of LoRA in each form.

    .venv/bin/python -m scripts.bench.decoders.rounded_activations .models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf

`frozen="int4"`, `frozen="int4-dynamic"`, and PyTorch in float32 with the numbers that these integers stand for: the
same rows of the project's documentation, first adapters and optimizer (LoRA of rank 8 on all products, Adam, one row a
step). Perplexity is that of a page that none is trained on, before and behind. Each form is a process of its own on
one CPU, and time the CPU's, as others may be at work. `--form` measures one, and `--folder` keeps what was found.
Memory is that of a session that evaluates, too, which packs once more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.arguments import existing
from scripts.bench.decoders.lora import environment, resident

RANK, RATE = 8, 2e-4
#: The page that is held out; all others of docs/ are trained on.
HELD_OUT, FOLDER = "architecture.md", Path(__file__).resolve().parents[3] / "docs"
FORMS = ("int4", "int4-dynamic", "pytorch")
#: Loss of rows, and loss of a step.
Trainer = tuple[Callable[[np.ndarray], float], Callable[[np.ndarray], float]]


def main() -> None:
    """Print one JSON object: what was measured of each form, and the ratios to the exact one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=existing)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--held-out", type=int, default=24, help="rows that are not trained on")
    parser.add_argument("--blocks", choices=("on", "off"), default="on")
    parser.add_argument("--folder", type=Path, help="where programs and results are kept; a temporary one without it")
    parser.add_argument("--form", choices=FORMS)
    args = parser.parse_args()
    if args.form:
        print(json.dumps(measured(args)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        args.folder = args.folder or Path(temporary)
        found = {form: _apart(args, form) for form in FORMS}
    for form in FORMS[1:]:
        found[form] |= {f"{what} over int4": found[form][what] / found["int4"][what] for what in ("after", "seconds")}
    print(json.dumps(found, indent=1))


def _apart(args: argparse.Namespace, form: str) -> dict[str, Any]:
    """Return what a process of its own measures of a form; it is not run again where the folder has it."""
    kept: Path = args.folder / f"{form}.json"
    if not kept.exists():
        numbers = ["--steps", args.steps, "--tokens", args.tokens, "--held-out", args.held_out, "--blocks", args.blocks]
        module = "scripts.bench.decoders.rounded_activations"
        command = [sys.executable, "-m", module, args.model, "--form", form, *numbers]
        command += ["--folder", args.folder]
        done = subprocess.run(list(map(str, command)), env=environment(), stdout=subprocess.PIPE, text=True, check=True)
        kept.write_text(done.stdout.splitlines()[-1])
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def texts(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return ids of the rows that are trained on and of those held out, [rows, tokens + 1]."""
    from converter.frontends.decoder import Tokenizer

    tokenizer = Tokenizer(args.model)
    pages = [page for page in sorted(FOLDER.glob("*.md")) if page.name != HELD_OUT]
    read = "\n".join(page.read_text() for page in pages), (FOLDER / HELD_OUT).read_text()
    train, held_out = (np.array(tokenizer.encode(text), np.int32) for text in read)
    width = args.tokens + 1
    begins = np.random.default_rng(0).integers(0, len(train) - width, args.steps)
    rows = np.stack([train[begin : begin + width] for begin in begins])
    return rows, held_out[: args.held_out * width].reshape(-1, width)


def measured(args: argparse.Namespace) -> dict[str, float]:
    """Return perplexities before and behind, CPU seconds of a step, and memory of a step in MB."""
    rows, held_out = texts(args)
    file = _built(args) if args.form != "pytorch" else args.folder / "int4.tflite"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    before, seconds = resident("RssAnon"), []
    loss, step = _torch(args, file) if args.form == "pytorch" else _program(file)
    found: dict[str, float] = {"before": math.exp(loss(held_out))}
    for row in rows:
        begin = time.process_time()
        last = step(row[None])
        seconds.append(time.process_time() - begin)
    memory = {"anonymous": resident("RssAnon"), "of the process": before, "file": resident("RssFile")}
    return found | {"after": math.exp(loss(held_out)), "last loss": last, "seconds": float(np.median(seconds))} | memory


def _built(args: argparse.Namespace) -> Path:
    """Return the program of a form, which is built in a process of its own where there is none yet."""
    file: Path = args.folder / f"{args.form}.tflite"
    if not file.exists() and not (child := os.fork()):
        import optax

        import converter
        from converter.frontends import decoder as decoder_frontend

        model = decoder_frontend.Model(args.model, length=args.tokens)
        update = {"*_proj.weight": converter.LoRA(RANK, alpha=2 * RANK)}
        options: dict[str, Any] = {"blocks": args.blocks, "signatures": ("train", "evaluate"), "check": False}
        options |= {"update": update, "optimizer": optax.adam(RATE), "target": "litert-2/x86-64", "frozen": args.form}
        converter.build(model, batch=1, **options).write(file)
        os._exit(0)
    elif not file.exists():
        os.waitpid(child, 0)
    return file


def _program(file: Path) -> Trainer:
    from converter.runtime import TrainingSession

    session = TrainingSession(file)

    def loss(rows: np.ndarray) -> float:
        return float(session.evaluate(rows[:, :-1], rows[:, 1:])["loss"])

    return loss, lambda rows: float(session.train(rows[:, :-1], rows[:, 1:], RATE))


def _torch(args: argparse.Namespace, file: Path) -> Trainer:
    """Return PyTorch's side, whose adapters begin as those of the program."""
    from converter.frontends.decoder import Model
    from converter.runtime import TrainingSession
    from scripts.bench.decoders.rounded_activations_torch import trainer

    with TrainingSession(file) as session:
        adapters = session.parameters()
    return trainer(Model(args.model, length=args.tokens), adapters, RATE)


if __name__ == "__main__":
    main()
