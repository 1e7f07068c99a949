"""The process of Android's TFLite, through its C API."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converter.runtime.engines.work import Arrays, serve

#: By TfLiteType.
_DTYPES = {1: np.float32, 2: np.int32, 3: np.uint8, 4: np.int64, 6: np.bool_, 9: np.int8}


class _Xnnpack(ctypes.Structure):
    """Options of the delegate: the first is the number of threads. Larger than the library's own, which it fills."""

    _fields_ = (("threads", ctypes.c_int32), ("more", ctypes.c_char * 252))


class _Model:
    """A program in an interpreter with XNNPACK, as an app has it on one thread."""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._tflite = _loaded(Path(options["libraries"]), options["library"])
        model = self._pointer("TfLiteModelCreateFromFile", os.fsencode(path))
        settings = self._pointer("TfLiteInterpreterOptionsCreate")
        self._call("TfLiteInterpreterOptionsSetNumThreads", settings, ctypes.c_int32(1))
        self._tflite.TfLiteXNNPackDelegateOptionsDefault.restype = _Xnnpack
        self._xnnpack = self._tflite.TfLiteXNNPackDelegateOptionsDefault()
        self._xnnpack.threads = 1
        delegate = self._pointer("TfLiteXNNPackDelegateCreate", ctypes.byref(self._xnnpack))
        self._call("TfLiteInterpreterOptionsAddDelegate", settings, delegate)
        self._interpreter = self._pointer("TfLiteInterpreterCreate", model, settings)
        self._runners: dict[str, ctypes.c_void_p] = {}

    def said(self, log: str) -> dict[str, Any]:
        return {"whole": True}  # what it cannot run it does not load

    def __call__(self, signature: str, feed: Arrays) -> Arrays:
        runner = self._runners.get(signature)
        if runner is None:
            runner = self._pointer("TfLiteInterpreterGetSignatureRunner", self._interpreter, signature.encode())
            self._checked("TfLiteSignatureRunnerAllocateTensors", runner)
            self._runners[signature] = runner
        for name in self._names("Input", runner):
            tensor = self._pointer("TfLiteSignatureRunnerGetInputTensor", runner, name.encode())
            view = self._view(tensor)
            view[...] = np.asarray(feed[name], view.dtype).reshape(view.shape)
        self._checked("TfLiteSignatureRunnerInvoke", runner)
        outputs = self._names("Output", runner)
        found = {n: self._pointer("TfLiteSignatureRunnerGetOutputTensor", runner, n.encode()) for n in outputs}
        return {name: self._view(tensor).copy() for name, tensor in found.items()}

    def _names(self, side: str, runner: ctypes.c_void_p) -> list[str]:
        count = self._tflite[f"TfLiteSignatureRunnerGet{side}Count"]
        count.restype = ctypes.c_size_t
        name = self._tflite[f"TfLiteSignatureRunnerGet{side}Name"]
        name.restype = ctypes.c_char_p
        return [name(runner, ctypes.c_int32(number)).decode() for number in range(count(runner))]

    def _view(self, tensor: ctypes.c_void_p) -> np.ndarray:
        """Return a tensor's memory in the arena."""
        size = self._tflite.TfLiteTensorByteSize
        size.restype = ctypes.c_size_t
        rank = self._call("TfLiteTensorNumDims", tensor)
        shape = tuple(self._call("TfLiteTensorDim", tensor, axis) for axis in range(rank))
        dtype = np.dtype(_DTYPES[self._call("TfLiteTensorType", tensor)])
        data = self._pointer("TfLiteTensorData", tensor)
        memory = (ctypes.c_char * size(tensor)).from_address(data.value or 0)
        return np.frombuffer(memory, dtype).reshape(shape)

    def _call(self, name: str, *arguments: Any) -> int:
        """Return a function that returns an int, or nothing."""
        function = self._tflite[name]
        function.restype = ctypes.c_int
        return int(function(*arguments))

    def _checked(self, name: str, *arguments: Any) -> None:
        if self._call(name, *arguments):
            raise RuntimeError(f"{name} failed")

    def _pointer(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Return a function that returns an object."""
        function = self._tflite[name]
        function.restype = ctypes.c_void_p
        pointer = function(*arguments)
        if not pointer:
            raise RuntimeError(f"{name} failed")
        return ctypes.c_void_p(pointer)


def _loaded(folder: Path, library: str) -> ctypes.CDLL:
    """Return the library after what it needs of Android, which it finds by name."""
    for name in ("libc.so", "libm.so", "libdl.so", "liblog.so"):
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / library))


if __name__ == "__main__":
    serve(_Model)
