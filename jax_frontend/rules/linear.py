"""dot_general -> MatMul, with as few transposes and reshapes as possible."""

from __future__ import annotations

from math import prod

import numpy as np

from converter.ir import BOOL, FLOAT32, Builder, Value, ops
from converter.ir.folding import FoldingBuilder
from jax_frontend.registry import Equation, ImportRules, Result

rule = ImportRules()


@rule("dot_general")
def dot_general(call: Equation, x: Value, y: Value) -> Result:
    """Any batch and contracting axes. A weight [K, N] stands against an activation [..., K] as it is."""
    (cx, cy), (bx, by) = call.params["dimension_numbers"]
    contract_x, contract_y, batch_x, batch_y = (tuple(int(a) for a in axes) for axes in (cx, cy, bx, by))
    b, shape = call.b, call.output.shape
    if not (x.type.size and y.type.size):  # sums of nothing
        return b.broadcast_to(b.constant(np.zeros((), call.output.dtype)), shape)
    # Integers against floats, or summed as floats: the product is of the output's type. Of bools it is a count.
    wanted = FLOAT32 if call.output.dtype == BOOL else call.output.dtype
    x, y = (v if v.dtype == wanted else b(ops.Cast(wanted), v) for v in (x, y))
    x, (contract_x, batch_x, free_x) = _untransposed(b, x, contract_x, batch_x, _rest(x, batch_x, contract_x))
    y, (contract_y, batch_y, free_y) = _untransposed(b, y, contract_y, batch_y, _rest(y, batch_y, contract_y))
    order = sorted(range(len(contract_x)), key=lambda i: contract_x[i])
    contract_x, contract_y = tuple(contract_x[i] for i in order), tuple(contract_y[i] for i in order)
    right, adj_y = _matrix(b, y, batch_y, contract_y, free_y, contracted_first=True)
    if not batch_x and len(free_x) > 1 and free_x + contract_x == tuple(range(len(x.shape))):
        left = b.reshape(x, (*(x.shape[a] for a in free_x), prod(x.shape[a] for a in contract_x)))
        return _typed(call, b.reshape(b(ops.MatMul(False, adj_y), left, right), shape))
    left, adj_x = _matrix(b, x, batch_x, contract_x, free_x, contracted_first=False)
    return _typed(call, b.reshape(b(ops.MatMul(adj_x, adj_y), left, right), shape))


def _typed(call: Equation, product: Value) -> Value:
    return call.b(ops.NotEqual(), product, 0.0) if call.output.dtype == BOOL else product


def _rest(x: Value, *taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in range(len(x.shape)) if not any(a in axes for axes in taken))


def _untransposed(b: Builder, x: Value, *groups: tuple[int, ...]) -> tuple[Value, list[tuple[int, ...]]]:
    """The value before a transpose, and where the axes of each group stand there."""
    assert isinstance(b, FoldingBuilder)
    transposed = b.producer(x, ops.Transpose)
    if transposed is None:
        return x, list(groups)
    perm = transposed.op.perm
    return transposed.inputs[0], [tuple(perm[a] for a in group) for group in groups]


def _matrix(
    b: Builder,
    x: Value,
    batch: tuple[int, ...],
    contract: tuple[int, ...],
    free: tuple[int, ...],
    contracted_first: bool,
) -> tuple[Value, bool]:
    """`x` as [batch..., rows, columns], and whether it stands transposed to what the product wants.

    Groups of free and of contracted axes become one axis each. The data is only moved where the axes of a group
    do not stand together; the order of the two groups is left as it is.
    """
    rows, columns = (contract, free) if contracted_first else (free, contract)
    adjoint = bool(rows and columns) and _moved(x, batch + columns + rows) < _moved(x, batch + rows + columns)
    groups = (columns, rows) if adjoint else (rows, columns)
    moved = b.transpose(x, batch + groups[0] + groups[1])
    size = [prod(x.shape[a] for a in group) for group in groups]
    return b.reshape(moved, (*(x.shape[a] for a in batch), *size)), adjoint


def _moved(x: Value, perm: tuple[int, ...]) -> int:
    """1 if the permutation moves data, 0 if it is the identity but for axes of size 1."""
    order = [p for p in perm if x.shape[p] != 1]
    return int(order != sorted(order))
