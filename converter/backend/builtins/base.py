"""Base class of TFLite builtins: a meaning, constant operands, an options table and an operator version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from converter.ir.op import Cost, Op, ShapeError
from converter.ir.quantization import Quantization
from converter.ir.types import FLOAT32, INT32, TensorType

#: The activation that a kernel applies to its result before writing it: costs nothing.
Activation = Literal["NONE", "RELU", "RELU_N1_TO_1", "RELU6"]
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "NONE": (None, None),
    "RELU": (0, None),
    "RELU_N1_TO_1": (-1, 1),
    "RELU6": (0, 6),
}

Types = tuple[TensorType, ...]


def activate(activation: Activation, x: np.ndarray) -> np.ndarray:
    """Applies a fused activation."""
    return x if activation == "NONE" else np.clip(x, *_RANGES[activation])


def int32(*numbers: int) -> np.ndarray:
    """Return a constant operand [n]."""
    return np.array(numbers, INT32)


@dataclass(frozen=True)
class Delegated:
    """How the CPU delegate (XNNPACK) runs an operator that it takes.

    Attributes:
        packed: bytes that it keeps from when the program is loaded: constants laid out for its kernels, tables of
            pointers.
        scratch: bytes of its workspace while the operator runs.
        in_place: whether the result may take over an operand's place in the workspace.
        clamps: whether a second operator, in place, applies its activation.
        copies: whether it only copies (variables): left out where the copy has one reader in the same partition.
        pads: whether it only puts zeros around rows and columns: left out before a window that can do it.
        windows: whether it is such a window.
        known: whether its result is known when the program is loaded, and lies nowhere but in what its readers pack.
    """

    packed: int = 0
    scratch: int = 0
    in_place: bool = False
    clamps: bool = False
    copies: bool = False
    pads: bool = False
    windows: bool = False
    known: bool = False


@dataclass(frozen=True)
class Operator(Op):
    """What the runtime runs as one: a builtin, or the part of a graph that a delegate took."""

    #: Whether a quick kernel computes each element from those at its place, or only moves them: cheap enough to be run
    #: twice.
    is_cheap: ClassVar[bool] = False
    #: The operand of which each of `scratch` is a copy that the kernel keeps apart from the arena where it is constant.
    scratch_of: ClassVar[tuple[int | None, ...]] = ()

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        """Return how the CPU delegate runs it, None when it stays with the runtime's own kernels.

        Args:
            inputs: types of the operands.
            outputs: types of the results.
            constant: which operands are known when the program is loaded.
            lanes: columns that the kernel of a matrix product computes at once; weights are padded to them.
        """
        return None

    def in_place(self) -> tuple[int, ...]:
        """Return operands whose buffer the output may take over in the runtime, in the order in which it tries them."""
        return ()

    def scratch(self, inputs: Types, outputs: Types) -> tuple[int, ...]:
        """Return the bytes of each temporary tensor that the runtime's kernel keeps in the arena while it runs."""
        return ()

    def copies(self) -> bool:
        """Return whether the output is the operands' elements in another place: cheaper to make again than to keep."""
        return False


@dataclass(frozen=True)
class Builtin(Operator):
    """One TFLite builtin operator.

    A subclass names its code and says what it computes: `means` is its semantic twin (and `meaning` makes it, where
    attributes or operand types decide), from which shapes, reference values, cost and `elementwise` are taken.
    """

    #: Name in the schema's enum BuiltinOperator.
    code: ClassVar[str]
    #: Name of the options table in the schema, empty for none.
    table: ClassVar[str] = ""
    means: ClassVar[type[Op]] = Op
    #: Element types that the kernels take for all operands: f float32, i int32, b bool, V int4.
    kinds: ClassVar[str] = "f"
    #: Whether XNNPACK takes it, all operands and results being float32 of rank 6 or less.
    xnnpack: ClassVar[bool] = False
    #: Whether it writes the result over an operand there.
    xnnpack_in_place: ClassVar[bool] = False
    #: Operands whose buffer the kernel may write its result to (`inplace_operator` of its registration), in the order
    #: in which it tries them.
    reuses: ClassVar[tuple[int, ...]] = ()
    #: What the tables of targets call what it does where that is to multiply and add: a matrix product or convolution.
    product: ClassVar[str] = ""
    #: What they call what it moves, where that has figures of its own.
    moved: ClassVar[str] = ""
    #: The two operands that it multiplies, weights first.
    factors: ClassVar[tuple[int, ...]] = ()
    #: Whether there is an int8 kernel for constant weights, with a scale for each channel.
    int8_weights: ClassVar[bool] = False
    #: Whether the int8 kernel hands on its operands' integers: result and operands share one scale.
    same_scale: ClassVar[bool] = False
    #: Whether the int8 kernel gives its result any scale.
    rescales: ClassVar[bool] = False
    #: The one scale that the int8 kernel gives.
    fixed_scale: ClassVar[Quantization | None] = None

    def __init_subclass__(cls) -> None:
        """A builtin is elementwise as its twin is, if its class does not say otherwise."""
        if "means" in vars(cls):
            cls.elementwise = vars(cls).get("elementwise", cls.means.elementwise)

    def meaning(self, *types: TensorType) -> Op:
        """Return the semantic op for operands of these types."""
        return self.means()

    def infer(self, *types: TensorType) -> TensorType | Types:
        if any(t.dtype.kind not in self.kinds or t.quantization is not None for t in types):
            raise ShapeError(f"{self.name}: no kernel takes {', '.join(map(str, types))}")
        try:
            result = self.result(*types)
        except ShapeError as error:  # named after its semantic twin
            raise ShapeError(f"{self.name}: {error}") from None
        if isinstance(result, TensorType) and result.rank == 0:
            raise ShapeError(f"{self}: the result has rank 0, which lowered graphs do not hold; keep a dimension")
        return result

    def result(self, *types: TensorType) -> TensorType | Types:
        """Return what `infer` gives for operands of element types that the kernels take."""
        return self.meaning(*types).infer(*types)

    def evaluate(self, *arrays: np.ndarray) -> Any:
        return self.meaning(*(TensorType(a.shape, a.dtype) for a in arrays)).evaluate(*arrays)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return self.meaning(*inputs).cost(inputs, outputs)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        if not self.xnnpack or any(t.dtype != FLOAT32 or t.rank > 6 for t in (*inputs, *outputs)):
            return None
        return Delegated(in_place=self.xnnpack_in_place)

    def in_place(self) -> tuple[int, ...]:
        return self.reuses

    def operands(self) -> tuple[np.ndarray, ...]:
        """Attributes that TFLite wants as constant tensors (axes, shapes, paddings, ...), none of rank 0."""
        return ()

    def assemble(self, inputs: tuple[Any, ...], constants: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the operator's inputs in TFLite's order, from the node's inputs and the tensors of `operands()`."""
        return (*inputs, *constants)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        """Fields of the options table: numbers, lists of ints, enum names, strings, dtypes or a SubgraphName."""
        return {}

    def version(self, inputs: Types, outputs: Types) -> int:
        """Return the lowest version that says what is meant (TensorFlow's `op_version.cc`).

        Old runtimes refuse more.
        """
        return 1


class Pointwise(Builtin):
    """A builtin that computes each element from those at its place, and that XNNPACK takes."""

    elementwise = xnnpack = xnnpack_in_place = is_cheap = True


@dataclass(frozen=True)
class Fused(Pointwise):
    """A builtin that applies an activation to its result."""

    activation: Activation = "NONE"

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return activate(self.activation, super().evaluate(*arrays))

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        run = super().delegated(inputs, outputs, constant, lanes)
        return run and replace(run, clamps=self.activation != "NONE")

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"FusedActivationFunction": self.activation}


def packed_matrix(rows: int, columns: int, lanes: int) -> int:
    """Return the bytes of a float32 matrix as XNNPACK lays it out for a product, biases of the columns included."""
    return -(-columns // lanes) * lanes * (rows + 1) * FLOAT32.itemsize


class SubgraphName(str):
    """An option that names a subgraph; emission puts its index."""


def broadcasts_wide(inputs: Types) -> bool:
    """Return whether operands of several shapes, one of rank above 4, are broadcast, as newer kernels can."""
    return len({t.shape for t in inputs}) > 1 and max(t.rank for t in inputs) > 4


def needs_rank_4(op: Op, *types: TensorType) -> None:
    """Raises ShapeError unless all have four axes."""
    if any(t.rank != 4 for t in types):
        raise ShapeError(f"{op.name}: wants rank 4, got {', '.join(str(list(t.shape)) for t in types)}")
