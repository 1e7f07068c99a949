"""The process of TensorFlow Lite Micro, which ends it where a file is not to its liking."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tflite_micro.python.tflite_micro.runtime import Interpreter

from converter.program.flatbuffer.parts import bodies_of
from converter.program.flatbuffer.schema import generated
from converter.runtime.engines.work import Arrays, serve

#: Bytes of an arena beside twice all tensors: what is not touched takes no memory of this machine.
_ROOM, _EACH = 1 << 20, 4096


class Loaded:
    """A signature in an interpreter; it must be the first subgraph, which is all that the interpreter invokes."""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        data = path.read_bytes()
        model = generated.ModelT.InitFromPackedBuf(data, 0)
        (signature,) = model.signatureDefs
        graph = model.subgraphs[signature.subgraphIndex]
        if signature.subgraphIndex != 0:
            raise RuntimeError("only the first subgraph of a file is invoked")
        if unreached := len(model.subgraphs) - len(_reached(model)):
            # The interpreter plans no memory for what reductions need there, and ends the process.
            raise RuntimeError(f"{unreached} subgraphs of the file are not run by the first")
        places = {tensor: number for number, tensor in enumerate(graph.inputs)}
        given = {tensor: number for number, tensor in enumerate(graph.outputs)}
        self._inputs = {
            m.name.decode(): (places[m.tensorIndex], graph.tensors[m.tensorIndex]) for m in signature.inputs
        }
        self._outputs = {
            m.name.decode(): (given[m.tensorIndex], graph.tensors[m.tensorIndex]) for m in signature.outputs
        }
        # Kernels write where they get no room for what they keep, and the process ends: so it has more than enough.
        self._interpreter = Interpreter.from_bytes(data, arena_size=_enough(model))
        self._interpreter.print_allocations()

    def said(self, log: str) -> dict[str, Any]:
        found = re.findall(r"Arena allocation total (\d+) bytes", log)
        return {"whole": True, "driver": "reference kernels", "arena": int(found[-1]) if found else None}

    def __call__(self, signature: str, feed: Arrays) -> Arrays:
        for name, (place, tensor) in self._inputs.items():
            self._interpreter.set_input(np.ascontiguousarray(feed[name]).reshape(_shape(tensor)), place)
        self._interpreter.invoke()
        return {
            name: np.array(self._interpreter.get_output(place)).reshape(_shape(tensor))
            for name, (place, tensor) in self._outputs.items()
        }


def _reached(model: Any) -> set[int]:
    """Return the subgraphs that the first runs, itself among them."""
    found = [0]
    for number in found:  # grows as bodies are found
        for operator in model.subgraphs[number].operators:
            found += [body for body in bodies_of(operator).values() if body not in found]
    return set(found)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in tensor.shape) if tensor.shape is not None else ()


def _enough(model: Any) -> int:
    """Return bytes of an arena in which any order of the operators fits."""
    tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
    nodes = sum(len(graph.operators) for graph in model.subgraphs)
    return sum(2 * 8 * int(np.prod(_shape(t), dtype=np.int64)) + _EACH for t in tensors) + _EACH * nodes + _ROOM


if __name__ == "__main__":
    serve(Loaded)
