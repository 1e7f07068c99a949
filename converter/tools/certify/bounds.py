"""Value bounds of a program's integer inputs, read from what its operators do with them."""

from __future__ import annotations

import mmap

import numpy as np

from converter.program.flatbuffer.operators import FileOperator, OperatorFile
from converter.program.flatbuffer.parts import constant_of
from converter.program.flatbuffer.schema import generated


def index_bounds(data: bytes | mmap.mmap, signature: str) -> dict[str, int]:
    """Return the integer inputs of a signature that end up as indices, and of how many things each chooses one."""
    file = OperatorFile(data)
    for number in range(file.model.SignatureDefsLength()):
        found = file.model.SignatureDefs(number)
        if (found.SignatureKey() or b"").decode() == signature:
            graph = file.model.Subgraphs(found.SubgraphIndex())
            operators = file.operators(found.SubgraphIndex())
            inputs = {
                found.Inputs(i).TensorIndex(): found.Inputs(i).Name().decode() for i in range(found.InputsLength())
            }
            break
    else:
        return {}
    bounds: dict[str, int] = {}
    for index, name in inputs.items():
        if graph.Tensors(index).Type() != generated.TensorType.INT32:
            continue
        reached = {index}
        for operator in operators:
            if not reached.intersection(operator.inputs):
                continue
            if (size := _chosen_from(file.model, graph, operator, reached)) is not None:
                bounds[name] = min(bounds.get(name, size), size)
            whole = (generated.TensorType.INT32, generated.TensorType.BOOL)
            reached |= {i for i in operator.outputs if graph.Tensors(i).Type() in whole}
    return bounds


def _chosen_from(model: object, graph: object, operator: FileOperator, reached: set[int]) -> int | None:
    """Return how many things an operator takes of those that one of its reached operands says."""
    if operator.kind == "GATHER" and operator.inputs[1] in reached:
        options = generated.OperatorT.InitFromObj(operator.table).builtinOptions
        return int(graph.Tensors(operator.inputs[0]).Shape(options.axis))  # type: ignore[attr-defined]
    if operator.kind == "ONE_HOT" and operator.inputs[0] in reached:
        depth = constant_of(model, graph, operator.inputs[1])
        return int(depth.view(np.int32)[0]) if depth.size else None
    return None
