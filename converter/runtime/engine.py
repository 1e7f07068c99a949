"""Which runtime a session runs in."""

from __future__ import annotations

import os

from converter.errors import UsageError, nearest
from converter.program_file import ProgramFile
from converter.runtime.entry import Divided, Engine
from converter.runtime.interpreter import InterpreterEngine
from converter.runtime.weight_cache import WeightCache

#: What may run a program, or the part of it that is not the CPU's.
ACCELERATORS = ("cpu", "gpu")


def open_engine(
    program: ProgramFile,
    threads: int = 1,
    xnnpack: bool = True,
    weight_cache: str | os.PathLike | None = None,
    accelerator: str = "cpu",
) -> Engine:
    """The interpreter, or with a folder for packed weights a CompiledModel; the arguments are a TrainingSession's.

    Raises:
        DeviceError: LiteRT does not take the program.
        UsageError: its signatures are not those of its manifest; the folder or the accelerator cannot be used.
    """
    if accelerator not in ACCELERATORS:
        raise UsageError(f"accelerator: {accelerator!r} is none of cpu, gpu.{nearest(str(accelerator), ACCELERATORS)}")
    if accelerator == "gpu":
        return _on_gpu(program, threads, xnnpack, weight_cache)
    if weight_cache is None:
        return InterpreterEngine(program, threads, xnnpack)
    if not xnnpack:
        raise UsageError("weight_cache holds what XNNPACK packs, and xnnpack=False runs without it: leave one out")
    # Loads libraries of LiteRT that the interpreter does without.
    from converter.runtime.compiled import CompiledEngine

    return CompiledEngine(program, threads, WeightCache(weight_cache))


def _on_gpu(program: ProgramFile, threads: int, xnnpack: bool, weight_cache: str | os.PathLike | None) -> Engine:
    """The GPU for everything, except for the update of a split step, which is the CPU's."""
    if program.manifest.state == "variables":
        raise UsageError(
            "this program keeps its state in variables, which no GPU runs: build it with state='stateless' or 'split' "
            "(--state), or open it without accelerator"
        )
    if weight_cache is not None:
        raise UsageError("weight_cache holds what the CPU packs: leave it or accelerator='gpu' out")
    from converter.runtime.gpu import GpuEngine

    gpu = GpuEngine(program, threads)
    if program.manifest.state != "split":
        return gpu
    return Divided(gpu, InterpreterEngine(program, threads, xnnpack), (program.manifest.updating,))
