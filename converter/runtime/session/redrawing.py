"""Channels redrawn between epochs: a weight takes up what was added to its channels, and as many others train.

Quélennec et al., Study of Training Dynamics for Memory-Constrained Fine-Tuning (TraDy), arXiv 2510.19675: chosen at
random between epochs, within the memory of a fixed number of channels. It is a write of the state: what a step needs
is the same before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from converter.program.file import ProgramFile
from converter.program.manifest import Manifest, kept_of
from converter.program.parameters import parameters_of
from converter.runtime.data.order import Random
from converter.support.errors import UsageError


def check_redrawn(manifest: Manifest, redraw: Any = True) -> None:
    """Raise UsageError where no weight of a program takes up what is added to its channels.

    Args:
        manifest: of the program.
        redraw: as `fit` is given it, not False.
    """
    if redraw is not True:
        raise UsageError(
            f"redraw is True or False, not {redraw!r}: channels are drawn by the seed. By information on rows "
            "redraw_channels(x, y) does it, between calls of fit",
            page="sessions",
        )
    if not manifest.redrawn:
        raise UsageError(
            f"redrawing channels: no weight of {manifest.name} is state that takes up what is added to its channels: "
            "build it with update='channels-10-redrawn', in rules Channels(0.1, redrawn=True)",
            page="sessions",
        )


def drawn(manifest: Manifest, seed: int, epoch: int) -> dict[str, np.ndarray]:
    """Return channels by state tensor, in order, of each weight drawn at random with equal chances.

    The generator is that of the order of rows, with seeds of its own.

    Args:
        manifest: of the program.
        seed: a whole number from 0 on.
        epoch: from 0.
    """
    random, found = Random.of_epoch(-1 - seed, epoch), dict[str, np.ndarray]()
    for choice in manifest.redrawn.values():
        places = random.shuffled(choice.channels)[: manifest.trained_channels(choice)]
        found[choice.indices] = np.sort(places).astype(np.int32)
    return found


def redrawn(
    program: ProgramFile, state: Mapping[str, np.ndarray], channels: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the state in which weights have taken up what was added to their channels, and others train.

    What is added, and what the optimizer keeps of it, is as built. The model computes the same but for rounding.

    Args:
        program: of the state.
        state: by tensor.
        channels: by the state tensor that says which; that of each weight whose channels are redrawn.
    """
    # Here: a session that only trains does without the IR, 3 MB of Python's memory.
    from converter.ir.view import View
    from converter.program.merge import add_to_channels

    manifest, parameters = program.manifest, parameters_of(program, state)
    after = dict(state)
    for choice in manifest.redrawn.values():
        whole, product = parameters[choice.weight], View.from_json(list(choice.product or ()))
        add_to_channels(whole, product, state[choice.indices], parameters[choice.change])
        (piece,) = manifest.parameter(choice.weight).pieces
        stored = View.from_json(list(piece.view)).apply(whole)
        after[piece.tensor] = stored.reshape(state[piece.tensor].shape)
        after[choice.indices] = channels[choice.indices]
        for tensor in kept_of(choice.change, manifest.state_tensors):
            after[tensor.tensor] = program.initial(tensor)
    return after
