"""The model zoo: nets with their weights, personalised on data of packages, each row of docs/zoo.md by one command.

    scripts/pretrained
    .venv/bin/python scripts/bench/zoo                    # all rows; minutes of one core
    .venv/bin/python scripts/bench/zoo --row imu          # that one; the others stay as they are in results.json

A row builds the program, judges it on held-out rows, trains it with Adam in the stock runtime on one thread, frozen
first layers once a sample, and judges it again. The program is written to out/zoo. Licences and pages are what the
packages say. Rates and epochs are those that docs/accuracy.md and the tests of the examples have found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from origins import Package, package
from zoo_document import document
from zoo_models import MODELS, Model, Rows

import converter
from converter.runtime import TrainingSession
from scripts.arguments import parser, writable
from scripts.bench.facts import ROOT, checkout, machine, write

HERE = Path(__file__).resolve().parent
BATCH, TARGET = 8, "litert-2/x86-64"
#: Steps that are timed, after one that is not.
_TIMED = 10


def main() -> None:
    """Make rows, and write all of them."""
    options = parser(__doc__)
    options.add_argument("--row", action="append", choices=MODELS, help="only that one; repeat it for more")
    options.add_argument("--json", type=writable, default=HERE / "results.json", help="the rows, read and written")
    options.add_argument("--document", type=writable, default=ROOT / "docs" / "zoo.md", help="the page to write")
    options.add_argument("--programs", type=Path, default=ROOT / "out" / "zoo", help="the folder for programs")
    asked = options.parse_args()
    asked.programs.mkdir(parents=True, exist_ok=True)
    known = {row["name"]: row for row in json.loads(asked.json.read_text())["rows"]} if asked.json.exists() else {}
    for name in asked.row or MODELS:
        known[name] = row(MODELS[name], asked.programs / f"{name}.tflite")
        print(json.dumps(known[name]), flush=True)
        rows = [known[each] for each in MODELS if each in known]
        write(asked.json, {"batch": BATCH, "target": TARGET, "rows": rows})
        asked.document.write_text(document(rows))


def row(model: Model, file: Path) -> dict[str, Any]:
    """Build, train and judge a model; return its row of the zoo."""
    commit, changed = checkout()
    here = machine()
    weights, data = package(model.weights), package(model.data)
    return {
        "name": model.name,
        "model": model.model,
        "task": model.task,
        "scheme": model.scheme,
        "weights": weights._asdict(),
        "data": data._asdict(),
        **measured(model.build(), *model.load(), model, card(model, weights, data), file),
        "date": f"{date.today()}",
        "commit": commit,
        "changed": changed,
        "machine": {name: here[name] for name in ("cpu", "versions")},
    }


def measured(
    net: Any, learned: Rows, judged: Rows, model: Model, card: Mapping[str, str], file: Path
) -> dict[str, Any]:
    """Train a net; return its accuracies on the rows to judge on and the costs of its program, which is written."""
    program = converter.build(
        net,
        loss="sparse_categorical_crossentropy",
        optimizer="adam",
        update=model.update,
        batch=BATCH,
        target=TARGET,
        signatures=("train", "evaluate", "infer", "features"),
        card=card,
    )
    program.write(file)
    with TrainingSession(file) as session:
        before = session.evaluate(*judged)["accuracy"]
        begun = time.process_time()
        session.fit(*learned, epochs=model.epochs, learning_rate=model.rate, seed=0, progress=False)
        seconds = time.process_time() - begun
        after = session.evaluate(*judged)["accuracy"]
        step = step_seconds(session, learned)
    return {
        "samples": len(learned.y),
        "held_out": len(judged.y),
        "epochs": model.epochs,
        "rate": model.rate,
        "before": before,
        "after": after,
        "program_bytes": file.stat().st_size,
        "memory_bytes": program.costs["arena_bytes"] + program.costs["state_bytes"],
        "trained_parameters": program.costs["trained_parameters"],
        "step_ms": 1000 * step,
        "training_seconds": seconds,
    }


def card(model: Model, weights: Package, data: Package) -> dict[str, str]:
    """Return what a program says of its net."""
    return {
        "description": f"{model.model}; {model.task}",
        "license": weights.licence,
        "source": f"{weights.name}, {weights.page}",
        "datasets": f"{data.name} ({data.licence}), {data.page}",
    }


def step_seconds(session: TrainingSession, rows: Rows) -> float:
    """Return the least CPU time of a step on inputs: what else runs only adds to it."""
    x, y = rows.x[:BATCH], rows.y[:BATCH]
    seconds = []
    for _ in range(1 + _TIMED):
        begun = time.process_time()
        session.train(x, y, learning_rate=0.0)
        seconds.append(time.process_time() - begun)
    return float(np.min(seconds[1:]))


if __name__ == "__main__":
    main()
