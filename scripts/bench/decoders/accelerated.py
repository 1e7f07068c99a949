"""A small decoder with LoRA on engines of accelerators, its frozen weights in each form that they read.

    .venv/bin/python -m scripts.bench.decoders.accelerated                  # some minutes of one core
    .venv/bin/python -m scripts.bench.decoders.accelerated --on gpu --width 512 --words 8192

Two layers, drawn weights, 32 tokens, LoRA of rank 8 on all products, Adam. Prints the tables of docs/accelerators.md:
the file, what the certificate says of three steps and of `infer`, and the most memory that a process of the engine had,
where SwiftShader's GPU has its own.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pocketune
from converter.support.errors import PocketuneError
from tests.decoder_frontend import written

ENGINES = ("gpu", "web", "hexagon:SM8650")
FORMS = ("float32", "float16", "int4-blockwise", "int4")
HEAD = "| `frozen` | on | file, MB | | loss error | update error | output error | process, MB |"


def main() -> None:
    """Print a line for each engine and form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", nargs="*", default=ENGINES)
    parser.add_argument("--frozen", nargs="*", default=FORMS)
    parser.add_argument("--width", type=int, default=128, help="twice as much in the feed-forward part")
    parser.add_argument("--words", type=int, default=96)
    args = parser.parse_args()
    print(f"{HEAD}\n|{'---|' * 8}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        entries = written.metadata("qwen2", embedding_length=args.width, feed_forward_length=2 * args.width)
        arrays = written.weights("qwen2", entries, rows=args.words, tied=True)
        sharp = ("q_proj.weight", "k_proj.weight")  # else float16 chooses the word that is attended to
        written.write(model, "qwen2", entries, {n: a / 3 if n.endswith(sharp) else a for n, a in arrays.items()})
        for on in args.on:
            for frozen in args.frozen:
                print(row(model, on, frozen), flush=True)


def row(model: Path, on: str, frozen: str) -> str:
    """Return a line of the table."""
    path, target = model.with_suffix(".tflite"), on.partition(":")[0]
    try:
        program = pocketune.build(
            model, length=32, batch=1, update="lora-8", frozen=frozen, optimizer="adam", target=target, check=False,
            signatures=("train", "infer"),
        )  # fmt: skip
        program.write(path)
        with most_memory() as most:
            said = pocketune.certify(path, on=on, steps=3)
    except PocketuneError as error:
        return f"| `{frozen}` | {on} | | {' '.join(str(error).splitlines()[0].split())} | | | | |"
    verdict = "certified" if said.ok else "; ".join(str(failure) for failure in said.failures[:2])
    errors = ["" if e is None else f"{e:.1e}" for e in (said.loss_error, said.update_error, said.output_error)]
    cells = (f"`{frozen}`", on, f"{path.stat().st_size / 1e6:.1f}", verdict, *errors, f"{max(most, default=0):.0f}")
    return f"| {' | '.join(cells)} |"


@contextmanager
def most_memory() -> Iterator[list[float]]:
    """Yield a list that gets the most memory that each process below this one had, in MB, as it is looked at."""
    found, over = list[float](), threading.Event()

    def below(pid: int) -> Iterator[int]:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from below(child)

    def look() -> None:
        while not over.wait(0.1):
            with suppress(OSError):  # it has ended meanwhile
                for pid in below(os.getpid()):
                    most = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                    found.extend([int(most[1]) / 1000] if most else [])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()


if __name__ == "__main__":
    main()
