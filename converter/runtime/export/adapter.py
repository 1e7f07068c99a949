"""Adapters out of a program and into one: a folder of PEFT, or a `.gguf` file of llama.cpp."""

from __future__ import annotations

import os
from pathlib import Path

from converter.runtime.export import gguf, peft
from converter.runtime.export.export import State
from converter.runtime.export.low_rank import (
    ProgramPath,
    check_base,
    learned,
    opened,
    warn_of_dropout,
    write_state,
)


def export_adapter(program: ProgramPath, where: str | os.PathLike, state: State = None, base: str = "") -> None:
    """Write the low-rank adapters of a state as PEFT's `PeftModel.from_pretrained` or llama.cpp's `--lora` reads them.

    Args:
        program: that was trained; its weights have the names of `transformers`.
        where: a folder for PEFT, which is made, or a file that ends with `.gguf`.
        state: whose; see `export_inference`.
        base: what the base is to be called there, as `Qwen/Qwen2.5-0.5B`; the program's name where it is empty.

    Raises:
        UsageError: the program has no such adapters, the state is not one of it, or nothing can be written there; for
            llama.cpp also where they are of DoRA, or of a model that it has no names for.
    """
    program = opened(program)
    write = gguf.write_file if is_gguf(where) else peft.write_folder
    write(program, learned(program, state), where, base)


def import_adapter(program: ProgramPath, where: str | os.PathLike, state: str | os.PathLike) -> tuple[str, ...]:
    """Write a state of a program with adapters of PEFT, of llama.cpp or of `export_adapter`; its optimizer begins anew.

    `session.restore` takes it, on a phone too. An `AdapterWarning` says where the program drops other shares of the
    inputs of adapters in its steps than a folder's configuration says; a `.gguf` file says none.

    Args:
        program: that is to go on with them.
        where: the folder of an adapter of PEFT, or a `.gguf` file.
        state: the file to write.

    Returns:
        Names of the program's weights that there is no adapter for: theirs are as they were built.

    Raises:
        UsageError: there is no adapter, or one of another base, rank, scale or kind (of LoRA for a program of DoRA, and
            the other way round), or of weights that have none in the program, or one that trains or computes otherwise
            than a program's.
    """
    program, where = opened(program), Path(where)
    if is_gguf(where):
        found, base = gguf.read_file(program, where)
        check_base(program, base, where)
        return write_state(program, found, where, state)
    config, found, base = peft.read_folder(where)
    check_base(program, base, where)
    left = write_state(program, found, where, state)
    warn_of_dropout(program, config.dropout, where)
    return left


def is_gguf(where: str | os.PathLike) -> bool:
    """Return whether a path is that of a file for llama.cpp."""
    return Path(where).suffix == gguf.SUFFIX
