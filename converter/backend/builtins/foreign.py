"""Operators copied unchanged from another file: code, version, options and quantization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from converter.backend.builtins.base import Builtin, Delegated, Types
from converter.backend.builtins.quantized import as_real
from converter.ir.graph import Graph
from converter.ir.op import Cost
from converter.ir.ops.stored import in_parts
from converter.ir.row_dependence import Rows
from converter.ir.types import Shape, TensorType


@dataclass(frozen=True)
class Carried(Builtin):
    """An operator whose meaning is that of the stock runtime.

    Attributes:
        kind: the builtin's name, or that of a custom operator.
        number: its place in the file.
        file_version: the version that the file asks for.
        said: its options as text, which tells operators apart.
        types: of its results.
        places: for each operand of the file the place among the node's operands; -1 for one that is left out.
        rows: of the batch.
        custom: whether the runtime knows it by name alone.
        written: its table in the file (`OperatorT`), from which the options are written.
        run: the stock interpreter on this operator alone.
        twin: a builtin of the same shapes on real numbers, by which it is priced; None where there is none.
        parts: the subgraphs that it runs, in the order of the fields of its options.
        signatures: of each result its shape with -1 where the data says how long an axis is; () for one of fixed shape.
    """

    folds = False
    kind: str
    number: int
    file_version: int
    said: str = field(repr=False)
    types: Types
    places: tuple[int, ...]
    rows: int
    custom: bool = False
    written: Any = field(default=None, repr=False, compare=False)
    run: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    twin: Builtin | None = field(default=None, repr=False)
    parts: tuple[Graph, ...] = field(default=(), repr=False)
    signatures: tuple[Shape, ...] = field(default=(), repr=False)

    @property
    def code(self) -> str:  # type: ignore[override]
        """That of the file."""
        return self.kind

    @property
    def product(self) -> str:  # type: ignore[override]
        """As its twin's."""
        return "" if self.twin is None else self.twin.product

    @property
    def keeps_data(self) -> bool:  # type: ignore[override]
        """As its twin's."""
        return self.twin is not None and self.twin.keeps_data

    @property
    def moved(self) -> str:  # type: ignore[override]
        """As its twin's."""
        return "" if self.twin is None else self.twin.moved

    def bodies(self) -> tuple[Graph, ...]:
        return self.parts

    def with_bodies(self, *bodies: Graph) -> Carried:
        return replace(self, parts=bodies)

    def infer(self, *types: TensorType) -> TensorType | Types:
        return self.types if len(self.types) != 1 else self.types[0]

    def evaluate(self, *arrays: np.ndarray) -> Any:
        assert self.run is not None
        return self.run(self, arrays)

    def batch_rows(self, inputs: Types, *operands: Rows) -> Rows | tuple[Rows, ...]:
        """A part of the first axis for each row; what is read so is compared with the file row by row."""
        made = tuple(in_parts(t, self.rows) for t in self.types)
        return made if len(made) != 1 else made[0]

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        moved = sum(t.nbytes for t in (*inputs, *outputs))
        if self.twin is None:
            return Cost(sum(t.size for t in outputs), moved)
        return replace(self.twin.cost(tuple(map(as_real, inputs)), tuple(map(as_real, outputs))), bytes=moved)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        """As the twin, of whose constants integers take a quarter."""
        if self.twin is None:
            return None
        run = self.twin.delegated(tuple(map(as_real, inputs)), tuple(map(as_real, outputs)), constant, lanes)
        return run and replace(run, packed=run.packed // 4)

    def in_place(self) -> tuple[int, ...]:
        return () if self.twin is None else self.twin.in_place()

    def scratch(self, inputs: Types, outputs: Types) -> tuple[int, ...]:
        return () if self.twin is None else self.twin.scratch(inputs, outputs)

    def assemble(self, inputs: tuple[Any, ...], constants: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(-1 if place < 0 else inputs[place] for place in self.places)

    def version(self, inputs: Types, outputs: Types) -> int:
        return self.file_version
