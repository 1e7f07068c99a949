"""How far programs are from JAX in each runtime: model x scheme x optimizer x target x runtime.

    scripts/old_runtime                                   # for TensorFlow Lite 2.14 as well
    .venv/bin/python -m scripts.fidelity                  # the table of docs/fidelity.md, in a minute or two
    .venv/bin/python -m scripts.fidelity --model vit --scheme head --json

Without options it is a small set of models with two trainings for the phone of today, and one for each other target.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import converter
from converter.backend.targets import tables
from converter.backend.targets import target as target_of
from converter.program.file import read_program
from converter.program.parameters import parameters_of
from converter.support.errors import UnsupportedError
from scripts.arguments import writable
from scripts.fidelity.runtimes import PYTHONS, Call, run
from tests.models.test_training import BATCH, OPTIMIZERS, STEPS, deviation, expected, weights
from tests.models.zoo import CASES

MODELS = ("mlp", "lenet", "flax-cnn", "encoder", "llama")
TRAININGS = (("full", "adamw"), ("sparse", "sgd"))
FIRST = "litert-2"
#: Targets whose runtimes keep the weights: accelerators are certified instead.
CPUS = [name for name in tables() if target_of(name).keeps("variables")]
_TOP = f"""\
# Which programs train where, and how exactly

*For anyone who asks how exact a runtime or target is; 3 minutes.*

Made by `.venv/bin/python -m scripts.fidelity --document docs/fidelity.md`, which trains each program for {STEPS} steps
of {BATCH} rows in the stock interpreters, with XNNPACK and with their own kernels alone. A figure is the largest
deviation from `jax.value_and_grad` and optax on the same rows: of the loss of any step, relative to it, and of any
trained tensor after the last, relative to its largest number. Programs of all targets are tried in all runtimes.
"""


@dataclass(frozen=True)
class Row:
    """What became of one program: by runtime how far it is from JAX, or why there is nothing to compare."""

    model: str
    scheme: str
    optimizer: str
    target: str
    runtimes: dict[str, float | str]


def main() -> None:
    """Prints the table, or writes the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=CASES, help="repeat it for more")
    parser.add_argument("--scheme", action="append", help="of the update; full and sparse")
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS)
    parser.add_argument("--target", action="append", choices=CPUS)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--document", type=writable, help="write the table there as well")
    asked = parser.parse_args()
    found = list(rows(cases(asked.model or MODELS, asked.scheme, asked.optimizer, asked.target)))
    if asked.json:
        print(json.dumps({"batch": BATCH, "steps": STEPS, "rows": [asdict(row) for row in found]}, indent=2))
    else:
        print(table(found))
    if asked.document:
        asked.document.write_text(f"{_TOP}\n{table(found)}\n")


def cases(
    models: Iterable[str], schemes: list[str] | None, optimizers: list[str] | None, targets: list[str] | None
) -> Iterator[tuple[str, str, str, str]]:
    """Model, scheme, optimizer and target of each program; all pairs of what was asked for."""
    trainings = list(TRAININGS)
    if schemes or optimizers:
        trainings = [(s, o) for s in schemes or ("full", "sparse") for o in optimizers or OPTIMIZERS]
    for model in models:
        for training in trainings:
            others = [name for name in CPUS if name != FIRST] if training == trainings[0] else []
            for target in targets or [FIRST, *others]:
                yield (model, *training, target)


def rows(programs: Iterable[tuple[str, str, str, str]]) -> Iterator[Row]:
    """Builds each program and runs it in all runtimes that are here."""
    for model, scheme, optimizer, target in programs:
        case = CASES[model]
        try:
            data = converter.build(
                case.model(),
                loss=case.loss,
                optimizer=OPTIMIZERS[optimizer],
                update=case.update(scheme),
                batch=BATCH,
                target=target,
                check=False,
            ).data
        except UnsupportedError as error:
            yield Row(model, scheme, optimizer, target, {"all": f"refused: {error}"})
            continue
        calls = _calls(data, [case.batch(BATCH, i) for i in range(STEPS)], case.learning_rate[optimizer])
        results = {}
        for runtime in (name for name, python in PYTHONS.items() if python.exists()):
            (found,) = run(runtime, [(data, calls)])
            for kernels, outputs in zip(("XNNPACK", "own kernels"), found, strict=True):
                wanted = expected(model, scheme, optimizer)
                results[f"{runtime}, {kernels}"] = (
                    outputs if isinstance(outputs, str) else _apart(data, outputs, *wanted)
                )
        yield Row(model, scheme, optimizer, target, results)


def _calls(data: bytes, batches: list[tuple[np.ndarray, np.ndarray]], rate: float) -> list[Call]:
    feeds = [
        {"x": x, "y": y, "weight": weights(i), "learning_rate": np.float32([rate])} for i, (x, y) in enumerate(batches)
    ]
    return [*(("train", feed) for feed in feeds), ("save", {"tick": np.zeros(1, np.float32)})]


def _apart(
    data: bytes, outputs: list[dict[str, np.ndarray]], losses: list[float], parameters: dict[str, np.ndarray]
) -> float:
    *steps, state = outputs
    found = parameters_of(read_program(data), state)
    of_losses = [abs(step["loss"].item() - loss) / abs(loss) for step, loss in zip(steps, losses, strict=True)]
    of_tensors = [deviation(found[name], array) / float(np.abs(array).max()) for name, array in parameters.items()]
    return float(max(*of_losses, *of_tensors))


def table(found: list[Row]) -> str:
    """Return the rows as a table of Markdown."""
    columns = list(dict.fromkeys(name for row in found for name in row.runtimes if name != "all"))
    lines = [
        f"| model | scheme | optimizer | target | {' | '.join(columns)} |",
        f"|{'---|' * (4 + len(columns))}",
    ]
    for row in found:
        cells = [_shown(row.runtimes.get(name, row.runtimes.get("all", ""))) for name in columns]
        lines.append(f"| {row.model} | {row.scheme} | {row.optimizer} | `{row.target}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(result: Any) -> str:
    return " ".join(result.split()) if isinstance(result, str) else f"{result:.0e}"


if __name__ == "__main__":
    main()
