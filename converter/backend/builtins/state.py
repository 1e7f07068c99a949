"""State builtins: variables that signatures share by name, and calls of other subgraphs.

They act on the interpreter, so they have no NumPy meaning: a graph that holds them is not evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.backend.builtins.base import Builtin, Delegated, SubgraphName, Types
from converter.ir.op import Cost, ShapeError
from converter.ir.types import FLOAT32, TensorType

#: A resource handle, which names a variable and holds no data.
HANDLE = TensorType((1,), np.dtype(object))


@dataclass(frozen=True)
class VarHandle(Builtin):
    """() -> handle of the variable of that name. One per variable and subgraph: see lowering.md, fact 10."""

    code, table = "VAR_HANDLE", "VarHandleOptions"
    kinds = "Ofib"
    variable: str

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return Delegated()

    def result(self, *types: TensorType) -> TensorType:
        return HANDLE

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost()

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Container": "", "SharedName": self.variable}


@dataclass(frozen=True)
class ReadVariable(Builtin):
    """(handle) -> the value the variable has when the operator runs. The type must be the variable's own."""

    code, table = "READ_VARIABLE", "ReadVariableOptions"
    kinds = "Ofib"
    type: TensorType

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return Delegated(in_place=True, copies=True) if self.type.dtype == FLOAT32 else None

    def result(self, *types: TensorType) -> TensorType:
        if types != (HANDLE,):
            raise ShapeError(f"ReadVariable: wants a handle, got {', '.join(map(str, types))}")
        return self.type

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost()  # XNNPACK hands out the variable's own memory


class AssignVariable(Builtin):
    """(handle, value) -> (); the variable holds the value from here on."""

    code, table = "ASSIGN_VARIABLE", "AssignVariableOptions"
    kinds = "Ofib"

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return Delegated(copies=True) if inputs[1].dtype == FLOAT32 else None

    def result(self, *types: TensorType) -> Types:
        if len(types) != 2 or types[0] != HANDLE or types[1] == HANDLE:
            raise ShapeError(f"AssignVariable: wants a handle and a value, got {', '.join(map(str, types))}")
        return ()

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, 2 * inputs[1].nbytes)


@dataclass(frozen=True)
class CallOnce(Builtin):
    """() -> (); runs the subgraph of that name the first time this operator runs in the interpreter's life."""

    code, table = "CALL_ONCE", "CallOnceOptions"
    subgraph: str

    def result(self, *types: TensorType) -> Types:
        return ()

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost()

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"InitSubgraphIndex": SubgraphName(self.subgraph)}
