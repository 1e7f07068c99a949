"""The results as tables on the terminal."""

from __future__ import annotations

import sys
from math import inf
from typing import Any

from rich.console import Console
from rich.table import Table


def show(result: dict[str, Any]) -> None:
    """Print all sides of every cell, and what failed."""
    out = _console()
    table = Table(
        title=f"One training step, SGD, float32, {_settings(result)}",
        caption=f"{_machine(result)}; target {result['target']}. ms: median [10%-90%]. × ours: the side's time / ours "
        "over turns, CPU time with one thread, else wall. Memory: growth of the process from before it loads the "
        "program, the most in a step: anonymous and pages of files; peak: loading and warming up, too.",
    )
    left = ("cell", "side")
    for heading in (*left, "CPU ms", "wall ms", "× ours", "anon MB", "file MB", "peak MB", "losses differ"):
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in result["rows"]:
        label = f"[bold]{row['workload']} {row['scheme']}[/] b{row['batch']}"
        for name, side in row["sides"].items():
            style = "bold" if name in ("ours", row["best"]) else None
            table.add_row(label, name, *_cells(row, side), style=style)
            label = ""
        table.add_section()
    out.print(table)
    _failures(out, result)


def _cells(row: dict[str, Any], side: dict[str, Any]) -> list[str]:
    differ = f"{side['loss_difference']:.0e}" if side["loss_difference"] is not None else "-"
    if side["error"]:
        return ["[red]failed[/]", "", "", "", "", "", differ]
    times = [f"{t['median']:.1f} [{t['p10']:.1f}-{t['p90']:.1f}]" for t in (side["cpu_ms"], side["ms"])]
    ratio = ""
    if "ratio" in side:
        r = side["ratio"][row["clock"]]
        ratio = f"{r['median']:.2f} [{r['p10']:.2f}-{r['p90']:.2f}]"
    growth = side["memory"]["growth"]
    memory = [f"{b / 1e6:.0f}" for b in (growth["anon"], growth["file"], side["memory"]["peak_growth"])]
    return [*times, ratio, *memory, differ]


def show_growth(result: dict[str, Any]) -> None:
    """Our step against one size: exponents between neighbours."""
    out = _console()
    table = Table(
        title=f"Our training step by {result['axis']}, {_settings(result)}",
        caption=f"{_machine(result)}; target {result['target']}. ^: the exponent by which a figure grew since the row "
        f"before: operations against {result['axis']}, time and memory against operations; 1 is in step with the work.",
    )
    left = ("cell",)
    for heading in (*left, result["axis"], "GFLOP", "^", "CPU ms", "^", "anon MB", "^", "file MB", "arena MB"):
        table.add_column(heading, justify="left" if heading in left else "right")
    before = None
    for row in result["rows"]:
        cell = f"{row['workload']} {row['scheme']}"
        if cell != before:
            table.add_section()
        side, before = row["sides"]["ours"], cell
        figures = ["[red]failed[/]"]
        if not side["error"]:
            growth = side["memory"]["growth"]
            figures = [f"{side['cpu_ms']['median']:.1f}", _exponent(row["exponents"].get("time"))]
            figures += [f"{growth['anon'] / 1e6:.0f}", _exponent(row["exponents"].get("memory"))]
            figures += [f"{growth['file'] / 1e6:.0f}", f"{row['costs']['arena_bytes'] / 1e6:.0f}"]
        work = f"{row['flops'] / 1e9:.2f}", _exponent(row["exponents"].get("work"), most=inf)
        table.add_row(f"[bold]{cell}[/]", str(row["value"]), *work, *figures)
    out.print(table)
    _failures(out, result)


def show_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows of the same figures."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    _console().print(table)


def _exponent(value: float | None, most: float = 1.15) -> str:
    if value is None:
        return ""
    return f"[red]{value:.2f}[/]" if value > most else f"{value:.2f}"


def _failures(out: Console, result: dict[str, Any]) -> None:
    for row in result["rows"]:
        for name, side in row["sides"].items():
            if side["error"]:
                out.print(f"{row['workload']} {row['scheme']}, {name}: {side['error']}", markup=False)


def _settings(result: dict[str, Any]) -> str:
    parts = [f"{result['threads']} thread(s)"]
    parts += [f"micro-batch {result['micro_batch']}"] if result["micro_batch"] else []
    parts += [f"ours within {result['memory_budget']}"] if result["memory_budget"] else []
    parts += [f"ours with {result['frozen']} frozen layers"] if result["frozen"] else []
    parts += ["ours on cached features"] if result["cached"] else []
    return ", ".join(parts + (["small nets"] if result["small"] else []))


def _machine(result: dict[str, Any]) -> str:
    return f"{result['machine']['cpu']} ({' '.join(result['machine']['flags'])})"


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)
