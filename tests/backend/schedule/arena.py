"""The arena that the stock interpreter really allocates for a program's training step."""

from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.backend.stock import interpreter

#: Tensors further apart than this lie in different blocks of memory.
GAP = 1 << 12
#: What the allocator happens to put right beside the arena looks like a part of it, and can only add. An interpreter
#: takes other memory each time, as those before it are still there.
MEASUREMENTS = 5


def interpreter_arena(model: bytes) -> int:
    """Bytes of the arena: the least of several measurements."""
    runtimes = [interpreter(model, xnnpack=False) for _ in range(MEASUREMENTS)]
    return min(_measured(model, runtime) for runtime in runtimes)


def _measured(model: bytes, runtime: Any) -> int:
    """Bytes from the first to the last tensor that the interpreter's own kernels share: the largest such block.

    Constants lie in the file and variables in buffers of their own; what remains is the arena, with the kernels'
    temporary tensors in it. A temporary tensor that shares its memory with no other is not in the arena: kernels keep
    some for good (TRANSPOSE_CONV its filter), and the allocator may put those right beside it. The pointers are those
    of the interpreter's tensors, which only its private wrapper shows.
    """
    runtime.allocate_tensors()
    private = runtime._interpreter
    made = {int(i) for node in range(private.NumNodes()) for i in private.NodeOutputs(node)}
    in_file = schema.Model.GetRootAs(model).Subgraphs(0).TensorsLength()
    shared, temporaries = [], []
    for detail in runtime.get_tensor_details():
        index = detail["index"]
        temporary = index >= in_file and detail["dtype"] in (np.float32, np.int8)
        if not temporary and index not in made and index not in private.InputIndices():
            continue
        if detail["dtype"] is np.object_:  # the handle of a variable, on the heap: at times right beside the arena
            continue
        try:
            tensor: np.ndarray = private.tensor(runtime, index)
        except ValueError:  # no data: a resource, or not in use
            continue
        start = tensor.__array_interface__["data"][0]
        (temporaries if temporary else shared).append((start, start + tensor.nbytes))
    pieces = shared + [
        (start, end)
        for k, (start, end) in enumerate(temporaries)
        if any(first < end and start < last for first, last in shared + temporaries[:k] + temporaries[k + 1 :])
    ]
    blocks: list[list[int]] = []
    for start, end in sorted(pieces):
        if blocks and start <= blocks[-1][1] + GAP:
            blocks[-1][1] = max(blocks[-1][1], end)
        else:
            blocks.append([start, end])
    return max(end - start for start, end in blocks)
