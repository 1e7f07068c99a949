"""LiteRT's CompiledModel on the GPU, in float32."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from ai_edge_litert.compiled_model import CompiledModel, CpuOptions, GpuOptions, Options
from ai_edge_litert.hardware_accelerator import HardwareAccelerator

from converter.program.file import ProgramFile
from converter.program.flatbuffer.metadata import runs_bodies
from converter.runtime.engines.gpu import Gpu
from converter.runtime.interpreters.compiled import CompiledEntry, compiled
from converter.runtime.interpreters.entry import ProgramEngine, Report
from converter.support.errors import DeviceError
from converter.support.logs import listening

#: What the GPU's delegate writes of each subgraph of which it refuses a part.
_LEFT = r"\d+ operations will run on the GPU, and the remaining (\d+) operations"


@dataclass
class _Adapter:
    """What LiteRT takes for a GPU, which it says at the first program of a process alone."""

    name: str = ""
    emulated: bool = False


_ADAPTER = _Adapter()


class GpuEngine(ProgramEngine):
    """A program on the GPU; the CPU runs what the GPU refuses, and the report says so."""

    def __init__(self, program: ProgramFile, threads: int) -> None:
        """Compiles the program.

        Raises:
            DeviceError: LiteRT does not take it, or there is no GPU and no driver that does without one.
            UsageError: its signatures are not those of its manifest.
        """
        gpu = Gpu()
        gpu.enter()
        options = Options(
            hardware_accelerators=HardwareAccelerator.GPU | HardwareAccelerator.CPU,
            cpu_options=CpuOptions(num_threads=threads),
            gpu_options=GpuOptions(enforce_f32=True),
        )
        with listening() as said:
            try:
                model = compiled(program, options, said)
            except DeviceError as error:
                raise DeviceError(gpu.missing() or str(error)) from None
            report = _report(model, gpu, said())
        super().__init__(program.manifest, partial(CompiledEntry, model, runs_bodies(program.data)), report)


def _report(model: CompiledModel, gpu: Gpu, log: str) -> Report:
    """Return what the GPU took, by its own account and by its log."""
    left = [int(number) for number in re.findall(_LEFT, log)]
    if adapter := re.search(r"Selected adapter: (.+?)(, arch=.*)?$", log, re.MULTILINE):
        _ADAPTER.name, _ADAPTER.emulated = adapter[1], "adapterType=CPU" in adapter[0]
    return Report(
        runs="gpu",
        driver=_ADAPTER.name,
        emulated=_ADAPTER.emulated,
        whole=bool(model.is_fully_accelerated()) and not left,
        left=sum(left),
        reasons=tuple(": ".join(filter(None, refusal)) for refusal in gpu.refusals(log)),
    )
