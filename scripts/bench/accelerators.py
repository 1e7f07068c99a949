"""What runs where: the programs of the examples on every engine that this machine has, beside the CPU.

    pocketune engines gpu
    .venv/bin/python scripts/bench/accelerators.py                       # all, about an hour of one core
    .venv/bin/python scripts/bench/accelerators.py --only mlp lenet --on gpu

Each program is built for the engine's target and certified; the figures go into the table of docs/accelerators.md, in
which rows that were not run this time stay as they were.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import optax
from measured_table import MeasuredTable

import converter
from converter.runtime.engines import engine
from converter.support.errors import PocketuneError, UsageError
from examples import EXAMPLES
from scripts.arguments import existing

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- measured: scripts/bench/accelerators.py -->", "<!-- end -->"
HEAD = (
    "| program | on | | loss error | update error | output error | float16 floor | version |",
    "|---|---|---|---|---|---|---|---|",
)
SCHEMES = ("sparse", "full", "head")
ENGINES = ("gpu", "hexagon:SM8650", "web", "android")
#: What is built for an engine that has no target of its own.
TARGETS = {"android": "litert-2"}
#: A net for images of 224 is as right on smaller ones, and a decoder with fewer layers.
OPTIONS: dict[str, dict[str, Any]] = {
    "mobilenetv2": {"size": 96},
    "efficientnet-lite": {"size": 96},
    "llama": {"layers": 2, "width": 32, "heads": 4, "length": 16, "vocabulary": 256},
}
BATCH = 4


def row(name: str, model: Any, scheme: str, on: str, steps: int, folder: Path) -> str:
    """Return a line of the table."""
    example = EXAMPLES[name]
    update = example.sparse if scheme == "sparse" else scheme
    target = TARGETS.get(on) or on.partition(":")[0]
    path, cells = folder / "program.tflite", [f"{name} {scheme}", on]
    try:
        converter.build(
            model, loss=example.loss, optimizer=optax.sgd(1.0), update=update, batch=BATCH, target=target, check=False
        ).write(path)
        certificate = converter.certify(path, on=on, steps=steps)
    except PocketuneError as error:
        why = " ".join(str(error).split()[:60])
        return f"| {' | '.join([*cells, f'not built: {why}', *[''] * 5])} |"
    why = "; ".join(dict.fromkeys(map(str, certificate.failures[:2])))
    said = "certified" if certificate.ok else f"{'whole, wrong' if certificate.whole else 'refused'}: {why}"
    figures = (certificate.loss_error, certificate.update_error, certificate.output_error, certificate.floor)
    shown = ["" if figure is None else f"{figure:.1e}" for figure in figures]
    return f"| {' | '.join([*cells, said, *shown, f'{certificate.engine} {certificate.version}'])} |"


def main() -> None:
    """Runs what is asked for, and writes the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runnable = [name for name, example in EXAMPLES.items() if not example.shapes_only]
    parser.add_argument("--only", nargs="+", default=runnable, metavar="EXAMPLE")
    parser.add_argument("--on", nargs="+", default=ENGINES, metavar="ENGINE")
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, metavar="SCHEME")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--document", type=existing, default=ROOT / "docs" / "accelerators.md")
    arguments = parser.parse_args()
    table = MeasuredTable(arguments.document, BEGIN, END, HEAD, keys=2)
    for on in arguments.on:
        if (missing := engine(on).missing()) is not None:
            print(f"{on} is left out: {missing}")
            continue
        for name in arguments.only:
            try:
                model = EXAMPLES[name].build(**OPTIONS.get(name, {}))
            except UsageError as error:  # its data is not here
                print(f"{name} is left out: {error}")
                continue
            for scheme in arguments.schemes:
                with tempfile.TemporaryDirectory() as folder:
                    line = row(name, model, scheme, on, arguments.steps, Path(folder))
                print(line, flush=True)
                table.add(line)


if __name__ == "__main__":
    main()
