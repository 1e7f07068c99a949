"""`augment`: data augmentation inside a training step."""

from __future__ import annotations

from dataclasses import replace

from converter.backend.stages import to_builtins
from converter.driver.compilation import Compilation
from converter.passes.canonical import canonicalize
from converter.training.augment import augmentation
from converter.training.schemes import join


def trace(c: Compilation) -> Compilation:
    """Trace the user's function, with a key made of the number of the call."""
    if c.options.augment is None:
        return c
    made = canonicalize(augmentation(c.options.augment, c.graphs.model.inputs, *c.counter))
    counter, count = c.counter
    return replace(c, augmentation=made, step=replace(c.step, carried={**c.step.carried, counter: count}))


def join_to_step(c: Compilation) -> Compilation:
    """Put it before the step, lowered."""
    if c.augmentation is None:
        return c
    first = next(iter(c.program))
    joined = join(to_builtins(c.augmentation, c.target), c.program[first])
    return replace(c, program=c.program.including(**{first: joined}))
