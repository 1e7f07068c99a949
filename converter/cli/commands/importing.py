"""The command `import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from converter.cli.options import Debug, Head, ProgramPath
from converter.cli.tables import Results
from converter.program.file import read_program
from converter.runtime.export import import_adapter
from converter.support.interrupts import too_late
from converter.support.words import counted


def import_state(
    file: ProgramPath,
    adapter: Annotated[Path, typer.Argument(metavar="ADAPTER", help="A folder of PEFT, or a .gguf file of llama.cpp.")],
    out: Annotated[Path, typer.Option(metavar="NEW.state", help="The state to write.")],
    head: Head = None,
    debug: Debug = False,
) -> None:
    """Make a state of a low-rank adapter of PEFT or llama.cpp, with which the program goes on."""
    program = read_program(file, head)
    too_late()
    left = import_adapter(program, adapter, out)
    results = Results()
    results.line(f"wrote {out}, a state of {file}; its optimizer begins anew")
    if left:
        results.line(f"{counted(len(left), 'weight')} without an adapter in {adapter}, as they were built:")
        for name in left:
            results.line(f"  {name}")
