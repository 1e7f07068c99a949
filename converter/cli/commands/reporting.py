"""The command `report`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from converter.cli.narration import Narrator
from converter.cli.options import Debug, Head, ProgramPath, Quiet
from converter.cli.tables import Results
from converter.program.samples import read_samples
from converter.support.words import size


def report(
    file: ProgramPath,
    out: Annotated[Path, typer.Option(metavar="REPORT.html", help="The page to write.")] = Path("report.html"),
    state: Annotated[
        Path | None, typer.Option(help="A saved state of the program: shows how far each weight moved.")
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(help="Lines of a training (pocketune.Journal, scripts/device); may be given repeatedly."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="D.npz", help="Samples x and y: accuracy as built, and with the state.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--profile", help="Run the step here, and show what each layer takes.")
    ] = False,
    model_explorer: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write node data for Google's Model Explorer."),
    ] = None,
    beside: Annotated[
        Path | None, typer.Option(metavar="OTHER.tflite", help="Another program: what differs, in all and by layer.")
    ] = None,
    head: Head = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a page about a program: what trains and why, the memory of a step, what each layer costs."""
    from converter.tools.report.make import report as make

    with Narrator(quiet).stage("write the report"):
        samples = None if data is None else read_samples(data)
        make(file, out, state, run or (), measure, model_explorer, samples, beside, head)
    Results().line(f"wrote {out} ({size(out.stat().st_size)})")
    if model_explorer is not None:
        Results().line(
            "in Model Explorer (pip install ai-edge-model-explorer): "
            f"model-explorer {quote(str(file))} --node_data_paths={quote(str(model_explorer / 'cost.json'))}"
        )
