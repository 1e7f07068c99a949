"""Channel selection: which input channels of a weight train, by Fisher information on a user's first samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from converter.program.file import ProgramFile
from converter.program.manifest import FISHER, Manifest
from converter.runtime.data.examples import Examples
from converter.runtime.interpreters.entry import SignatureEntry
from converter.runtime.session.redrawing import drawn, redrawn
from converter.runtime.session.running import Running
from converter.support.errors import NumericError, UsageError


def information(entry: SignatureEntry, examples: Examples, size: int) -> dict[str, np.ndarray]:
    """Return the Fisher information of each channel, 1 / 2N sum_n (sum_d a_nd g_nd)^2, by weight.

    Args:
        entry: `fisher`, which sees the state.
        examples: checked rows.
        size: rows of one call.

    Raises:
        UsageError: nothing has a weight.
        NumericError: a number is not finite.
    """
    count = np.count_nonzero(examples.arrays["weight"])
    if not count:
        raise UsageError("weight: all rows have the weight 0, there is nothing to weigh channels by", page="sessions")
    given = entry.signature.giving("fisher")
    sums = {spec.name: np.zeros(spec.shape) for spec in given}
    for part in examples.parts(size):
        part.fill(entry)
        entry.invoke()
        for name, total in sums.items():
            total += entry.output(name)
    if lost := next((name for name, total in sums.items() if not np.isfinite(total).all()), None):
        raise NumericError(f"the Fisher information of {lost.removeprefix(FISHER)} is not finite on these samples")
    return {name.removeprefix(FISHER): total / (2 * count) for name, total in sums.items()}


def largest(information: Mapping[str, np.ndarray], manifest: Manifest) -> dict[str, np.ndarray]:
    """By state tensor, as many channels as train that have the most information, in order; of equal ones the first."""
    chosen = {}
    for choice in manifest.choices:
        ranked = np.argsort(-information[choice.weight], kind="stable")
        chosen[choice.indices] = np.sort(ranked[: manifest.trained_channels(choice)]).astype(np.int32)
    return chosen


def has_trained(program: ProgramFile, state: Mapping[str, np.ndarray]) -> bool:
    """Return whether anything in a state but the choice of channels is not as it was built."""
    chosen = {choice.indices for choice in program.manifest.choices}
    tensors = [tensor for tensor in program.manifest.state_tensors if tensor.tensor not in chosen]
    return any(not np.array_equal(state[tensor.tensor], program.initial(tensor)) for tensor in tensors)


def redraw(running: Running, program: ProgramFile, examples: Examples | None, seed: int, epoch: int) -> None:
    """Let weights take up what was added to their channels, and others train.

    Args:
        running: the program at work.
        program: its file.
        examples: checked rows, for `fisher`: those train that have the most information. None: they are drawn.
        seed: of the draw.
        epoch: of the draw, too.

    Raises:
        NumericError: the information is not finite, or a step has spoilt the state.
    """
    manifest = program.manifest
    running.check_not_lost()
    if examples is None:
        channels = drawn(manifest, seed, epoch)
    else:
        found = information(running.ready("fisher"), examples, manifest.micro_batch)
        channels = largest(found, manifest)
    running.take(redrawn(program, running.memory.read(), channels))


def choose(running: Running, program: ProgramFile, examples: Examples, reset: bool) -> None:
    """Let those channels train that have the most information on these rows.

    Args:
        running: the program at work.
        program: its file.
        examples: checked rows, for `fisher`.
        reset: go back to what was built first.

    Raises:
        UsageError: the state has trained, and is not reset.
        NumericError: the information is not finite.
    """
    if reset:
        running.reset()
    elif has_trained(program, running.memory.read()):
        raise UsageError(
            "the training has begun with other channels: choose_channels(..., reset=True) goes back to what "
            "was built, or call it before the first step"
            + ("; redraw_channels goes on with others" if program.manifest.redrawn else ""),
            page="sessions",
        )
    found = information(running.ready("fisher"), examples, program.manifest.micro_batch)
    running.take(running.memory.read() | largest(found, program.manifest))
