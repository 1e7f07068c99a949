"""The commands of `scripts/device`. Results go to stdout, narration to stderr."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from converter.support.errors import NumericError, PocketuneError, UsageError
from converter.support.files import write_atomically
from scripts.harness.bench import Options, check_program, describe, held, result_path, run_all
from scripts.harness.compare import compare as compare_files
from scripts.harness.compare import differences
from scripts.harness.conditions import NAMES, check_names, concerns
from scripts.harness.devices.adb import Adb, adb_binary
from scripts.harness.devices.hosts import local, open_device, open_devices
from scripts.harness.faults import Fault
from scripts.harness.log import read_results
from scripts.harness.plan import Plan, check_plan, read_plan
from scripts.harness.stop import is_asked, listen
from scripts.harness.tables import comparison_table, device_row, results_table

app = typer.Typer(
    help="Trains programs on phones, boards and this machine, and says what to believe of the numbers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# Off a terminal a table is as wide as it must be: rich would cut it to 80 columns.
_out = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
_err = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)

On = Annotated[
    list[str] | None,
    typer.Option("--on", help="A serial of adb, local, local-android, gpu, hexagon-emulated, web, ssh:HOST; repeat."),
]
AdbPath = Annotated[str | None, typer.Option("--adb", help="The adb to use; else $POCKETUNE_ADB, PATH, adbutils' own.")]
Apk = Annotated[Path | None, typer.Option("--apk", help="The app; installed where another build of it is.")]
Allow = Annotated[
    list[str] | None, typer.Option("--allow", help=f"A condition to accept: {', '.join(NAMES)}; repeatable.")
]


@app.command("list")
def list_devices(adb: AdbPath = None) -> None:
    """Phones that are connected, and this machine, with what speaks against measuring there now."""
    table = Table()
    for name in ("name", "model", "processor", "system", "runs", "battery", "heat", "not ready"):
        table.add_column(name)
    listed = Adb(adb_binary(adb)).devices()
    for device in [local(), *(open_device(d.serial, adb) for d in listed if d.state == "device")]:
        try:
            facts, now = device.facts(), device.conditions()
            table.add_row(*device_row(facts, now), ", ".join(c.name for c in concerns(facts, now)))
        except Fault as fault:
            table.add_row(device.name, *[""] * 6, escape(fault.problem))
    for other in (d for d in listed if d.state != "device"):
        table.add_row(other.serial, other.model, *[""] * 5, other.state)
    _out.print(table)


@app.command()
def check(
    program: Annotated[Path, typer.Argument(help="A .tflite of `pocketune build`.")],
    on: On = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Training steps to compare.")] = 5,
    accelerator: Annotated[str, typer.Option(help="cpu or gpu.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, max=64)] = 1,
    learning_rate: Annotated[float, typer.Option()] = 0.01,
    data: Annotated[
        Path | None, typer.Option(help="An .npz with the inputs by name and y; else made from a seed.")
    ] = None,
    adb: AdbPath = None,
    apk: Apk = None,
    allow: Allow = None,
) -> None:
    """Trains a program on a device and on this machine on the same data, and compares losses and every tensor."""
    check_names(allow or [])
    listen()
    plan = Plan(
        programs=(str(program),),
        accelerators=(accelerator,),
        threads=(threads,),
        check_steps=steps,
        steps=max(steps, 2),
        warmup=0,
        learning_rate=learning_rate,
        data=None if data is None else str(data),
    )
    check_plan(plan, "--")
    problems: list[PocketuneError] = []
    for device in open_devices(on or [], adb, apk):
        try:
            found = check_program(device, program, plan, tuple(allow or []), _err.print)
        except PocketuneError as error:
            problems.append(error)
            if is_asked():
                break
            continue
        _out.print(f"{device.name}: {describe(found)}")
        table = Table()
        for name in ("step", "loss there", "loss here"):
            table.add_column(name, justify="right")
        for step, (there, here) in enumerate(zip(found.losses, found.host_losses, strict=True)):
            table.add_row(str(step), f"{there:.6f}", f"{here:.6f}")
        _out.print(table)
        if not found.ok:
            problems.append(NumericError(f"{device.name}: the numbers are not those of the host"))
    _end(problems)


@app.command()
def bench(
    plan: Annotated[Path, typer.Argument(help="A TOML file; docs/harness.md says what is in it.")],
    on: On = None,
    out: Annotated[Path, typer.Option(help="Folder of the result files, one for each device and build.")] = Path(
        "out/device"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Finish what an earlier run began.")] = False,
    retries: Annotated[int, typer.Option(min=0, help="How often a lost connection is made anew.")] = 3,
    adb: AdbPath = None,
    apk: Apk = None,
    allow: Allow = None,
) -> None:
    """Runs a plan: first checks the numbers, then times the steps; several devices at once."""
    check_names(allow or [])
    listen()
    found, devices = read_plan(plan), open_devices(on or [], adb, apk)
    options = Options(out, secrets.token_hex(4), resume, tuple(allow or []), retries)
    ended = run_all(devices, found, options, _err.print)
    for device in devices:
        for build in found.plan.builds:
            path = result_path(out, device.name, build)
            if path.stat().st_size and (file := read_results(path)).results:
                _out.print(results_table(file))
                _err.print(f"{path}: {len(file.results)} results. Next: scripts/device report {path}")
    _end([error for errors in ended.values() for error in errors])


def _end(problems: list[PocketuneError]) -> None:
    """Tells all of them; the exit status is that of the worst."""
    for error in problems:
        _err.print(f"error: {error}")
    if problems:
        raise typer.Exit(max(error.exit_code for error in problems))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A result file.")],
    after: Annotated[Path, typer.Argument(help="The one to judge, of the same device.")],
    threshold: Annotated[float, typer.Option(min=0.0, help="The slowdown that matters.")] = 0.05,
) -> None:
    """Is the second run slower than the first? PASS, WARN or FAIL for each variant; exit status 4 on FAIL, else 0."""
    a, b = read_results(before), read_results(after)
    found = compare_files(a, b, threshold)
    _out.print(comparison_table(found, threshold))
    for difference in differences(a, b):
        _err.print(f"not the same: {difference}")
    if slower := [c.key for c in found if c.verdict == "FAIL"]:
        raise NumericError(f"slower than before: {'; '.join(slower)}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A result file.")],
    out: Annotated[Path | None, typer.Option(help="The page; else beside the result file.")] = None,
) -> None:
    """Write a table here, and one HTML page with plots."""
    from scripts.harness.report import page_of, render

    file = read_results(run)
    page = page_of(run, out)
    write_atomically(page, render(file).encode())
    _out.print(results_table(file))
    _err.print(f"wrote {page}")


@app.command()
def measure(
    table: Annotated[Path, typer.Argument(help="The TOML file to write, for build --target.")],
    on: On = None,
    like: Annotated[
        str | None,
        typer.Option(help="The target whose table gives the rest; else litert-2, or litert-2/x86-64 for such devices."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the programs and the results.")] = Path("out/device/forms"),
    only: Annotated[list[str] | None, typer.Option(help="Forms whose name contains this; repeatable.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish what an earlier run began.")] = False,
    adb: AdbPath = None,
    apk: Apk = None,
    allow: Allow = None,
) -> None:
    """Measures what each form of an operator costs on a device, and writes the table of such a target."""
    from converter.tools.measure import cases
    from scripts.harness.pricing import table_of

    check_names(allow or [])
    listen()
    if table.suffix != ".toml":
        raise UsageError(f"{table}: a table's name ends in .toml")
    chosen = [case for case in cases() if any(part in case.form for part in only or [""])]
    if not chosen:
        raise UsageError(f"--only: no form's name contains {' or '.join(only or [])}")
    devices = open_devices(on or [], adb, apk)
    if len(devices) > 1:
        raise UsageError("--on: a table is of one device")
    options = Options(out / "results", secrets.token_hex(4), resume, tuple(allow or []))
    text, problems = table_of(devices[0], chosen, like, table.stem, out, options, _err.print)
    write_atomically(table, text.encode())
    _err.print(f"wrote {table}. Build for it with --target {table}")
    _end(problems)


@app.command()
def clean(on: On = None, adb: AdbPath = None) -> None:
    """Removes all that the harness ever put on a device; the app stays."""
    for device in open_devices(on or [], adb, None):
        with held(device):
            device.clean()
        _err.print(f"{device.name}: clean")


def main() -> None:
    """Runs a command; the exit status is that of the error (converter.support.errors)."""
    try:
        app(standalone_mode=True)
    except PocketuneError as error:
        _err.print(f"error: {error}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
