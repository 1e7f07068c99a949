"""Memory planning for TensorFlow Lite Micro: the arena of a file of one signature, and what fills it.

Tensors are placed as its GreedyMemoryPlanner does (tensorflow/lite/micro/memory_planner/greedy_memory_planner.cc), the
largest first, each into the lowest gap among those alive at the same time. Beside them lie the interpreter's records of
tensors and operators, whose sizes are data of the target.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from converter.program.flatbuffer.parts import bodies_of
from converter.program.flatbuffer.schema import generated

_NAMES = {n: name for name, n in vars(generated.BuiltinOperator).items() if isinstance(n, int)}
#: Of everything in an arena.
_ALIGNMENT = 16
_BYTES = {
    generated.TensorType.FLOAT32: 4, generated.TensorType.INT32: 4, generated.TensorType.INT8: 1,
    generated.TensorType.BOOL: 1, generated.TensorType.UINT8: 1, generated.TensorType.INT16: 2,
    generated.TensorType.INT64: 8,
}  # fmt: skip
#: What asks for two lists of whole numbers while it runs: a place in its operand, and its axes.
_REDUCTIONS = ("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN")
#: Convolutions, which keep a factor and a shift for each channel of their result, whatever its type.
_BY_CHANNEL = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")


#: A tensor, what a kernel needs while it runs, what the body of a loop computes, records, and transposed copies.
Kind = Literal["tensor", "scratch", "loop", "records", "copy"]


@dataclass(frozen=True)
class MicroArena:
    """Bytes of an arena.

    Attributes:
        tensors: where what is computed lies, with inputs and results.
        records: what the interpreter keeps of tensors and operators.
        copies: transposed operands, which BATCH_MATMUL keeps from one call to the next.
        planning: lists of the planner, which lie where tensors lie later.
    """

    tensors: int
    records: int
    copies: int
    planning: int

    @property
    def used(self) -> int:
        """What the interpreter says that it uses (`arena_used_bytes`)."""
        return self.tensors + self.records + self.copies

    @property
    def size(self) -> int:
        """What the interpreter is to be given, for without room to plan it allocates nothing."""
        return max(self.tensors, self.planning) + self.records + self.copies


@dataclass(frozen=True)
class MicroPiece:
    """A part of an arena.

    Attributes:
        nbytes: a multiple of 16 where it is a tensor.
        first, last: the operators of the first subgraph while which it is there, by their places.
        maker: the operator that it belongs to; None for an input, and for records of no operator.
        kind: what it is. Records and copies are there all the time.
        offset: where it begins; None of records and copies, which TFLM places from the end of the arena.
    """

    nbytes: int
    first: int
    last: int
    maker: int | None
    kind: Kind
    offset: int | None = None


@dataclass(frozen=True)
class MicroPlan:
    """An arena, and all that lies in it but for what the planner lists before the first call."""

    arena: MicroArena
    pieces: tuple[MicroPiece, ...]


@dataclass
class _Piece:
    size: int
    first: int
    last: int
    kind: Kind
    offset: int = 0


def micro_arena(program: bytes, records: Mapping[str, int], start: int = 0) -> MicroArena:
    """Return the arena that a file needs whose first subgraph leads to all others.

    Args:
        program: a `.tflite`, or several one after the other.
        records: bytes by builtin, and of `base`, `tensor`, `operator`, `border` (an input or output), `copy`, and while
            it plans of each tensor (`lifetime`) and of each that is placed (`placed`).
        start: where the one begins that is looked at.
    """
    return _planned(generated.ModelT.InitFromPackedBuf(program, start), records)[0]


def micro_plan(program: bytes, records: Mapping[str, int], start: int = 0) -> MicroPlan:
    """Return what lies where in the arena of a file, and whose it is; for the arguments see `micro_arena`."""
    model = generated.ModelT.InitFromPackedBuf(program, start)
    arena, placed, began = _planned(model, records)
    pieces, inside = list[MicroPiece](), dict[tuple[int, int], list[_Piece]]()
    for piece in placed:
        begins, ends = (max(bisect_right(began, time) - 1, 0) for time in (piece.first, piece.last))
        if piece.kind == "loop":
            inside.setdefault((begins, ends), []).append(piece)
        else:
            maker = begins if piece.first else None
            pieces.append(MicroPiece(piece.size, begins, ends, maker, piece.kind, piece.offset))
    for (begins, ends), within in inside.items():
        pieces += [MicroPiece(size, begins, ends, begins, "loop", offset) for offset, size in _covered(within)]
    first = model.subgraphs[0]
    last, owned = len(first.operators) - 1, 0
    bodies = set[int]()
    for number, operator in enumerate(first.operators):
        kept = _records(model, first, operator, records) + records["tensor"] * len(operator.outputs)
        copies = _copies(model, first, operator, records)
        for body in _run_by(model, operator, bodies):
            graph = model.subgraphs[body]
            kept += records["tensor"] * len(graph.tensors)
            kept += sum(_records(model, graph, inner, records) for inner in graph.operators)
            copies += sum(_copies(model, graph, inner, records) for inner in graph.operators)
        pieces.append(MicroPiece(kept, 0, last, number, "records"))
        pieces += [MicroPiece(copies, 0, last, number, "copy")] * bool(copies)
        owned += kept
    # The interpreter's own, and those of inputs and constants.
    pieces.append(MicroPiece(arena.records - owned, 0, last, None, "records"))
    return MicroPlan(arena, tuple(pieces))


def _covered(pieces: list[_Piece]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of an arena that pieces cover, which are there one after the other: offset and bytes."""
    start = end = 0
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        if piece.offset > end:
            if end > start:
                yield start, end - start
            start = piece.offset
        end = max(end, piece.offset + piece.size)
    if end > start:
        yield start, end - start


def _planned(model: Any, records: Mapping[str, int]) -> tuple[MicroArena, list[_Piece], list[int]]:
    """Return the arena, what is placed in it, and the times when operators of the first subgraph begin."""
    first = model.subgraphs[0]
    kept = records["base"] + records["border"] * (len(first.inputs) + len(first.outputs))
    copies = 0
    for graph in model.subgraphs:
        kept += records["tensor"] * len(graph.tensors)
        kept += sum(_records(model, graph, operator, records) for operator in graph.operators)
        copies += sum(_copies(model, graph, operator, records) for operator in graph.operators)
    lifetimes = _Lifetimes(model)
    pieces = sorted(lifetimes.pieces(), key=lambda piece: -piece.size)
    known = sum(len(graph.tensors) for graph in model.subgraphs) + len(lifetimes.scratch)
    planning = records["lifetime"] * known + records["placed"] * len(pieces)
    return MicroArena(_placed(pieces), kept, copies, planning), pieces, lifetimes.began


def _records(model: Any, graph: Any, operator: Any, records: Mapping[str, int]) -> int:
    """Return the bytes that the interpreter and a kernel keep of an operator."""
    kind = _kind(model, operator)
    kept = records["operator"] + records.get(kind, 0)
    if kind in _BY_CHANNEL:
        kept += 2 * _aligned(4 * int(graph.tensors[operator.outputs[0]].shape[-1]))
    return kept


def _copies(model: Any, graph: Any, operator: Any, records: Mapping[str, int]) -> int:
    """Return the bytes of the transposed operands that an operator keeps."""
    if _kind(model, operator) != "BATCH_MATMUL":
        return 0
    operands = [graph.tensors[i] for i in operator.inputs if i >= 0]
    options = operator.builtinOptions
    transposed = [operands[0]] * bool(options.adjX) + [operands[1]] * (not options.adjY)
    return sum(_aligned(_nbytes(tensor)) + records["copy"] for tensor in transposed)


def _run_by(model: Any, operator: Any, known: set[int]) -> Iterator[int]:
    """Yield the subgraphs that an operator runs, at any depth, each once; those that are yielded become known."""
    for body in bodies_of(operator).values():
        if body not in known:
            known.add(body)
            yield body
            for inner in model.subgraphs[body].operators:
                yield from _run_by(model, inner, known)


def _placed(pieces: list[_Piece]) -> int:
    """Place pieces, the first first, and return where the last of them ends."""
    placed: list[_Piece] = []
    for piece in pieces:
        for other in placed:
            if other.first > piece.last or piece.first > other.last:
                continue
            if other.offset - piece.offset >= piece.size:
                break
            piece.offset = max(piece.offset, other.offset + other.size)
        placed.append(piece)
        placed.sort(key=lambda other: other.offset)
    return max((piece.offset + piece.size for piece in placed), default=0)


class _Lifetimes:
    """When tensors are alive: time goes on with each operator, and through the subgraphs that one runs."""

    def __init__(self, model: Any) -> None:
        self._model, self._now = model, 0
        self._spans: dict[tuple[int, int], list[int]] = {}
        self.scratch: list[_Piece] = []
        self.began: list[int] = []
        self._walk(0)

    def pieces(self) -> Iterator[_Piece]:
        """Yield what is to be placed, later tensors first, as the planner has them among equals."""
        yield from reversed(self.scratch)
        for (graph, index), (first, last) in sorted(self._spans.items(), reverse=True):
            tensor = self._model.subgraphs[graph].tensors[index]
            data = self._model.buffers[tensor.buffer].data
            if data is None or len(data) == 0:
                yield _Piece(_aligned(_nbytes(tensor)), first, last, "loop" if graph else "tensor")

    def _walk(self, number: int) -> None:
        graph = self._model.subgraphs[number]
        for index in graph.inputs:
            self._use(number, index)
        for operator in graph.operators:
            self._now += 1
            began = self._now
            self.began += [began] * (number == 0)
            for index in operator.outputs:
                self._use(number, index)
            for body in bodies_of(operator).values():
                self._now += 1
                self._walk(body)
            for index in (*operator.inputs, *operator.outputs):
                if index >= 0:
                    self._use(number, index)
            for size in _scratch(self._model, graph, operator):
                self.scratch.append(_Piece(_aligned(size), began, self._now, "loop" if number else "scratch"))
        for index in graph.outputs:
            self._use(number, index)

    def _use(self, graph: int, index: int) -> None:
        self._spans.setdefault((graph, int(index)), [self._now, self._now])[1] = self._now


def _scratch(model: Any, graph: Any, operator: Any) -> list[int]:
    """Return the bytes that an operator asks for while it runs."""
    kind, operands = _kind(model, operator), [graph.tensors[i] for i in operator.inputs if i >= 0]
    if kind in _REDUCTIONS:
        return [4 * len(_shape(operands[0])), _nbytes(operands[1])]
    return [8 * len(operands)] if kind == "ADD_N" else []


def _kind(model: Any, operator: Any) -> str:
    return _NAMES[model.operatorCodes[operator.opcodeIndex].builtinCode]


def _shape(tensor: Any) -> tuple[int, ...]:
    return () if tensor.shape is None else tuple(int(n) for n in tensor.shape)


def _nbytes(tensor: Any) -> int:
    return int(np.prod(_shape(tensor), dtype=np.int64)) * _BYTES.get(tensor.type, 4)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
