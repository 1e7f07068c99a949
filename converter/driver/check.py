"""Smoke test, the last gate of a build: one step in the stock interpreter."""

from __future__ import annotations

import warnings
from math import prod

import numpy as np

from converter.program.manifest import Manifest
from converter.program.synthetic import synthetic_inputs, synthetic_targets
from converter.runtime import RateWarning, TrainingSession
from converter.support.errors import NumericError
from converter.support.files import Mapped

#: Large enough to move a float32 weight, small enough for one step of any optimizer.
LEARNING_RATE = 0.1


class StandstillWarning(UserWarning):
    """A training step that changed nothing."""


def check_program(data: bytes | Mapped, head: str | None = None) -> None:
    """Runs one step for each length that rows may have, and `infer` if there is one, on synthetic data.

    A single weight may stand still (random data need not reach it: a dead unit, a row of an embedding); where all of
    them do, a StandstillWarning says so.

    Args:
        data: the `.tflite`.
        head: which, of a file of several.

    Raises:
        NumericError: the loss or a trained weight is not finite, or the model's scheme trains a weight that the
            program lacks.
        DeviceError: LiteRT does not run it.
    """
    with TrainingSession(data, head=head) as session:
        manifest, rng = session.manifest, np.random.default_rng(0)
        _check_all_there(manifest)
        x, targets = synthetic_inputs(manifest.calls[manifest.step], rng), synthetic_targets(manifest, rng)
        y = {spec.label: targets[spec.name] for spec in manifest.targets}
        before = session.state()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RateWarning)  # said while building, or below
            for tokens in manifest.lengths or (None,):
                own_x, own_y = ({name: a[:, :tokens] if tokens else a for name, a in of.items()} for of in (x, y))
                session.train(own_x, own_y, LEARNING_RATE if manifest.running_rate is None else None)
        after = session.state()
        if "infer" in manifest.calls:
            session.infer(x)
    owners = {piece.tensor: parameter.name for parameter in manifest.parameters for piece in parameter.pieces}
    broken = [owners.get(name, name) for name, array in after.items() if not np.isfinite(array).all()]
    if broken:
        raise NumericError(f"after one training step these hold NaN or infinity: {', '.join(broken)}")
    # A slot of one element is a counter, which moves without any gradient.
    # Statistics of batch normalization move with the data alone.
    trained = tuple(row.parameter for row in manifest.update.table)
    still = {tensor for tensor, name in owners.items() if not name.startswith(trained)}
    moving = {tensor for tensor in owners if tensor not in still}
    telling = [t.tensor for t in manifest.state_tensors if t.tensor in moving or (t.slot and prod(t.shape) > 1)]
    if all(np.array_equal(before[name], after[name]) for name in telling):
        warnings.warn(
            f"one training step on random data moves nothing ({', '.join(owners.values())}). That is as it should be "
            "where the loss masks such data or the learning rate starts at zero; elsewhere look for dead units.",
            StandstillWarning,
            stacklevel=3,
        )


def _check_all_there(manifest: Manifest) -> None:
    present = {parameter.name for parameter in manifest.parameters}
    dropped = [row.parameter for row in manifest.update.table if row.fraction and row.parameter not in present]
    if dropped:
        raise NumericError(f"the update scheme trains these, and the program lacks them: {', '.join(dropped)}")
