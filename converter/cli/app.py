"""CLI commands: each reads its arguments, works in named stages, and prints one result."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.models import CommandInfo

from converter.cli import completion
from converter.cli.as_json import print_json
from converter.cli.boards import Board, board_for, fit_of, show_fits, with_fits
from converter.cli.build_summary import summarize
from converter.cli.commands.certifying import certify, demand, engines
from converter.cli.commands.estimating import estimate
from converter.cli.commands.explaining import explain as explain_page
from converter.cli.commands.exporting import export
from converter.cli.commands.exporting_c import export_c
from converter.cli.commands.federating import app as federated
from converter.cli.commands.importing import import_state
from converter.cli.commands.learning import learn
from converter.cli.commands.reporting import report
from converter.cli.commands.searching import search
from converter.cli.commands.states import state
from converter.cli.comparing import compare, schemes_of
from converter.cli.failures import DEBUG
from converter.cli.failures import report as explain
from converter.cli.inspection import read_contents, read_survey
from converter.cli.measuring import measured
from converter.cli.narration import Narrator
from converter.cli.options import (
    NOT_PRICED,
    BoardName,
    Debug,
    Head,
    Json,
    Model,
    Out,
    Profile,
    ProgramPath,
    Quiet,
    RecipeFile,
    Trust,
    Updates,
    Wide,
    with_options,
)
from converter.cli.resolve import job_of, output_path
from converter.cli.tables import Results
from converter.cli.watching import watching
from converter.driver.build import build as build_program
from converter.driver.options import Options
from converter.driver.program import Program
from converter.program.manifest import Certificate
from converter.support.interrupts import too_late
from converter.support.invocation import NAME
from converter.support.invocation import program as typed_program

app = typer.Typer(
    help="Compiles a Keras, PyTorch or JAX model or a .tflite file into a TFLite program that trains in the stock "
    "inference runtime.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(certify)
app.command()(engines)
app.command("explain")(explain_page)
app.add_typer(federated, name="federated")


def _version(asked: bool) -> None:
    if asked:
        print(f"pocketune {metadata.version('pocketune')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    pass


for _command in (search, report, learn, estimate, export, state):
    app.command()(_command)
app.command("export-c")(export_c)
app.command("import")(import_state)


@app.command()
@with_options()
def build(
    model: Model = None,
    recipe: RecipeFile = None,
    trust: Trust = False,
    profile: Profile = None,
    out: Out = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not run one step before writing.")] = False,
    certify_on: Annotated[
        str | None,
        typer.Option(
            "--certify",
            metavar="ENGINE",
            autocompletion=completion.engine,
            help="Run what was written on an engine (gpu, hexagon:SM8650, web, android, tflm), and compare.",
        ),
    ] = None,
    forms: Annotated[bool, typer.Option("--report", help="Show which form each layer got, and why.")] = False,
    dump_after: Annotated[
        str | None,
        typer.Option(metavar="PASS", autocompletion=completion.passes, help="Print the graphs behind a pass."),
    ] = None,
    time_passes: Annotated[bool, typer.Option("--time-passes", help="Show the CPU time of each pass.")] = False,
    board: BoardName = None,
    wide: Wide = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Compile MODEL into a training program."""
    narrator = Narrator(quiet)
    with narrator.stage("read the request"):
        on = None if board is None else board_for(board, flags, recipe)
        job = job_of(recipe, trust, model=model, profile=profile, out=out, **flags)
        path = output_path(job)
        if certify_on is not None:
            from converter.tools.certify.certify import ready

            ready(certify_on)
    job = measured(job, narrator)
    with narrator.stage("make the model"):
        subject = job.model()
    with narrator.stage("compile"), watching(dump_after) as watch:
        program = build_program(subject, update=job.scheme(job.update or "full"), check=False, **job.options())
    if not no_check:
        with narrator.stage("run one step"):
            program.check()
    with narrator.stage("write"):
        too_late()
        program.write(path)
    certificate = None if certify_on is None else _certified(path, certify_on, narrator)
    if watch.dumps is not None:
        print("\n".join(f"# {name}\n{text}" for name, text in watch.dumped.items()))
    if as_json:
        said = _json_of(program, path, forms, certificate, on)
        passes = {"passes": watch.seconds} if time_passes else {}
        print_json({**passes, **said, "checked": not no_check, "seconds": narrator.seconds})
        return
    _show_build(program, path, forms, wide, on)
    if time_passes:
        Results(wide).passes(watch.seconds)
    if certificate is not None:
        Results(wide).certificates([certificate])


def _certified(path: Path, engine: str, narrator: Narrator) -> Certificate:
    """Return what came of a program on an engine. Raises NumericError where that is wrong."""
    from converter.tools.certify.certify import certify as certify_program

    with narrator.stage(f"run on {engine}"):
        certificate = certify_program(path, on=engine)
    demand(path, certificate)
    return certificate


def _json_of(
    program: Program, path: Path, forms: bool, certificate: Certificate | None, on: Board | None
) -> dict[str, Any]:
    """Return what JSON says of a program that was written."""
    return {
        "file": str(path),
        "manifest": program.manifest.to_json(),
        **({"certificate": asdict(certificate)} if certificate else {}),
        "costs": dict(program.costs),
        **({} if on is None else fit_of(program.costs, on)),
        "notes": [asdict(note) for note in program.notes],
        "tried": [asdict(choice) for choice in program.tried],
        "quantization": None if program.quantization is None else asdict(program.quantization),
        **({"report": [asdict(choice) for choice in program.report]} if forms else {}),
    }


def _show_build(program: Program, path: Path, forms: bool, wide: bool, on: Board | None) -> None:
    _show_program(program, path, forms, Results(wide), wide)
    if on is not None:
        show_fits([{"scheme": path.name, **program.costs}], on)


def _show_program(program: Program, path: Path, forms: bool, results: Results, wide: bool) -> None:
    if not wide:
        if forms:
            results.report(program.report)
        summarize(results, program, path)
        return
    results.heading(program.manifest)
    results.update_table(program.manifest.update.table)
    results.notes(program.notes)
    results.costs(program.costs, program.manifest.target)
    if program.tried:
        results.tried(program.tried, program.manifest)
    if program.quantization is not None:
        results.quantization(program.quantization)
    if forms:
        results.report(program.report)
    results.built(path, len(program.data))


@app.command()
@with_options("update", *NOT_PRICED)
def schemes(
    model: Model = None,
    recipe: RecipeFile = None,
    trust: Trust = False,
    update: Updates = None,
    profile: Profile = None,
    board: BoardName = None,
    wide: Wide = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Show what each update scheme would cost on MODEL. Nothing is run, no file is written."""
    narrator = Narrator(quiet)
    with narrator.stage("read the request"):
        on = None if board is None else board_for(board, flags, recipe)
        job = job_of(recipe, trust, model=model, profile=profile, **flags)
        schemes = schemes_of(job, update)
    job = measured(job, narrator)
    with narrator.stage("make the model"):
        subject = job.model()
    rows = compare(job, subject, schemes, narrator)
    if as_json:
        print_json({"model": job.name, "batch": job.batch, "schemes": rows if on is None else with_fits(rows, on)})
    else:
        Results(wide).schemes(rows, job.recipe.get("target") or Options.target)
        if on is not None:
            show_fits(rows, on)


@app.command()
def inspect(
    file: ProgramPath,
    head: Head = None,
    wide: Wide = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a program holds, or what of any other .tflite file may be trained, and where it is cut best."""
    contents = (read_survey(file) if head is None else None) or read_contents(file, head)
    if as_json:
        print_json(contents.to_json())
    else:
        Results(wide).contents(contents)


@app.command()
def profile(
    file: ProgramPath,
    steps: Annotated[int, typer.Option(min=1, help="How often each measurement is repeated.")] = 10,
    threads: Annotated[int, typer.Option(min=1, help="Processor cores that a step may use.")] = 1,
    head: Head = None,
    by: Annotated[Literal["layer", "operator"] | None, typer.Option(help="One table only; both without it.")] = None,
    wide: Wide = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure where the time of a training step goes: by layer, phase and operator."""
    from converter.tools.measure.profile import profile as measure

    with Narrator(quiet).stage("measure"):
        measured = measure(file, steps, threads, head)
    if as_json:
        print_json({"file": str(file), **measured.to_json()})
    else:
        Results(wide).profile(measured, [by] if by else ["layer", "operator"])


@app.command()
def ops(
    wide: Wide = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show which operations of JAX compile, how, and when; gpu, web, hexagon, tflm have fewer: a build says which."""
    from jax_frontend.catalogue import DIFFERENCES, catalogue

    entries = catalogue()
    if as_json:
        print_json({"primitives": [asdict(entry) for entry in entries], "differences": list(DIFFERENCES)})
    else:
        Results(wide).operations(entries, DIFFERENCES)


#: The commands as one comes to need them.
_ORDER = (
    "schemes", "estimate", "search", "build", "inspect", "report", "profile", "certify", "export", "export-c", "import",
)  # fmt: skip


def _place(command: CommandInfo) -> int:
    name = command.name or getattr(command.callback, "__name__", "")
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


app.registered_commands.sort(key=_place)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process with its exit code; see `converter.support.errors`."""
    settings = {"debug": bool(os.environ.get(DEBUG))}
    try:
        name = NAME if completion.is_asked(arguments) else typed_program()
        app(arguments, prog_name=name, obj=settings)
    except Exception as error:  # the last line of defence: a user reads a sentence, not a traceback
        sys.exit(explain(error, settings["debug"]))
    sys.exit(0)
