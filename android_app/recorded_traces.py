"""Trainings as the host does them, for the trainers in Kotlin and TypeScript to do again.

OUT/traces.json says of each training what it trains and how, and what the host told on the way; OUT/trace-<name>.state
is the state after it. The programs and data are those that test_programs.py has written there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converter.runtime import Evaluated, Event, Finished, SkipLearned, Skipped, Started, Step, TrainingSession

#: Of the longest row of a text.
TOKENS = 12


@dataclass(frozen=True)
class Training:
    """What is trained, and how.

    Attributes:
        program: its name.
        data: whose data it trains on.
        rows: the first and the last but one of them.
        held_out: likewise those that are evaluated after each epoch; None for none.
        epochs: how often each row is seen.
        seed: of the order; None for the rows' own.
        learning_rate: of each step; None for the program's.
        rate_scale: multiplies it.
        patience: after as many epochs whose loss did not fall it ends; None where it does not.
        fed: the type of the data.
        skip: rows whose loss was less do not come, but every so many epochs; None: all come.
        head: which, of a file of several.
        redraw: whether each epoch but the first begins with other channels.
    """

    program: str
    data: str = "mlp"
    rows: tuple[int, int] = (0, 44)
    held_out: tuple[int, int] | None = None
    epochs: int = 2
    seed: int | None = 0
    learning_rate: float | None = None
    rate_scale: float = 1.0
    patience: int | None = None
    fed: str = "float32"
    skip: tuple[float, int] | None = None
    head: str | None = None
    redraw: bool = False


TRAININGS = {
    "variables": Training("mlp-variables", seed=5, learning_rate=0.02),
    "stateless": Training("mlp-stateless", seed=5, learning_rate=0.02),
    "in-their-order": Training("mlp-by-2-variables", rows=(10, 39), seed=None, epochs=3, learning_rate=0.01),
    "micro-batches": Training("mlp-by-2-stateless", seed=1 << 40, learning_rate=0.01),
    "convolutions": Training("cnn-variables", data="cnn", held_out=(300, 361), seed=1, epochs=4, learning_rate=0.01),
    "convolutions-by-4": Training("cnn-by-4-stateless", data="cnn-by-4", seed=2, learning_rate=0.01),
    "two-targets": Training("two-variables", data="two", seed=7, learning_rate=0.02),
    "two-targets-stateless": Training("two-stateless", data="two", rows=(3, 20), seed=8, epochs=5, learning_rate=0.02),
    "its-own-rate": Training("mlp-lean", seed=9),
    "a-hundredth-of-its-own-rate": Training("unit", seed=10, rate_scale=0.01),
    "rate-in-the-program": Training("fading", seed=11, rate_scale=0.5),
    "labels-left-out": Training("masked", seed=12, held_out=(200, 231), rate_scale=0.3),
    "adapters": Training("adapted", seed=13, held_out=(100, 108), rate_scale=0.2),
    "rows-that-mix": Training("mixing", rows=(0, 48), seed=14),
    "channels": Training("chosen-stateless", seed=15, learning_rate=0.01),
    "redrawn-channels": Training("redrawn", seed=33, epochs=4, learning_rate=0.005, redraw=True),
    "redrawn-channels-by-2": Training("redrawn-by-2", seed=34, epochs=3, learning_rate=0.02, redraw=True),
    "pictures-of-integers": Training("camera-uint8", data="camera-uint8", seed=17, learning_rate=0.1, fed="uint8"),
    "of-integers-with-a-sign": Training("camera-int8", data="camera-int8", seed=17, learning_rate=0.1, fed="int8"),
    "deeper-than-integers": Training("camera-deeper", data="camera-uint8", held_out=(300, 361), seed=18, fed="uint8"),
    "blocks": Training("blocks-float32", rows=(0, 160), epochs=1, seed=19, learning_rate=0.01),
    "blocks-of-four-bits": Training("blocks-int4", rows=(0, 160), epochs=1, seed=19, learning_rate=0.01),
    "blocks-with-scales": Training("blocks-int4-blockwise", rows=(0, 160), epochs=1, seed=19, learning_rate=0.01),
    "several-lengths": Training(
        "lengths", data="texts", rows=(0, 30), held_out=(30, 39), seed=20, learning_rate=0.01, fed="int32"
    ),
    "several-lengths-stateless": Training(
        "lengths-stateless", data="texts", rows=(0, 30), seed=21, learning_rate=0.01, fed="int32"
    ),
    "kept-features": Training("kept", seed=22, held_out=(100, 108), learning_rate=0.05),
    "kept-features-by-2": Training("kept-by-2", seed=23, epochs=3, learning_rate=0.02),
    "frozen-layers-once": Training("once", seed=28, held_out=(100, 160), epochs=4, learning_rate=0.02),
    "frozen-layers-once-by-2": Training("once-by-2", held_out=(100, 160), seed=29, learning_rate=0.02),
    "a-head-of-two": Training("heads", head="frogs", seed=30, held_out=(100, 160), epochs=4, learning_rate=0.02),
    "the-other-head": Training("heads", head="birds", held_out=(100, 160), seed=31, learning_rate=0.02),
    "a-head-by-2": Training("twins", head="yours", held_out=(100, 160), seed=32, learning_rate=0.02),
    "weights-in-int8": Training("int8", held_out=(100, 160), seed=24, learning_rate=0.05),
    "weights-in-int8-by-2": Training("int8-by-2", seed=25, learning_rate=0.05),
    "skipping": Training("losses", seed=26, epochs=8, learning_rate=0.05, skip=(0.4, 3)),
    "skipping-by-2": Training("losses-by-2", held_out=(100, 160), seed=27, epochs=6, learning_rate=0.05, skip=(0.5, 4)),
    "skipping-on-features": Training(
        "losses-kept", rows=(20, 81), seed=None, epochs=5, learning_rate=0.1, skip=(1.0, 2)
    ),
    "stopped-early": Training(
        "mlp-stateless", rows=(0, 16), held_out=(100, 160), epochs=30, seed=16, learning_rate=0.02, patience=2
    ),
}


def write_traces(out: Path) -> None:
    """Write traces.json and the states."""
    traces = {
        name: {**asdict(training), "events": recorded(out, name, training)} for name, training in TRAININGS.items()
    }
    (out / "traces.json").write_text(json.dumps(traces, indent=1))


def recorded(out: Path, name: str, training: Training) -> list[dict[str, Any]]:
    """Train, write the state after it, and return what was told, each with its kind."""
    events: list[dict[str, Any]] = []
    with TrainingSession(out / f"{training.program}.tflite", head=training.head) as session:
        judged = None if training.held_out is None else rows_of(out, training, *training.held_out)
        x, y, weight = rows_of(out, training, *training.rows)
        session.fit(
            x,
            y,
            weight=weight,
            epochs=training.epochs,
            seed=training.seed,
            shuffle=training.seed is not None,
            learning_rate=training.learning_rate,
            rate_scale=training.rate_scale,
            validation=judged,
            patience=training.patience,
            skip=None if training.skip is None else SkipLearned(*training.skip),
            redraw=training.redraw,
            listener=lambda event: events.extend(_told(event)),
            progress=False,
        )
        state = out / f"trace-{name}.state"
        state.unlink(missing_ok=True)
        session.save(state)
    return events


def _told(event: Event) -> list[dict[str, Any]]:
    """Return what the trainers tell of it too: without rows held out they tell nothing of the end of an epoch."""
    match event:
        case Started(epochs, steps):
            return [{"kind": "started", "epochs": epochs, "steps": steps}]
        case Skipped(epoch, rows, of):
            return [{"kind": "skipped", "epoch": epoch, "rows": rows, "of": of}]
        case Step(epoch, step, loss):
            return [{"kind": "step", "epoch": epoch, "step": step, "loss": loss}]
        case Evaluated(epoch, figures, is_best) if "validation_loss" in figures:
            loss, accuracy = figures["validation_loss"], figures["validation_accuracy"]
            return [{"kind": "evaluated", "epoch": epoch, "isBest": is_best, "loss": loss, "accuracy": accuracy}]
        case Finished(_, stopped_early):
            return [{"kind": "finished", "stoppedEarly": stopped_early}]
    return []


def rows_of(out: Path, training: Training, first: int, end: int) -> tuple[np.ndarray, Any, np.ndarray]:
    """Return some rows of the data of a training."""
    data = training.data
    row = (TOKENS,) if training.fed == "int32" else (6, 6, 1)
    x = np.fromfile(out / f"{data}.x", training.fed).reshape(-1, *row)[first:end]
    y: Any = np.fromfile(out / f"{data}.y", np.int32)
    y = y.reshape(-1, TOKENS)[first:end] if training.fed == "int32" else y[first:end]
    if data == "two":
        y = {"kind": y, "size": np.fromfile(out / "two.size", np.float32).reshape(-1, 2)[first:end]}
    return x, y, np.fromfile(out / f"{data}.weight", np.float32)[first:end]
