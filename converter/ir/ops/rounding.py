"""Elementwise ops with steps: no derivative flows through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import Cotangent
from converter.ir.ops.elementwise import Unary

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


class Sign(Unary):
    """-1, 0 or 1."""

    function = np.sign
    ends = (-1.0, 1.0)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


class Round(Unary):
    """Nearest integer, halves to the even one; no derivative flows."""

    function = np.round

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


class Ceil(Unary):
    """Smallest integer not below x; no derivative flows."""

    function = np.ceil

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


class Floor(Unary):
    """Largest integer not above x."""

    function = np.floor

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)
