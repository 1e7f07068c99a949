"""Legalization pattern: operators that an engine refuses or computes wrongly, and what replaces them there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import Node, Shape, Value
from converter.ir.rewrite import Rewriter

#: What stands for the outputs of a node; None where the pattern has no replacement that fits it.
Replacement = Callable[[Rewriter, Node], Value | tuple[Value, ...] | None]
R = TypeVar("R", bound=Replacement)


@dataclass(frozen=True)
class Pattern:
    """One rule.

    Attributes:
        name: as the table of a target has it under `avoids`.
        why: the probe: what was run on the engine, and what came of it.
        matches: whether a node, which the builder may look after, is of the pattern.
        replace: emits what is right instead.
    """

    name: str
    why: str
    matches: Callable[[Rewriter, Node], bool]
    replace: Replacement


#: All patterns by name, in the order in which they are looked for.
PATTERNS: dict[str, Pattern] = {}


def avoids(name: str, why: str, matches: Callable[[Rewriter, Node], bool]) -> Callable[[R], R]:
    """Registers a replacement. Raises ValueError on a second one of that name."""

    def register(replace: R) -> R:
        if name in PATTERNS:
            raise ValueError(f"two patterns are named {name!r}")
        PATTERNS[name] = Pattern(name, why, matches, replace)
        return replace

    return register


def reshaped(b: Rewriter, x: Value, shape: Shape) -> Value:
    """`x` in another shape: a constant at compile time, and a RESHAPE of a RESHAPE as one."""
    before = b.producer(x, tfl.Reshape)
    if before is not None:
        return reshaped(b, before.inputs[0], shape)
    if x.shape == tuple(shape):
        return x
    array = b.array(x)
    return b(tfl.Reshape(tuple(shape)), x) if array is None else b.constant(array.reshape(shape), name=x.name)


def is_elementwise(node: Node) -> bool:
    """Whether each element is computed from those at its place, the operands repeated as NumPy does."""
    return node.op.elementwise


def repeated(b: Rewriter, x: Value, shape: Shape) -> Value:
    """Broadcast `x` to a shape; a constant is broadcast at compile time."""
    array = b.array(x)
    if array is not None and x.shape != tuple(shape):
        return b.constant(np.broadcast_to(array, shape), name=x.name)
    return x if x.shape == tuple(shape) else b(tfl.BroadcastTo(tuple(shape)), x)


def flat(shape: Shape) -> Shape:
    """All axes but the last as one."""
    return prod(shape[:-1]), shape[-1]


def is_constant(b: Rewriter, x: Value) -> bool:
    """Whether the engine knows it when it loads the program."""
    return b.array(x) is not None
