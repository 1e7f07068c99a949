"""Which runtime a session runs in."""

from __future__ import annotations

import os

from converter.errors import UsageError
from converter.program_file import ProgramFile
from converter.runtime.entry import Engine
from converter.runtime.interpreter import InterpreterEngine
from converter.runtime.weight_cache import WeightCache


def open_engine(
    program: ProgramFile, threads: int = 1, xnnpack: bool = True, weight_cache: str | os.PathLike | None = None
) -> Engine:
    """The interpreter, or with a folder for packed weights a CompiledModel; the arguments are a TrainingSession's.

    Raises:
        DeviceError: LiteRT does not take the program.
        UsageError: its signatures are not those of its manifest; the folder cannot be used.
    """
    if weight_cache is None:
        return InterpreterEngine(program, threads, xnnpack)
    if not xnnpack:
        raise UsageError("weight_cache holds what XNNPACK packs, and xnnpack=False runs without it: leave one out")
    # Loads libraries of LiteRT that the interpreter does without.
    from converter.runtime.compiled import CompiledEngine

    return CompiledEngine(program, threads, WeightCache(weight_cache))
