"""LiteRT's CompiledModel: on the CPU it keeps the weights that XNNPACK has packed in a file, for all signatures."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel, CpuOptions, Options
from ai_edge_litert.environment import Environment
from ai_edge_litert.hardware_accelerator import HardwareAccelerator
from ai_edge_litert.tensor_buffer import TensorBuffer

from converter.program.file import ProgramFile
from converter.program.flatbuffer.metadata import runs_bodies
from converter.program.manifest import Signature
from converter.runtime.interpreters.entry import ProgramEngine, SignatureEntry, check_tensors
from converter.runtime.interpreters.weight_cache import WeightCache
from converter.support.errors import DeviceError
from converter.support.logs import listening


class CompiledEntry(SignatureEntry):
    """One signature, with a buffer of the runtime for each input and output.

    The buffers are written and read by copying. An input that somebody asked for in place has a copy that stays, which
    is written again where it was asked for since the last call.
    """

    def __init__(
        self, model: CompiledModel, frees: bool, stored: Callable[[str], str], name: str, signature: Signature
    ) -> None:
        super().__init__(name, signature, frees)
        inputs, outputs = (
            details(stored(name)) for details in (model.get_input_tensor_details, model.get_output_tensor_details)
        )
        check_tensors("inputs", inputs, signature.inputs)
        check_tensors("outputs", outputs, signature.outputs)
        self._model = model
        self._index = model.get_signature_index(stored(name))
        self._specs = {spec.name: spec for spec in (*signature.inputs, *signature.outputs)}
        self._staged: dict[str, np.ndarray] = {}
        self._touched: set[str] = set()
        self._inputs: dict[str, TensorBuffer] = {}
        self._outputs: dict[str, TensorBuffer] = {}

    def allocate(self) -> None:
        if self._outputs:
            return
        names = self._model.get_signature_by_index(self._index)
        with listening():
            inputs = self._model.create_input_buffers(self._index)
            outputs = self._model.create_output_buffers(self._index)
            self._inputs = dict(zip(names["inputs"], inputs, strict=True))
            for name, buffer in self._inputs.items():  # nothing says that a new buffer is zero
                buffer.write(np.zeros(self._specs[name].shape, self._specs[name].dtype))
        self._outputs = dict(zip(names["outputs"], outputs, strict=True))

    def input(self, name: str) -> np.ndarray:
        self._touched.add(name)
        if name not in self._staged:
            self._staged[name] = self._read(name, self._inputs)
        return self._staged[name]

    def write(self, name: str, array: np.ndarray) -> None:
        if name in self._staged:
            super().write(name, array)
        else:
            self._inputs[name].write(array)

    def output(self, name: str) -> np.ndarray:
        return self._read(name, self._outputs)

    def run(self) -> None:
        for name in self._touched:
            self._inputs[name].write(self._staged[name])
        self._touched.clear()
        self._model.run_by_index(self._index, list(self._inputs.values()), list(self._outputs.values()))

    def _read(self, name: str, buffers: Mapping[str, TensorBuffer]) -> np.ndarray:
        spec = self._specs[name]
        return buffers[name].read(math.prod(spec.shape), np.dtype(spec.dtype)).reshape(spec.shape)


class CompiledEngine(ProgramEngine):
    """A program in a CompiledModel on the CPU."""

    def __init__(self, program: ProgramFile, threads: int, cache: WeightCache) -> None:
        """Loads the program; packs its weights into the cache, or takes them from there.

        Raises:
            DeviceError: LiteRT does not take it.
            UsageError: its signatures are not those of its manifest, or the cache cannot be written.
        """
        with cache.file(program) as packed:
            cpu = CpuOptions(num_threads=threads, xnnpack_weight_cache_path=os.fspath(packed))
            options = Options(hardware_accelerators=HardwareAccelerator.CPU, cpu_options=cpu)
            with listening() as said:
                if not packed.exists():  # a model that packs keeps what it packs in, as long as it lives
                    compiled(program, options, said).close()
                model = compiled(program, options, said)
        super().__init__(program.manifest, partial(CompiledEntry, model, runs_bodies(program.data), program.stored))


def compiled(program: ProgramFile, options: Options, said: Callable[[], str]) -> CompiledModel:
    """Return a program in a CompiledModel. Raises DeviceError with the errors among what LiteRT has said."""
    try:
        if program.path is None:
            return CompiledModel.from_buffer(program.data, None, _environment(), options)
        return CompiledModel.from_file(program.path, None, _environment(), options)
    except (RuntimeError, ValueError) as error:
        errors = " ".join(line for line in said().splitlines() if "INFO" not in line)
        raise DeviceError(f"LiteRT does not take the program: {error} {errors}") from None


@cache
def _environment() -> Environment:
    """LiteRT's own state, one for the process."""
    # A folder without libraries: LiteRT would look for those of other accelerators, and complain.
    nowhere = os.fspath(Path(__file__).parent)
    return Environment.create(compiler_plugin_path=nowhere, dispatch_library_path=nowhere)
