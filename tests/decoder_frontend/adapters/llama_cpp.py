"""Random decoders with adapters as llama.cpp computes them, by the package node-llama-cpp.

`python -m tests.decoder_frontend.adapters.llama_cpp compare 24 3` draws 24 nets from seed 3, teaches each a program
with LoRA, and compares it with llama.cpp, which has the net and the adapter that the program wrote; `... record`
writes what the default suite compares with. Both need transformers, node, and in `NODE_LLAMA_CPP` a folder whose
`node_modules` has the package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pocketune
from tests.decoder_frontend import converted, nets
from tests.decoder_frontend.oracle import cases, shapes

RECORDED = Path(__file__).parents[1] / "recorded" / "llama_cpp.npz"
#: Letters that spell nothing.
WORDS = [chr(33 + number) for number in range(nets.VOCABULARY - 4)] + ['!"', "<a>", "<b>", "<c>"]
IDS = np.random.default_rng(7).integers(0, nets.VOCABULARY, (1, 20)).astype(np.int32)
#: Positions that are compared.
SHOWN = slice(4, None, 5)


def there(requests: Sequence[tuple[Path, Path | None]]) -> list[np.ndarray | str]:
    """Return log probabilities [tokens, vocabulary] of models with adapters, or what llama.cpp refuses."""
    lines = [
        json.dumps({"model": str(model), "adapter": None if adapter is None else str(adapter), "ids": IDS[0].tolist()})
        for model, adapter in requests
    ]
    script = Path(__file__).with_suffix(".mjs")
    done = subprocess.run(
        ["node", script, os.environ["NODE_LLAMA_CPP"]],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(requests), done.stderr
    return [one["error"] if isinstance(one, dict) else np.array(one, np.float64) for one in answers]


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Return log probabilities of logits [..., vocabulary], float64."""
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def built(model: Path, folder: Path, rules: Mapping[str, Sequence[float]]) -> Path:
    """Build a program of a model with adapters of ranks and alphas, and return its file."""
    program = pocketune.build(
        model,
        length=IDS.shape[1],
        update={name: pocketune.LoRA(int(rank), alpha) for name, (rank, alpha) in rules.items()},
        optimizer="sgd",
        batch=1,
        signatures=("train", "infer"),
        check=False,
    )
    return program.write(folder / "net.tflite")


def taught(program: Path, adapter: Path) -> tuple[np.ndarray, np.ndarray]:
    """Teach a program, write its adapter, and return log probabilities before and after."""
    state = adapter.with_suffix(".state")
    with pocketune.TrainingSession(program) as session:
        before = session.infer(IDS)[0]
        for _ in range(3):
            session.train(IDS, np.roll(IDS, -1, 1), 0.2)
        session.save(state)
        after = session.infer(IDS)[0]
    pocketune.runtime.export_adapter(program, adapter, state)
    return log_probabilities(before), log_probabilities(after)


def rules_of(rng: np.random.Generator, own: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
    """Return random rules: some products, of several ranks and alphas."""
    parts = sorted({name.rpartition("layers.")[2].partition(".")[2] for name in own if name.endswith("_proj.weight")})
    chosen = rng.choice(parts, rng.integers(1, len(parts) + 1), replace=False)
    return {f"*{part}": (int(rng.choice([1, 2, 4])), float(rng.choice([1, 4, 5, 0.7]))) for part in chosen}


def write_source(config: Mapping[str, Any], own: Mapping[str, Any], folder: Path, is_file: bool) -> Path:
    """Write a net as a `.gguf` file or a folder of transformers, and return its path."""
    arrays = nets.weights(dict(config), dict(own))
    if is_file:
        converted.write(folder / "net.gguf", config, arrays, words=WORDS)
        return folder / "net.gguf"
    nets.write_folder(folder / "net", dict(config), arrays)
    return folder / "net"


@dataclass(frozen=True)
class Case:
    """A net with an adapter, and what they give.

    Attributes:
        config: of the net.
        shapes: of its parameters.
        is_file: whether the program was built from a `.gguf` file.
        rules: of the adapters, rank and alpha.
        adapter: the file that the program wrote.
        here: log probabilities of the program, without the adapter and with it.
        there: those of llama.cpp, or what it refuses.
    """

    config: dict[str, Any]
    shapes: dict[str, Any]
    is_file: bool
    rules: dict[str, tuple[int, float]]
    adapter: bytes
    here: tuple[np.ndarray, np.ndarray]
    there: tuple[np.ndarray | str, np.ndarray | str]

    @property
    def said(self) -> str:
        """How it compares."""
        for one in self.there:
            if isinstance(one, str):
                return f"refused there: {one}"
        # Gemma's activation is read from a table in float16 there.
        near = 5e-3 if self.config["model_type"].startswith("gemma") else 5e-5
        base, adapted = (float(np.abs(a - b).max()) for a, b in zip(self.here, self.there, strict=True))
        said = f"{base:.1e} without, {adapted:.1e} with, of {np.abs(self.here[1] - self.here[0]).max():.1e} learned"
        if not base < near:
            return f"other base: {said}"
        return f"right: {said}" if adapted < near else f"wrong: {said}"


def drawn(count: int, seed: int, first: int = 0) -> Iterator[Case]:
    """Yield random nets from one on that GGUF has, in turns as files and folders."""
    for number, _, config in cases(count, seed):
        if number < first or converted.cannot(config):
            continue
        with tempfile.TemporaryDirectory() as place:
            folder, own, is_file = Path(place), shapes(config), bool(number // len(nets.MODEL_TYPES) % 2)
            rules = rules_of(np.random.default_rng([seed, number]), own)
            program = built(write_source(config, own, folder, is_file), folder, rules)
            adapter = folder / "adapter.gguf"
            here = taught(program, adapter)
            base = write_source(config, own, folder, True)
            said = there([(base, None), (base, adapter)])
            yield Case(config, own, is_file, rules, adapter.read_bytes(), here, (said[0], said[1]))


def compare(count: int, seed: int) -> int:
    """Compare random nets, and return how many adapters were wrong where the bases agree."""
    became = Counter[str]()
    for case in drawn(count, seed):
        what = case.said.partition(":")[0]
        became[what] += 1
        print(case.config["model_type"], case.said, "" if what == "right" else json.dumps(case.config), flush=True)
    print(f"{count} nets from seed {seed}: {dict(became)}", flush=True)
    return became["wrong"]


def record() -> None:
    """Write the first net of each architecture that llama.cpp computes as we do, with the adapter."""
    arrays, told = dict[str, np.ndarray](), dict[str, Any]()
    for case in drawn(48, 3, 12):
        kind = case.config["model_type"]
        if kind not in told and case.said.startswith("right") and not kind.startswith("gemma"):
            told[kind] = {name: getattr(case, name) for name in ("config", "shapes", "is_file", "rules")}
            arrays[f"{kind}_adapter"] = np.frombuffer(case.adapter, np.uint8)
            assert isinstance(case.there[1], np.ndarray)
            arrays[kind] = case.there[1][SHOWN].astype(np.float32)
    np.savez_compressed(RECORDED, told=np.array(json.dumps(told)), **arrays)
    print(*told)


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(bool(compare(*(int(n) for n in sys.argv[2:]))))
    record()
