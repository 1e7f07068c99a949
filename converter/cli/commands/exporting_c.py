"""The command `export-c`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from converter.cli.as_json import print_json
from converter.cli.narration import Narrator
from converter.cli.options import BoardName, Debug, Json, ProgramPath, Quiet
from converter.cli.tables import Results
from converter.support.words import size


def export_c(
    file: ProgramPath,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The library to write: of Arduino and of ESP-IDF.")],
    board: BoardName = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a program for microcontrollers (--target tflm) as C++ that a sketch trains and uses."""
    from converter.tools.micro.boards import ADVICE
    from converter.tools.micro.boards import board as board_of
    from converter.tools.micro.export import export_c as export

    on = None if board is None else board_of(board)
    with Narrator(quiet).stage("write C++"):
        made = export(file, out)
    if as_json:
        fits = {} if on is None else {"board": asdict(on), "fits": on.fits(made.arena + made.state, made.flash)}
        print_json({"folder": str(out), **asdict(made), **fits})
        return
    results = Results()
    results.line(f"wrote {out}: copy it into libraries/ of Arduino or components/ of ESP-IDF")
    needs = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in made.arenas.items())
    results.line(f"RAM: an arena of {size(made.arena)} ({needs}), and {size(made.state)} of state")
    kernels = f"{len(made.operators)} kernels of TensorFlow Lite Micro"
    results.line(f"flash: {size(made.flash)} of models and state as built, and {kernels}")
    if made.left_out:
        results.line(f"left out, as no sketch calls them: {', '.join(made.left_out)}")
    if on is not None:
        results.line(on.said())
        said = on.fit(made.arena + made.state, made.flash)
        results.line(said if on.fits(made.arena + made.state, made.flash) else f"{said}; {ADVICE}")
