"""The commands about real engines: `certify` and `engines`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from converter.cli import completion
from converter.cli.as_json import print_json
from converter.cli.narration import Narrator
from converter.cli.options import Debug, Json, ProgramPath, Quiet, Wide
from converter.cli.tables import Results
from converter.program.manifest import Certificate
from converter.program.samples import read_samples
from converter.support.errors import NumericError

#: Seconds that an engine may take for a program; one of the web runs both of its parts in them.
LIMIT = 3600.0
On = Annotated[
    str,
    typer.Option(
        "--on",
        autocompletion=completion.engine,
        help="The engine to run it on: gpu, hexagon:SM8650, web, android, tflm.",
    ),
]


def certify(
    file: ProgramPath,
    on: On,
    steps: Annotated[int, typer.Option(min=1, help="How many steps are compared with the CPU.")] = 10,
    data: Annotated[
        Path | None, typer.Option(help="An .npz file of rows: x or the inputs by name, and y. None: drawn ones.")
    ] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that the engine may take for all of it.")] = LIMIT,
    wide: Wide = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a program on a real engine, compare it with the CPU, and sign the result into its manifest."""
    from converter.tools.certify.certify import certify as examine

    with Narrator(quiet).stage(f"run on {on}"):
        rows = None if data is None else read_samples(data)
        certificate = examine(file, on=on, steps=steps, data=rows, limit=limit)
    demand(file, certificate)
    if as_json:
        print_json({"file": str(file), **asdict(certificate)})
    else:
        Results(wide).certificates([certificate])


def demand(file: Path, certificate: Certificate) -> None:
    """Raises NumericError for a certificate that is none."""
    if not certificate.ok:
        what = "computes it wrongly" if certificate.whole else "does not take all of it"
        listed = "".join(f"\n  {failure}\n    {failure.advice}".rstrip() for failure in certificate.failures)
        raise NumericError(f"{file} is not certified on {certificate.on}: {certificate.engine} {what}{listed}")


def engines(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="ENGINE", autocompletion=completion.engine, help="The engine to set up. None: show all."
        ),
    ] = None,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Accept the licence of what is fetched, where there is one.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Set up an engine that programs are certified on, or show which ones this machine has."""
    from converter.runtime.engines import engine, engines_folder, names

    results = Results()
    if name is None:
        rows = [
            (e.name, e.title, e.precision, e.missing() or f"ready, version {e.version}") for e in map(engine, names())
        ]
        results.table(f"Engines (in {engines_folder()})", ("on", "engine", "computes in", "here"), rows)
        return
    chosen = engine(name)
    with Narrator().stage(f"set up {name}"):
        done = chosen.set_up(accept_licence)
    results.line(done)
    if (missing := chosen.missing()) is not None:
        results.line(f"still missing: {missing}")
