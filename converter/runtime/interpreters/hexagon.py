"""Qualcomm's Hexagon, emulated: each signature compiled for the SoC, in float16."""

from __future__ import annotations

import ctypes
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from converter.program.file import ProgramFile
from converter.program.flatbuffer.parts import SIGNATURE, tensor_name
from converter.program.layers import Layers
from converter.program.manifest import Signature
from converter.runtime.engines.hexagon import Hexagon
from converter.runtime.interpreters.entry import ProgramEngine, Report, SignatureEntry
from converter.support.errors import DeviceError
from converter.support.logs import listening


class HexagonEntry(SignatureEntry):
    """One signature, compiled when it is first asked for."""

    rounds_to_float16 = True

    def __init__(self, hexagon: Hexagon, layers: Layers, name: str, signature: Signature) -> None:
        super().__init__(name, signature)
        self._hexagon, self._layers = hexagon, layers
        self._inputs = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in signature.inputs}
        self._outputs: dict[str, np.ndarray] = {}
        self._compiled: Any = None

    def allocate(self) -> None:
        if self._compiled is not None:
            return
        # Needs libraries that nothing else does.
        from converter.runtime.engines.workers.hexagon import CompiledContext

        self._operators = self._layers.entry(self.name)
        with tempfile.TemporaryDirectory() as folder, listening():
            path = Path(folder) / "part.tflite"
            path.write_bytes(self._operators.part(range(len(self._operators.places)), list(self._operators.outputs)))
            self._compiled = CompiledContext(path, self._hexagon.options())

    def input(self, name: str) -> np.ndarray:
        return self._inputs[name]

    def output(self, name: str) -> np.ndarray:
        return self._outputs[name]

    def run(self) -> None:
        feed = {tensor_name(index): self._inputs[name] for index, name in self._operators.inputs.items()}
        given = self._compiled(SIGNATURE, feed)
        shapes = {spec.name: spec.shape for spec in self.signature.outputs}
        self._outputs = {
            name: np.array(given[tensor_name(index)]).reshape(shapes[name])
            for index, name in self._operators.outputs.items()
        }


class HexagonEngine(ProgramEngine):
    """A program on the emulation, which takes a signature whole or not at all."""

    def __init__(self, program: ProgramFile, soc: str) -> None:
        """Finds Qualcomm's libraries. Raises DeviceError where they are missing, UsageError for an unknown SoC."""
        hexagon = Hexagon(soc)
        if (lacking := hexagon.missing()) is not None:
            raise DeviceError(lacking)
        os.environ.update(hexagon.environment())  # of the compiler, a process of its own
        for library in sorted(Path(hexagon.options()["libraries"]).glob("lib*-*.so*"), reverse=True):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        report = Report(runs="npu", driver=f"HTP emulation, {hexagon.soc}", emulated=True)
        super().__init__(program.manifest, partial(HexagonEntry, hexagon, Layers(program)), report)
