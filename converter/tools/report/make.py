"""Report making: from a program file, a state and runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converter.program.file import ProgramFile, read_program
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.files import check_place, write_atomically
from converter.support.words import figure
from converter.tools.report.beside import beside as compare
from converter.tools.report.contents import ReportContents, contents_of
from converter.tools.report.overlay import write_overlays
from converter.tools.report.page import render
from converter.tools.report.runs import read_run
from converter.tools.report.tables import Row


def report(
    program: str | os.PathLike | bytes,
    out: str | os.PathLike,
    state: str | os.PathLike | None = None,
    runs: Sequence[str | os.PathLike] = (),
    profile: bool = False,
    model_explorer: str | os.PathLike | None = None,
    data: Any = None,
    beside: str | os.PathLike | bytes | None = None,
    head: str | None = None,
) -> Path:
    """Writes a page about a program: what trains and why, the memory of a step, what each layer costs.

    The page is one file that loads nothing, for a browser, a mail or a printer.

    Args:
        program: the `.tflite`, or its bytes.
        out: the page.
        state: a saved state of it: the page says how far each weight moved.
        runs: files of JSON lines: what `pocketune.Journal` wrote during `fit`, the log of a job in the app, or
            results of `scripts/device bench`.
        profile: run the step on this machine, and show what each layer takes.
        model_explorer: a folder for node data that Google's Model Explorer shows over its drawing of the program.
        data: samples (x, y), as for `TrainingSession.evaluate`: the page says what the program makes of them, as it was
            built and with the state.
        beside: another program, of one head: the page says what differs, in all and by layer.
        head: which, of a file of several.

    Returns:
        The path of the page.

    Raises:
        UsageError: a file is missing, damaged or of another program; Jinja is not installed.
        DeviceError: LiteRT does not run the program.
    """
    require("report", "a report")
    check_place(out)
    file = read_program(program, head)
    contents = _contents(file, profile)
    other = None if beside is None else compare(contents, contents_of(read_program(beside)))
    html = render(contents, [read_run(run) for run in runs], changes(file, state), figures(file, state, data), other)
    write_atomically(out, html.encode())
    if model_explorer is not None:
        write_overlays(contents, model_explorer)
    return Path(out)


def _contents(file: ProgramFile, profile: bool) -> ReportContents:
    if not profile:
        return contents_of(file)
    from converter.tools.measure.profile import profile as measure

    measured = measure(file.path or bytes(file.data), head=file.head)
    return contents_of(file, measured.by("layer"))


def changes(program: ProgramFile, state: str | os.PathLike | None) -> list[Row]:
    """Return how far a state moved each weight from what was built: name, numbers, relative change, largest change.

    Raises:
        UsageError: it is no state of this program.
    """
    if state is None:
        return []
    from converter.runtime.export.export import trained_weights

    if not Path(state).exists():
        raise UsageError(f"{os.fspath(state)}: there is no such file", page="reports")
    before, after = trained_weights(program), trained_weights(program, state)
    rows: list[Row] = []
    for name, built in before.items():
        moved = after[name].astype(np.float64) - built
        norm = float(np.linalg.norm(built.astype(np.float64)))
        relative = f"{np.linalg.norm(moved) / norm:.2%}" if norm else "from zero"
        rows.append((name, str(built.size), relative, f"{np.abs(moved).max():.3g}"))
    return rows


def figures(program: ProgramFile, state: str | os.PathLike | None, data: Any) -> list[Row]:
    """Return what `evaluate` says of samples: name, as it was built, with the state.

    Raises:
        UsageError: they are no samples of this program.
        DeviceError: LiteRT does not run it.
    """
    if data is None:
        return []
    if not isinstance(data, tuple):
        raise UsageError("data: there is no y: samples are x and y, to say how well the program does", page="reports")
    from converter.runtime import TrainingSession

    with TrainingSession(program.path or bytes(program.data), head=program.head) as session:
        before = session.evaluate(*data)
        if state is not None:
            session.restore(state)
        after = session.evaluate(*data) if state is not None else {}
    return [(name, figure(name, value), figure(name, after[name]) if after else "") for name, value in before.items()]
