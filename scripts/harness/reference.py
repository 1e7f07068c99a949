"""What the host computes on the same data, and how far a device is from it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from converter.program.file import read_program
from converter.runtime import TrainingSession
from scripts.harness.batches import read_batches
from scripts.harness.outcome import Outcome
from scripts.harness.plan import Tolerance


@dataclass(frozen=True)
class Reference:
    """The host's training.

    Attributes:
        losses: of each step.
        built: the state before the first step.
        trained: the state after the last.
    """

    losses: tuple[float, ...]
    built: dict[str, np.ndarray]
    trained: dict[str, np.ndarray]


def reference(program: Path, batches: bytes, steps: int, learning_rate: float) -> Reference:
    """Trains in the host runtime. Raises NumericError when the training diverges there."""
    with tempfile.NamedTemporaryFile() as file, TrainingSession(program) as session:
        Path(file.name).write_bytes(batches)
        parsed = read_batches(Path(file.name), session.manifest)
        losses = []
        rate = learning_rate if session.manifest.running_rate is None else None
        for step in range(steps):
            batch = parsed[step % len(parsed)]
            losses.append(session.train(batch.inputs, batch.target, rate, batch.weight))
        trained = session.state()
    source = read_program(program)
    built = {t.tensor: source.initial(t) for t in source.manifest.state_tensors}
    return Reference(tuple(losses), built, trained)


@dataclass(frozen=True)
class Agreement:
    """How far a device is from the host.

    Attributes:
        loss_error: the largest relative difference of a loss.
        update_error: the largest, over the trained tensors, of |device − host| / |host − built|.
        worst: the tensor of update_error.
    """

    loss_error: float
    update_error: float
    worst: str
    ok: bool


def agreement(outcome: Outcome, host: Reference, tolerance: Tolerance) -> Agreement:
    """Compares losses and every trained tensor."""
    ours, theirs = np.array(host.losses), np.array(outcome.losses[0])
    loss_error = float(np.max(np.abs(theirs - ours) / np.maximum(np.abs(ours), 1e-3)))
    errors = {}
    for name, trained in host.trained.items():
        moved = _norm(trained, host.built[name])
        # What the host hardly moves is measured against its own size, in float32's resolution.
        least = 1e-6 * max(float(np.linalg.norm(trained.astype(np.float64))), 1e-6)
        errors[name] = _norm(outcome.state[name], trained) / max(moved, least)
    # NaN is worse than any number, and equals none.
    worst = max(errors, key=lambda name: (np.isnan(errors[name]), errors[name]))
    ok = loss_error <= tolerance.loss and errors[worst] <= tolerance.update
    return Agreement(loss_error, errors[worst], worst, ok)


def _norm(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))
