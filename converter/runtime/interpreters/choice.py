"""Choice of the runtime that a session runs in."""

from __future__ import annotations

import os

from converter.program.file import ProgramFile
from converter.runtime.interpreters.entry import Divided, ProgramEngine
from converter.runtime.interpreters.interpreter import InterpreterEngine
from converter.runtime.interpreters.weight_cache import WeightCache
from converter.support.errors import UsageError, nearest

#: What may run a program, or the part of it that is not the CPU's.
ACCELERATORS = ("cpu", "gpu", "hexagon", "hexagon:SM8650", "web", "web:wasm")


def open_engine(
    program: ProgramFile,
    threads: int = 1,
    xnnpack: bool = True,
    weight_cache: str | os.PathLike | None = None,
    accelerator: str = "cpu",
) -> ProgramEngine:
    """Return the interpreter, or with a folder for packed weights a CompiledModel.

    The arguments are a TrainingSession's.

    Raises:
        DeviceError: LiteRT does not take the program.
        UsageError: its signatures are not those of its manifest; the folder or the accelerator cannot be used.
    """
    kind, _, soc = str(accelerator).partition(":")
    if accelerator not in ACCELERATORS and not (kind == "hexagon" and soc):
        known = ", ".join(ACCELERATORS)
        raise UsageError(
            f"accelerator: {accelerator!r} is none of {known}.{nearest(kind, ACCELERATORS)}", page="engines"
        )
    if kind != "cpu":
        return _accelerated(program, threads, xnnpack, weight_cache, accelerator)
    if weight_cache is None:
        return InterpreterEngine(program, threads, xnnpack)
    if not xnnpack:
        raise UsageError(
            "weight_cache holds what XNNPACK packs, and xnnpack=False runs without it: leave one out", page="engines"
        )
    # Loads libraries of LiteRT that the interpreter does without.
    from converter.runtime.interpreters.compiled import CompiledEngine

    return CompiledEngine(program, threads, WeightCache(weight_cache))


def _accelerated(
    program: ProgramFile, threads: int, xnnpack: bool, weight_cache: str | os.PathLike | None, accelerator: str
) -> ProgramEngine:
    """Return an accelerator for everything, except for the update of a split step, which is the CPU's."""
    state, (kind, _, soc) = program.manifest.state, accelerator.partition(":")
    if program.head is not None:
        raise UsageError(
            f"accelerator={accelerator!r}: a head of a file of several runs on the CPU: leave it out, or build a file "
            "of its own for the head",
            page="engines",
        )
    if state == "variables" and accelerator != "web:wasm":
        raise UsageError(
            f"this program keeps its state in variables, which {kind} does not run: build it with state='stateless' or "
            "'split' (--state), or open it without accelerator",
            page="engines",
        )
    if kind == "hexagon" and state != "split":
        raise UsageError(
            "hexagon rounds to float16, in which small updates are lost: build with state='split'", page="engines"
        )
    if weight_cache is not None:
        raise UsageError(f"weight_cache holds what the CPU packs: leave it or accelerator={kind!r} out", page="engines")
    engine: ProgramEngine
    if kind == "gpu":
        from converter.runtime.interpreters.gpu import GpuEngine

        engine = GpuEngine(program, threads)
    elif kind == "hexagon":
        from converter.runtime.interpreters.hexagon import HexagonEngine

        engine = HexagonEngine(program, soc)
    else:
        from converter.runtime.interpreters.web import WebEngine

        engine = WebEngine(program, soc or "webgpu")
    if state != "split":
        return engine
    return Divided(engine, InterpreterEngine(program, threads, xnnpack), (program.manifest.updating,))
