"""LoRA: the low-rank change of a frozen weight that a scheme may ask for, and where a model has a place for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from numbers import Real
from typing import Any

from converter.ir import Node, Op, Value, View, ops
from converter.support.errors import UsageError

#: Why a weight that is read by such an op has no adapter.
_REASONS: dict[type[Op], str] = {
    ops.DepthwiseConv2D: "a depthwise convolution, whose channels do not mix: there is no rank to lower",
    ops.Conv2DInputGrad: "a transposed convolution",
    ops.Reverse: "read backwards, as by a transposed convolution",
    ops.Slice: "read in parts, as by a convolution in groups or a loop over stacked layers",
    ops.Gather: "looked up, not multiplied",
}


@dataclass(frozen=True)
class LoRA:
    """Trains a low-rank change of a frozen weight (Hu et al., arXiv 2106.09685): y = x W + alpha / rank * (x A) B.

    Attributes:
        rank: columns of A and rows of B.
        alpha: the change is scaled by alpha / rank.
        train_a: False keeps A as it was drawn and trains B alone (LoRA-FA, arXiv 2308.03303): of the layer's input,
            only its product with A is kept for the backward pass.
        dropout: how likely an input of A is zero in a step, as `lora_dropout` of PEFT; in inference none is.
        dora: also train the length of each column of the weight (DoRA, Liu et al., arXiv 2402.09353; `use_dora` of
            PEFT): y = m * (x W + alpha / rank * (x A) B) / n, where n are the lengths of the columns of
            W + alpha / rank * A B, constants for the gradient (section 4.3), and m begins as those of W.
        seed: of A, which begins uniform in +-1/sqrt(fan in); B begins at zero.
    """

    rank: int = 8
    alpha: float = 16.0
    train_a: bool = True
    seed: int = 0
    dropout: float = 0.0
    dora: bool = False

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("seed", 0)):
            number = getattr(self, name)
            if type(number) is not int or number < least:
                raise UsageError(
                    f"LoRA: {name} must be a whole number of at least {least}, got {number!r}", page="adapters"
                )
        alpha: Any = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < float(alpha) < float("inf"):
            raise UsageError(f"LoRA: alpha must be a positive number, got {alpha!r}", page="adapters")
        rate: Any = self.dropout
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 <= float(rate) < 1:
            raise UsageError(f"LoRA: dropout must be a number from 0 to below 1, got {rate!r}", page="adapters")
        for name in ("train_a", "dora"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"LoRA: {name} must be true or false, got {getattr(self, name)!r}", page="adapters")
        if self.dora and self.dropout:
            raise UsageError(
                "LoRA: dora does not go together with dropout, under which PEFT multiplies the weight by the dropped "
                "inputs as well, a second product of its size: leave one of them out",
                page="adapters",
            )

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied by."""
        return self.alpha / self.rank

    def __str__(self) -> str:
        kind = f"{'DoRA' if self.dora else 'LoRA'}{'' if self.train_a else '-FA'}"
        said = f"{kind} of rank {self.rank}, alpha {self.alpha:g}"
        return f"{said}, dropout {self.dropout:g}" if self.dropout else said


@dataclass(frozen=True)
class Use:
    """How one contraction reads a weight.

    Attributes:
        operand: which operand of it the weight is.
        transposed: whether it is used transposed.
        scale: what the weight is multiplied by before, one number or one a channel: a factor of the model, or a batch
            norm, that was folded into it. None: nothing.
        scales_inputs: whether those are its input channels; else its outputs.
    """

    operand: int
    transposed: bool
    scale: Value | None = None
    scales_inputs: bool = False


@dataclass(frozen=True)
class Contraction:
    """Where a weight is multiplied, and what its factors look like.

    Attributes:
        view: from the weight as the model has it to the layout of A B: [..., inputs, outputs], a filter's HWIO.
        a, b: shapes of the factors at rank 1, which is the last axis of A and the last but one of B.
        uses: how each contraction reads it, by its result.
    """

    view: View
    a: tuple[int, ...]
    b: tuple[int, ...]
    uses: dict[Value, Use] = field(default_factory=dict)

    @property
    def largest_rank(self) -> int:
        """Beyond it, the factors have more numbers than the weight."""
        rows, columns = self.fan_in, self.b[-1]
        return rows * columns // (rows + columns)

    @property
    def fan_in(self) -> int:
        """Inputs of one output."""
        return prod(self.a[len(self.b) - 2 : -1])


def find_place(weight: Value, readers: dict[Value, list[Node]]) -> Contraction | str:
    """Return where a weight is multiplied with something, or why an adapter cannot do the same."""
    found: Contraction | None = None
    for node, read, steps, scale in _uses(weight, readers, (), None):
        place = _place(node, read, steps, scale)
        if isinstance(place, str):
            return place
        if found is None:
            found = place
            continue
        ((result, use),) = place.uses.items()
        if _swapped(place.view, len(place.b)) == found.view:
            place, use = found, replace(use, transposed=not use.transposed)
        if place.view != found.view or result in found.uses:
            return f"used {len(readers[weight])} times, in different forms"
        found.uses[result] = use
    return found or "read by nothing"


@dataclass(frozen=True)
class Factor:
    """What a weight is multiplied by, and the axis along which that varies: none where it is one number."""

    value: Value
    axis: int | None


#: A weight as it is read: by what node, as what value, behind what steps of a view, and times what.
_Read = tuple[Node, Value, tuple, Factor | None]


def _uses(value: Value, readers: dict[Value, list[Node]], steps: tuple, scale: Factor | None) -> Iterator[_Read]:
    """Yield the nodes that read a weight after changes of its layout, and after a factor of its channels."""
    for node in readers.get(value, []):
        match node.op:
            case ops.Transpose(perm=perm):
                moved = scale and replace(scale, axis=None if scale.axis is None else perm.index(scale.axis))
                yield from _uses(node.output, readers, (*steps, ("transpose", perm)), moved)
            case ops.Reshape(shape=shape) if scale is None or scale.axis is None:
                yield from _uses(node.output, readers, (*steps, ("reshape", shape)), scale)
            case _ if scale is None and (factor := factor_of(node, value)) is not None:
                yield from _uses(node.output, readers, steps, factor)
            case _:
                yield node, value, steps, scale


def factor_of(node: Node, weight: Value) -> Factor | None:
    """Return what a weight is multiplied by, where that is one number, or one for each place along an axis."""
    if not isinstance(node.op, ops.Mul) or node.inputs.count(weight) != 1 or node.output.shape != weight.shape:
        return None
    other = node.inputs[1 - node.inputs.index(weight)]
    axes = [len(weight.shape) - len(other.shape) + i for i, size in enumerate(other.shape) if size > 1]
    return Factor(other, axes[0] if axes else None) if len(axes) < 2 else None


def _place(node: Node, read: Value, steps: tuple, scale: Factor | None) -> Contraction | str:
    """Return what one use of a weight asks of its factors."""
    operand = node.inputs.index(read)
    if node.inputs.count(read) > 1:
        return "multiplied with itself"
    if isinstance(node.op, ops.Conv2D) and operand == 1:
        outputs, *kernel, inputs = read.shape
        use = _scaled(Use(1, False), scale, (3, 0))
        if isinstance(use, str):
            return use
        view = View((*steps, ("transpose", (1, 2, 3, 0))))
        return Contraction(view, (*kernel, inputs, 1), (1, outputs), {node.output: use})
    if not isinstance(node.op, ops.MatMul):
        return _REASONS.get(type(node.op), f"read by {node.op.name}")
    *lead, rows, columns = read.shape
    view, axes = View(steps), (len(lead), len(lead) + 1)
    outputs_first = node.op.adj_y if operand else not node.op.adj_x  # as in y = W x
    if outputs_first:
        view, rows, columns, axes = _swapped(view, len(read.shape)), columns, rows, axes[::-1]
    use = _scaled(Use(operand, not operand), scale, axes)
    if isinstance(use, str):
        return use
    return Contraction(view, (*lead, rows, 1), (*lead, 1, columns), {node.output: use})


def _scaled(use: Use, scale: Factor | None, axes: tuple[int, int]) -> Use | str:
    """Return a use with a factor of its weight, of which these are the axes of inputs and outputs."""
    if scale is None:
        return use
    if scale.axis is not None and scale.axis not in axes:
        return "multiplied by numbers that are neither for its inputs nor for its outputs"
    return replace(use, scale=scale.value, scales_inputs=scale.axis == axes[0])


def _swapped(view: View, rank: int) -> View:
    """Return the view of what it shows, of that rank, with its last two axes exchanged."""
    swap = ("transpose", (*range(rank - 2), rank - 1, rank - 2))
    return View(view.steps[:-1]) if view.steps[-1:] == (swap,) else view.then(swap)
