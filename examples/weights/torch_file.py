"""Weights from a PyTorch file of the kind before 1.6, read as data: nothing is unpickled, nothing it names is called.

Such a file is four pickles (a magic number, the version, the machine's sizes, the state dictionary), a fifth with the
keys of the storages, and the storages. Of pickle's instructions only those are understood that describe tensors.
"""

from __future__ import annotations

import io
import pickletools
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pocketune import UsageError

_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_DTYPES: dict[object, np.dtype] = {"torch FloatStorage": np.dtype("<f4"), "torch LongStorage": np.dtype("<i8")}
_MARK = object()


class _Global(NamedTuple):
    """A name in the file, `module name`. It stays a name."""

    name: str


class _Storage(NamedTuple):
    """Numbers of one type at the end of the file, under a key."""

    key: str
    dtype: np.dtype
    size: int


class _View(NamedTuple):
    """A tensor: where its numbers lie in a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dictionary by name.

    Raises:
        UsageError: the file is of another kind, damaged, or holds anything but tensors.
    """
    file = io.BytesIO(path.read_bytes())
    try:
        if _described(file) != _MAGIC or _described(file) != _VERSION or not _described(file)["little_endian"]:
            raise ValueError("it is not in PyTorch's format of before 1.6")
        views, keys = _described(file), _described(file)
        odd = [name for name, view in views.items() if not isinstance(view, _View)]
        if odd:
            raise ValueError(f"{odd[0]} is no tensor")
        storages = _storages(file, keys, {view.storage.key: view.storage for view in views.values()})
        return {name: _tensor(name, view, storages[view.storage.key]) for name, view in views.items()}
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error) as error:
        raise UsageError(f"{path}: no readable file of weights: {error}") from error


def _described(file: io.BytesIO) -> Any:
    """What the next pickle of the file describes."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for instruction, argument, _ in pickletools.genops(file):
        match instruction.name:
            case "PROTO":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                stack.append(_MARK)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[instruction.name])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE":
                stack.append(argument)
            case "GLOBAL":
                stack.append(_Global(str(argument)))
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "TUPLE":
                stack.append(tuple(_to_mark(stack)))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(instruction.name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "APPEND":
                value = stack.pop()
                stack[-1].append(value)
            case "APPENDS":
                items = _to_mark(stack)
                stack[-1].extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, value])
            case "SETITEMS":
                items = _to_mark(stack)
                _set(stack[-1], items)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_made(function, arguments))
            case "BUILD":
                stack.pop()  # attributes of the dictionary: notes on PyTorch's modules
            case name:
                raise ValueError(f"it uses {name}, which no tensor needs")
    raise ValueError("it ends in the middle")


def _to_mark(stack: list[Any]) -> list[Any]:
    """Takes what lies above the last mark, and the mark."""
    place = next(i for i in reversed(range(-1, len(stack))) if i < 0 or stack[i] is _MARK)
    if place < 0:
        raise ValueError("its instructions do not fit together")
    items = stack[place + 1 :]
    del stack[place:]
    return items


def _set(table: dict[str, Any], items: list[Any]) -> None:
    keys = items[::2]
    if not all(isinstance(key, str) for key in keys):
        raise ValueError("a key of a dictionary is no string")
    table.update(zip(keys, items[1::2], strict=True))


def _storage(described: Any) -> _Storage:
    match described:
        case ("storage", _Global(kind), str(key), str(), int(size), None) if kind in _DTYPES:
            return _Storage(key, _DTYPES[kind], size)
    raise ValueError("it has a storage of an unknown kind")


def _made(function: Any, arguments: Any) -> Any:
    """What calling a name would make, for the two names that state dictionaries have."""
    match function, arguments:
        case _Global("collections OrderedDict"), ():
            return {}
        case _Global("torch._utils _rebuild_tensor_v2"), (
            _Storage() as of,
            int(offset),
            tuple(shape),
            tuple(steps),
            *_,
        ):
            return _View(of, offset, shape, steps)
        case _Global(name), _:
            raise ValueError(f"it calls {name}, which is no tensor")
    raise ValueError("it calls what is no function")


def _storages(file: io.BytesIO, keys: list[str], described: dict[str, _Storage]) -> dict[str, np.ndarray]:
    """The storages, which follow in the order of their keys: the count of their numbers, then these."""
    storages = {}
    for key in keys:
        dtype = described[key].dtype
        (size,) = struct.unpack("<Q", file.read(8))
        data = file.read(size * dtype.itemsize) if size == described[key].size else b""
        if len(data) != size * dtype.itemsize:
            raise ValueError(f"storage {key} is not as large as it claims")
        storages[key] = np.frombuffer(data, dtype)
    return storages


def _tensor(name: str, view: _View, storage: np.ndarray) -> np.ndarray:
    numbers = (view.offset, *view.shape, *view.strides)
    if len(view.shape) != len(view.strides) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"{name} has no shape")
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    if 0 in view.shape or last >= len(storage) or np.prod(view.shape, dtype=object) > len(storage):
        raise ValueError(f"{name} lies outside of its storage")
    strides = [stride * storage.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(storage[view.offset :], view.shape, strides, writeable=False).copy()
