"""Mutated TFLite files, and processes that read them: none may crash, hang, or take more memory than it is allowed.

    python -m tests.tflite_frontend.mutated FILE... --cases 100000 --from 0

A case is a number, from which the file and what is changed of it follow. What went wrong is printed with its number; a
number alone (`--cases 1 --from N`) does it again.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

import pocketune
import tflite_frontend
from converter.support.errors import PocketuneError

#: What reading a file may take.
SECONDS, BYTES = 30, 1 << 30
#: Numbers that programs forget.
_NUMBERS = (0, 1, -1, 2, 3, 5, 7, 8, 127, 128, -128, 255, 256, 4095, 65536, 2**31 - 1, -(2**31), 2**30, 10**6, 10**9)
_SCALES = (0.0, -1.0, float("nan"), float("inf"), 1e-45, 1e38, 1.0, 0.5)
#: What becomes of a case: refused with a sentence, read, built to a program, or anything else.
_COUNTED = ("refused", "read", "built", "wrong")
#: Cases of one process, before another takes its place.
_BATCH = 200
#: Of so many cases one builds a whole program, which runs the file's operators.
_BUILT = 60


def mutated(data: bytes, seed: int) -> bytes:
    """Return a file with one to four changes: of bytes, or of what its tables say."""
    rng = random.Random(seed)
    if rng.random() < 0.3:
        return _bytes_changed(data, rng)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    for _ in range(rng.randint(1, 4)):
        rng.choice(_CHANGES)(model, rng)
    builder = flatbuffers.Builder(len(data))
    try:
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except (struct.error, TypeError, ValueError, AttributeError, OverflowError, AssertionError):
        return _bytes_changed(data, rng)  # what no table can say
    return bytes(builder.Output())


def _bytes_changed(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(0, len(changed) - 4)
        if rng.random() < 0.7:
            at -= at % 4
        changed[at : at + 4] = struct.pack("<i", rng.choice((*_NUMBERS, at, -at, rng.randrange(len(changed)))))
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


_CHANGES: tuple[Callable[[Any, random.Random], None], ...] = (
    *(_shape, _shape, _type, _variable, _buffer, _offset, _content, _content, _content, _length, _operand, _operand),
    *(_order, _code, _option, _option, _no_options, _scales, _scales, _fed, _called, _sparsity, _signature),
)


def read(path: Path, seed: int) -> str:
    """Read a file as `build` does, and now and then build it; return what came of it, in a word."""
    rng = random.Random(seed + 1)
    rows = rng.choice((1, 2))
    model = tflite_frontend.Model(path, classes=rng.choice((None, 3)))
    try:
        if seed % _BUILT:
            model.graph(rows)
            return "read"
        pocketune.build(model, loss="mse" if model.classes is None else None, batch=rows, update="head", check=False)
        return "built"
    except PocketuneError:
        return "refused"


class _TooLong(BaseException):
    pass


def _late(*_: Any) -> None:
    raise _TooLong


def work(files: Sequence[bytes], first: int, cases: int, folder: Path, at: mmap.mmap) -> None:
    """Read cases in this process; `at` says which one it is at, and how many were refused, read and built."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (4 * BYTES, 4 * BYTES))
    signal.signal(signal.SIGALRM, _late)
    path, before = folder / "case.tflite", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts = dict.fromkeys(_COUNTED, 0)
    for number in range(first, first + cases):
        data = mutated(files[number % len(files)], number)
        path.write_bytes(data)
        started = time.perf_counter()
        signal.alarm(2 * SECONDS)
        wrong = ""
        try:
            counts[read(path, number)] += 1
        except _TooLong:
            wrong = f"over {2 * SECONDS} s"
        except MemoryError:
            wrong = "memory"
        except Exception:
            wrong = "".join(traceback.format_exc().splitlines(keepends=True)[-6:])
        signal.alarm(0)
        took, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if took > SECONDS and not wrong:
            wrong = f"{took:.0f} s"
        if (peak - before) << 10 > BYTES and not wrong:
            wrong = f"{(peak - before) >> 10} MiB"
        if wrong:
            print(f"case {number}, file {number % len(files)}: {wrong}", flush=True)
            counts["wrong"] += 1
            before = max(before, peak)
        at[:40] = struct.pack("<5q", number + 1, *counts.values())


def main() -> int:
    """Read all cases; return how many went wrong, 1 at most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    args = parser.parse_args()
    files, at = [path.read_bytes() for path in args.files], mmap.mmap(-1, 64)
    number, last, dead, total = args.first, args.first + args.cases, 0, [0] * len(_COUNTED)
    with tempfile.TemporaryDirectory() as folder:
        while number < last:
            at[:40] = struct.pack("<5q", number, 0, 0, 0, 0)
            sys.stdout.flush()
            child = os.fork()
            if not child:
                try:
                    work(files, number, min(_BATCH, last - number), Path(folder), at)
                finally:
                    os._exit(0)
            _, status = os.waitpid(child, 0)
            reached, *counts = struct.unpack("<5q", at[:40])
            total = [a + b for a, b in zip(total, counts, strict=True)]
            if reached < min(number + _BATCH, last):
                print(f"case {reached}, file {reached % len(files)}: the process ended with {status}", flush=True)
                dead, reached = dead + 1, reached + 1
            number = reached
    counts = dict(zip(_COUNTED, total, strict=True))
    print(counts, f"{dead} processes died")
    return int(dead > 0 or counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
