"""Masks of activations and max pools without a clamp: their cotangent supplies the missing factor."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.builtins.base import Builtin
from converter.backend.lowering.forms import Form
from converter.backend.lowering.rules.elementwise import HUGE, scaling_cost
from converter.backend.peephole.fuse import kernel
from converter.backend.targets import Target
from converter.ir import FLOAT32, Graph, Node, Value, fingerprint, known_result
from converter.ir.rewrite import Rewriter, map_bodies, rewrite

#: What a cotangent is multiplied by; a power of two is exact. It is half of float32's range: cotangents up to 1e19 stay
#: finite, and numbers from 6e-20 on are positive ones to a mask.
BOOST = 2.0**64
#: Of constants that are multiplied by it.
_LARGEST = 2.0**32


def without_clamps(graph: Graph, target: Target) -> Graph:
    """Write masks as the minimum of a number and a tiny one, where the cotangent supplies the inverse of that factor.

    Before: dx = MUL(CONV_2D(dz, w), MUL[RELU_N1_TO_1](y, 2^100)).
    After:  dx = MUL(CONV_2D(dz, 2^64 w), MINIMUM(y, 2^-64)), for y >= 0.

    One pass less: XNNPACK clamps the result of a MUL in a second one. The factor goes where it costs nothing, into a
    constant filter, or little, into a weight that trains or a cotangent before it is spread out.

    Of a ReLU6's output, where MINIMUM(y, 6 - y) is clamped, mask and factor are negative, MAXIMUM(y (y - 6), -2^-64)
    and -2^64: it is as much work, and as int8 it needs no clamp, see `converter.backend.schedule.saved_masks`. The
    numbers are the same to the last bit, but for products in int8 with a negative factor: of one row in 100,000 XNNPACK
    rounds the zero point, a tie, to the other side.

    Args:
        graph: lowered, its biases and activations fused.
        target: where it will run.
    """
    graph = map_bodies(graph, lambda body: without_clamps(body, target))
    readers = graph.consumers()
    known = {v: (fingerprint(array), array.nbytes) for v, array in graph.constants.items()}
    # The forward pass may read the same bytes in another shape.
    early = {known[v] for v in known if not all(node.origin.is_late for node in readers.get(v, ()))}
    late = {v for v, bytes_ in known.items() if bytes_ not in early}
    boosted: dict[tuple[Value, float], Value] = {}
    return rewrite(graph, lambda b, node: _unclamped(b, node, target, late, boosted))


def clamp_of(graph: Graph, node: Node) -> float:
    """What a mask is at most, 1 / BOOST, or at least, -1 / BOOST; 0 where the node makes no mask."""
    for op, bound in ((tfl.Minimum(), 1 / BOOST), (tfl.Maximum(), -1 / BOOST)):
        if node.op == op:
            found = graph.constants.get(node.inputs[1])
            return bound if found is not None and found.size == 1 and found.item() == bound else 0.0
    return 0.0


def _unclamped(
    b: Rewriter, node: Node, target: Target, late: Container[Value], boosted: dict[tuple[Value, float], Value]
) -> Value | None:
    """What stands for a cotangent times a mask."""
    if node.op != tfl.Mul():
        return None
    for mask, dy in (node.inputs, node.inputs[::-1]):
        clamp, nbytes = _clamp(b, mask), mask.type.nbytes
        if clamp is None or mask is dy:
            continue
        # Older runtimes keep no masks as int8; their steps take 0.2% fewer instructions with the lesser of two.
        y = _of_relu6(b, clamp.inputs[0]) if target.is_newest else None
        ways = _Boosts(b, target, late, boosted, BOOST if y is None else -BOOST)
        cotangent = ways.boosted_form(dy)
        least = target.moved("delegated", 2 * nbytes, 3 * nbytes)
        if cotangent.cost + least < scaling_cost(target, clamp.op, nbytes):
            if y is None:
                small = b(tfl.Minimum(), clamp.inputs[0], _number(b, 1 / BOOST))
                small = small if small.shape == mask.shape else b(tfl.Reshape(mask.shape), small)
            else:
                below = b(tfl.Mul(), y, b(tfl.Sub(), y, _number(b, 6.0)))
                # A RESHAPE between two of XNNPACK's operators costs nothing; what it hands on may go to others.
                below = below if below.shape == mask.shape else b(tfl.Reshape(mask.shape), below)
                small = b(tfl.Maximum(), below, _number(b, -1 / BOOST))
            return b(node.op, cotangent.emit(), small)
    return None


def _clamp(b: Rewriter, mask: Value) -> Node | None:
    """The operator that makes a mask of numbers that are not negative by scaling and clamping them."""
    view = b.producer(mask, tfl.Reshape)
    clamped = mask if view is None else view.inputs[0]
    node = b.producer(clamped, Builtin)
    if node is None or not isinstance(node.op, tfl.Mul | tfl.DepthwiseConv2D):
        return None
    _, scale, *bias = node.inputs
    scales = node.op.activation == "RELU_N1_TO_1" and b.scalar(scale) == HUGE
    is_mask = scales and not any(map(b.scalar, bias))
    return node if is_mask and b.used_once(mask) and b.used_once(clamped) else None


def _of_relu6(b: Rewriter, x: Value) -> Value | None:
    """y where x is MINIMUM(y, 6 - y), perhaps of another shape, and read for a mask alone."""
    view = b.producer(x, tfl.Reshape)
    least = b.producer(x if view is None else view.inputs[0], tfl.Minimum)
    if least is None or not b.used_once(x) or not b.used_once(least.output):
        return None
    y, rest = least.inputs
    left = b.producer(rest, tfl.Sub)
    return y if left is not None and left.inputs[1] is y and b.scalar(left.inputs[0]) == 6.0 else None


def _number(b: Rewriter, number: float) -> Value:
    return b.constant([number], np.float32)


@dataclass(frozen=True)
class _Boosts:
    """Ways to multiply what is there anyway by what masks are short of.

    Attributes:
        b: the rewriter.
        target: where the graph will run.
        late: constants that the forward pass does not read.
        boosted: what several readers may share, by what was multiplied and by what.
        factor: BOOST or its negative.
    """

    b: Rewriter
    target: Target
    late: Container[Value]
    boosted: dict[tuple[Value, float], Value]
    factor: float

    def _is_small(self, value: Value) -> bool:
        """Whether it is a mask that is short of a factor."""
        view = self.b.producer(value, tfl.Reshape)
        clamp = self.b.producer(view.inputs[0] if view else value, Builtin)
        return clamp is not None and bool(clamp_of(self.b.graph, clamp))

    def boosted_form(self, value: Value) -> Form:
        """The cheapest way to have the factor times a value that one operator reads."""
        return min(self._ways(value), key=lambda form: form.cost)

    def _ways(self, value: Value) -> list[Form]:
        b, array = self.b, self.b.array(value)
        if array is not None:
            # What the forward pass reads, too, would be there twice. Products with int8 weights scale their rows.
            is_free = value in self.late and value.dtype == FLOAT32 and not (np.abs(array) > _LARGEST).any()
            return [Form("constant", 0.0 if is_free else inf, lambda: self._once(value, self._constant))]
        cost = 0.0 if (value, self.factor) in self.boosted else self.target.moved("delegated", 2 * value.type.nbytes)
        times = Form("times", cost, lambda: self._once(value, lambda v: b(tfl.Mul(), v, _number(b, self.factor))))
        node = b.producer(value, Builtin)
        if node is None or not b.used_once(value) or getattr(kernel(node), "activation", "NONE") != "NONE":
            return [times]
        if node.op.moves_data and not node.op.fill:
            return [times, self._through(node, [i for i, v in enumerate(node.inputs) if v.dtype == FLOAT32])]
        places = kernel(node).factors
        # What made up for a mask does so once.
        if any(b.scalar(bias) != 0 for bias in node.inputs[len(places) :]) or any(map(self._is_small, node.inputs)):
            return [times]
        return [times, *(self._through(node, [place]) for place in places)]

    def _through(self, node: Node, places: Sequence[int]) -> Form:
        """The operator on operands of which those at `places` are boosted."""
        forms = {place: self.boosted_form(node.inputs[place]) for place in places}

        def emit() -> Value:
            operands = [forms[i].emit() if i in forms else v for i, v in enumerate(node.inputs)]
            with self.b.at(node.origin):  # it is still its own layer's
                return self.b(node.op, *operands)

        return Form("through", sum(form.cost for form in forms.values()), emit)

    def _once(self, value: Value, make: Callable[[Value], Value]) -> Value:
        if (value, self.factor) not in self.boosted:
            self.boosted[value, self.factor] = make(value)
        return self.boosted[value, self.factor]

    def _constant(self, value: Value) -> Value:
        array = self.b.graph.constants[value]
        factor = np.full((1,) * array.ndim, self.factor, np.float32)
        product = known_result(tfl.Mul(), value.type, array, factor)
        assert product is not None
        return self.b.constant(product, name=value.name)
