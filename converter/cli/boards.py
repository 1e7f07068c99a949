"""The option `--board`: whether a command's program fits on a microcontroller."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from converter.cli.recipe import read_recipe
from converter.cli.tables import Results
from converter.support.errors import UsageError
from converter.tools.micro.boards import ADVICE, Board, board

#: The target of boards.
_TARGET = "tflm"


def board_for(name: str, flags: MutableMapping[str, Any], recipe: Path | None = None) -> Board:
    """Return a board by name, and set the target to that of boards where neither flags nor recipe name one.

    Raises:
        UsageError: an unknown name, or another target.
    """
    found = board(name)
    target = flags.get("target") or (None if recipe is None else read_recipe(recipe).get("target")) or _TARGET
    if target != _TARGET:
        raise UsageError(f"--board asks for --target {_TARGET}, not {target}", page="targets")
    flags["target"] = target
    return found


def with_fits(rows: Sequence[Mapping[str, Any]], on: Board) -> list[dict[str, Any]]:
    """Return rows of costs with `board`, what it is, and whether the RAM of each `fits`."""
    return [{**row, **({"board": asdict(on)} if "error" in row else fit_of(row, on))} for row in rows]


def fit_of(costs: Mapping[str, Any], on: Board) -> dict[str, Any]:
    """Return `board`, what it is, and whether the RAM of costs `fits`."""
    return {"board": asdict(on), "fits": on.fits(costs["resident_bytes"])}


def show_fits(rows: Sequence[Mapping[str, Any]], on: Board) -> None:
    """Print whether the RAM of each row of costs fits on a board, and what to do where one does not."""
    results, costs = Results(), [row for row in rows if "error" not in row]
    results.line(on.said())
    for row in costs:
        results.line(f"{row['scheme']}: {on.fit(row['resident_bytes'])}")
    if not all(on.fits(row["resident_bytes"]) for row in costs):
        results.line(f"what to do: {ADVICE}")
