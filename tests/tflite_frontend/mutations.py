"""Changes of TFLite files, as a fuzzer makes them: of bytes, and of what the tables say."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

#: Numbers that programs forget.
_NUMBERS = (0, 1, -1, 2, 3, 5, 7, 8, 127, 128, -128, 255, 256, 4095, 65536, 2**31 - 1, -(2**31), 2**30, 10**6, 10**9)
_SCALES = (0.0, -1.0, float("nan"), float("inf"), 1e-45, 1e38, 1.0, 0.5)


def mutated(data: bytes, seed: int) -> bytes:
    """Return a file with one to six changes: of bytes, of its flatbuffer's own numbers, or of what its tables say."""
    rng = random.Random(seed)
    what = rng.random()
    if what < 0.1:
        return _words_changed(data, rng, np.arange(0, len(data) - 4, 4))
    if what < 0.35:
        return _words_changed(data, rng, _structure(data))
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        rng.choice(_CHANGES)(model, rng)
    builder = flatbuffers.Builder(len(data))
    try:
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except (struct.error, TypeError, ValueError, AttributeError, OverflowError, AssertionError):
        return _words_changed(data, rng, _structure(data))  # what no table can say
    return bytes(builder.Output()) + data[_end(data) :]


@lru_cache(64)
def _structure(data: bytes) -> np.ndarray:
    """Return the places of words that are no data of constants: offsets, vtables, lengths, sizes, names."""
    model = schema.Model.GetRootAs(data, 0)
    is_data = np.zeros(len(data), np.bool_)
    for i in range(model.BuffersLength()):
        array = model.Buffers(i).DataAsNumpy()
        if isinstance(array, np.ndarray):
            start = array.ctypes.data - np.frombuffer(data, np.uint8).ctypes.data
            is_data[start : start + array.size] = True
    places = np.arange(0, len(data) - 4, 4)
    return places[~is_data[places]]


@lru_cache(64)
def _end(data: bytes) -> int:
    """Return where the flatbuffer ends and an archive of appended files begins."""
    start = data.find(b"PK\3\4")
    return len(data) if start < 0 or not data.endswith(b"\0\0") else start


def _words_changed(data: bytes, rng: random.Random, places: np.ndarray) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = int(rng.choice(places)) if rng.random() < 0.8 else rng.randrange(len(data) - 4)
        back = rng.choice(places)  # an offset that goes round in circles, or into another table
        number = rng.choice((*_NUMBERS, at, -at, rng.randrange(len(data)), int(back - at), int(back - at)))
        if rng.random() < 0.2:
            changed[at : at + 2] = struct.pack("<H", number % 65536)
        else:
            changed[at : at + 4] = struct.pack("<I", number % 2**32)
    return bytes(changed[: len(changed) if rng.random() < 0.9 else rng.randrange(8, len(changed))])


def _graph(model: Any, rng: random.Random) -> Any:
    return model.subgraphs[0] if rng.random() < 0.9 else rng.choice(model.subgraphs)


def _number_of(graph: Any, rng: random.Random) -> int:
    return rng.randrange(len(graph.tensors)) if rng.random() < 0.9 else rng.choice(_NUMBERS)


def _shape(model: Any, rng: random.Random) -> None:
    tensor = rng.choice(_graph(model, rng).tensors)
    shape = [] if tensor.shape is None else [int(n) for n in tensor.shape]
    what = rng.random()
    if what < 0.6 and shape:
        shape[rng.randrange(len(shape))] = rng.choice((*_NUMBERS, *shape))
    elif what < 0.8:
        shape.insert(rng.randint(0, len(shape)), rng.choice((1, 1, *_NUMBERS)))
    elif shape:
        shape.pop(rng.randrange(len(shape)))
    tensor.shape = np.array(shape, np.int32)
    if rng.random() < 0.3:
        tensor.shapeSignature = np.array([n if rng.random() < 0.7 else -1 for n in shape], np.int32)


def _type(model: Any, rng: random.Random) -> None:
    rng.choice(_graph(model, rng).tensors).type = rng.randrange(0, 20)


def _variable(model: Any, rng: random.Random) -> None:
    rng.choice(_graph(model, rng).tensors).isVariable = True


def _buffer(model: Any, rng: random.Random) -> None:
    tensor = rng.choice(_graph(model, rng).tensors)
    tensor.buffer = rng.randrange(len(model.buffers)) if rng.random() < 0.8 else abs(rng.choice(_NUMBERS))


def _offset(model: Any, rng: random.Random) -> None:
    """Data outside of the flatbuffer, of 64-bit places and sizes."""
    buffer = rng.choice(model.buffers)
    buffer.offset, buffer.size = (rng.choice((2, 100, 2**32, 2**63, 2**64 - 1)) for _ in range(2))
    if rng.random() < 0.5:
        buffer.data = None


def _content(model: Any, rng: random.Random) -> None:
    """Numbers of a small constant: axes, shapes, places."""
    small = [b for b in model.buffers if b.data is not None and 4 <= len(b.data) <= 64]
    if small:
        buffer = rng.choice(small)
        data = np.array(buffer.data, np.uint8)
        numbers = data[: data.size // 4 * 4].view(np.int32).copy()
        numbers[rng.randrange(numbers.size)] = rng.choice(_NUMBERS)
        buffer.data = np.concatenate([numbers.view(np.uint8), data[numbers.size * 4 :]])


def _length(model: Any, rng: random.Random) -> None:
    full = [b for b in model.buffers if b.data is not None and len(b.data)]
    if full:
        buffer = rng.choice(full)
        data = np.array(buffer.data, np.uint8)
        buffer.data = data[: rng.randrange(len(data))] if rng.random() < 0.7 else np.tile(data, 2)


def _operand(model: Any, rng: random.Random) -> None:
    """An operand or result is another tensor, which may be one that is made later; or there are more or fewer."""
    graph = _graph(model, rng)
    if not graph.operators:
        return
    operator = rng.choice(graph.operators)
    side = "inputs" if rng.random() < 0.6 else "outputs"
    numbers = [] if getattr(operator, side) is None else [int(n) for n in getattr(operator, side)]
    what = rng.random()
    if what < 0.6 and numbers:
        numbers[rng.randrange(len(numbers))] = _number_of(graph, rng)
    elif what < 0.8 and numbers:
        numbers.pop(rng.randrange(len(numbers)))
    else:
        numbers.insert(rng.randint(0, len(numbers)), _number_of(graph, rng))
    setattr(operator, side, np.array(numbers, np.int32))


def _order(model: Any, rng: random.Random) -> None:
    operators = _graph(model, rng).operators
    what = rng.random()
    if len(operators) < 2:
        return
    first, second = (rng.randrange(len(operators)) for _ in range(2))
    if what < 0.4:
        operators[first], operators[second] = operators[second], operators[first]
    elif what < 0.7:
        operators.pop(first)
    else:
        operators.insert(first, operators[second])


def _code(model: Any, rng: random.Random) -> None:
    code = rng.choice(model.operatorCodes)
    code.builtinCode = rng.randrange(0, 210)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    if rng.random() < 0.2:
        code.customCode, code.builtinCode, code.deprecatedBuiltinCode = b"Evil", 32, 32
    if rng.random() < 0.2:
        code.version = rng.choice(_NUMBERS)


def _option(model: Any, rng: random.Random) -> None:
    with_options = [o for g in model.subgraphs for o in g.operators if o.builtinOptions or o.builtinOptions2]
    if not with_options:
        return
    options = (lambda o: o.builtinOptions or o.builtinOptions2)(rng.choice(with_options))
    fields = [name for name, value in vars(options).items() if isinstance(value, int | float | np.ndarray)]
    if fields:
        name = rng.choice(fields)
        value = getattr(options, name)
        number = rng.choice(_NUMBERS)
        setattr(options, name, np.array([number], np.int32) if isinstance(value, np.ndarray) else type(value)(number))


def _no_options(model: Any, rng: random.Random) -> None:
    operator = rng.choice([o for g in model.subgraphs for o in g.operators])
    operator.builtinOptions, operator.builtinOptionsType = None, rng.randrange(0, 120)


def _scales(model: Any, rng: random.Random) -> None:
    tensor = rng.choice(_graph(model, rng).tensors)
    said = tensor.quantization = tensor.quantization or schema.QuantizationParametersT()
    many = rng.choice((1, 1, 2, 3, 16, 1000))
    said.scale = np.array([rng.choice(_SCALES) for _ in range(many)], np.float32)
    zeros = rng.choice((0, 1, many, many))
    said.zeroPoint = np.array([rng.choice((0, 0, -128, 127, 128, 2**40)) for _ in range(zeros)], np.int64)
    said.quantizedDimension = rng.choice((0, 0, 1, 3, *_NUMBERS))


def _fed(model: Any, rng: random.Random) -> None:
    graph, side = _graph(model, rng), rng.choice(("inputs", "outputs"))
    numbers = [] if getattr(graph, side) is None else [int(n) for n in getattr(graph, side)]
    if numbers and rng.random() < 0.7:
        numbers[rng.randrange(len(numbers))] = _number_of(graph, rng)
    else:
        numbers.append(_number_of(graph, rng))
    setattr(graph, side, np.array(numbers, np.int32))


def _called(model: Any, rng: random.Random) -> None:
    """A loop, a branch or a call of a subgraph that is missing, or of itself."""
    operators = [o for g in model.subgraphs for o in g.operators]
    operator = rng.choice(operators)
    name, fields = rng.choice(
        [
            ("WhileOptions", ("condSubgraphIndex", "bodySubgraphIndex")),
            ("IfOptions", ("thenSubgraphIndex", "elseSubgraphIndex")),
            ("CallOnceOptions", ("initSubgraphIndex",)),
            ("CallOptions", ("subgraph",)),
        ]
    )
    operator.builtinOptionsType, options = getattr(schema.BuiltinOptions, name), getattr(schema, f"{name}T")()
    for field in fields:
        setattr(options, field, rng.choice((0, 0, 1, len(model.subgraphs) - 1, *_NUMBERS)))
    operator.builtinOptions = options
    code = schema.OperatorCodeT()
    kind = {"WhileOptions": "WHILE", "IfOptions": "IF", "CallOnceOptions": "CALL_ONCE", "CallOptions": "CALL"}[name]
    code.builtinCode = getattr(schema.BuiltinOperator, kind)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
    model.operatorCodes.append(code)
    operator.opcodeIndex = len(model.operatorCodes) - 1


def _sparsity(model: Any, rng: random.Random) -> None:
    constant = [t for t in model.subgraphs[0].tensors if 0 < t.buffer < len(model.buffers)]
    if not constant:
        return
    tensor = rng.choice(constant)
    said = tensor.sparsity = tensor.sparsity or schema.SparsityParametersT()
    rank = 0 if tensor.shape is None else len(tensor.shape)
    said.traversalOrder = np.array([rng.choice((i, i, i, *_NUMBERS)) for i in range(rank)], np.int32)
    said.dimMetadata = []
    for _ in range(rank):
        level = schema.DimensionMetadataT()
        level.format, level.denseSize = rng.randrange(2), rng.choice(_NUMBERS)
        for part in ("arraySegments", "arrayIndices"):
            vector = schema.Int32VectorT()
            vector.values = np.array([rng.choice(_NUMBERS) for _ in range(rng.randrange(4))], np.int32)
            setattr(level, part, vector)
            setattr(level, f"{part}Type", schema.SparseIndexVector.Int32Vector)
        said.dimMetadata.append(level)


def _signature(model: Any, rng: random.Random) -> None:
    for signature in model.signatureDefs or []:
        signature.subgraphIndex = rng.choice((0, 1, len(model.subgraphs), *map(abs, _NUMBERS)))
        for entry in signature.inputs or []:
            entry.tensorIndex = abs(rng.choice(_NUMBERS))


def _repeated(model: Any, rng: random.Random) -> None:
    """Operators, tensors or subgraphs many times."""
    graph, times = _graph(model, rng), rng.choice((2, 10, 100))
    kind = rng.choice(("operators", "tensors", "subgraphs", "buffers"))
    if kind == "operators":
        graph.operators = graph.operators * times
    elif kind == "tensors":
        graph.tensors = graph.tensors + [rng.choice(graph.tensors)] * times
    elif kind == "subgraphs":
        model.subgraphs = model.subgraphs + [graph] * min(times, 10)
    else:
        model.buffers = model.buffers + [model.buffers[0]] * times


def _described(model: Any, rng: random.Random) -> None:
    """Numbers of the TFLite Metadata."""
    for entry in model.metadata or []:
        data = model.buffers[entry.buffer].data if entry.buffer < len(model.buffers) else None
        if data is not None and len(data) > 8:
            changed = np.array(data, np.uint8)
            at = rng.randrange(0, len(changed) - 4, 4)
            changed[at : at + 4] = np.frombuffer(struct.pack("<I", rng.choice((*_NUMBERS, at, -at)) % 2**32), np.uint8)
            model.buffers[entry.buffer].data = changed
        if rng.random() < 0.2:
            entry.buffer = abs(rng.choice(_NUMBERS))


def _all_rows(model: Any, rng: random.Random) -> None:
    """All tensors of one row are of many, or of a size that no kernel counts in 32 bits."""
    many = rng.choice((2, 1000, 65536, 2**20, 2**30))
    for tensor in _graph(model, rng).tensors:
        if tensor.shape is not None and len(tensor.shape) > 1 and tensor.shape[0] == 1:
            tensor.shape = np.array([many, *tensor.shape[1:]], np.int32)


def _wide(model: Any, rng: random.Random) -> None:
    """An input and all that has its sizes is larger."""
    graph = _graph(model, rng)
    sizes = [int(n) for t in graph.tensors if t.shape is not None for n in t.shape if n > 1]
    if sizes:
        old, new = rng.choice(sizes), rng.choice((1, 2, 100, 4096, 65536, 2**20))
        for tensor in graph.tensors:
            if tensor.shape is not None and not (tensor.buffer < len(model.buffers) and _full(model, tensor)):
                tensor.shape = np.array([new if n == old else n for n in tensor.shape], np.int32)


def _full(model: Any, tensor: Any) -> bool:
    data = model.buffers[tensor.buffer].data
    return data is not None and len(data) > 0


_CHANGES: tuple[Callable[[Any, random.Random], None], ...] = (
    *(_shape, _shape, _type, _variable, _buffer, _offset, _content, _content, _content, _length, _operand, _operand),
    *(_order, _code, _option, _option, _no_options, _scales, _scales, _fed, _called, _sparsity, _signature),
    *(_repeated, _described, _all_rows, _wide, _wide),
)
