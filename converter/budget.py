"""A budget of resident memory: the largest micro-batch that fits, the forward pass computed twice, or what would."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from converter.errors import PocketuneError, UsageError
from converter.program.program import Choice, Plan
from converter.words import size

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
#: What is suggested where the scheme that was asked for does not fit, in this order.
SMALLER = ("sparse", "bias-only", "head")


def parse_bytes(budget: str | int) -> int:
    """Bytes from `"64MiB"`, `"1.5 GB"` or a number of bytes. Raises UsageError."""
    if isinstance(budget, int) and not isinstance(budget, bool) and budget > 0:
        return budget
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B|B)\s*", budget) if isinstance(budget, str) else None
    if found is None or not float(found[1]):
        raise UsageError(f"memory_budget: expected a size such as 64MiB or 100MB, got {budget!r}")
    return round(float(found[1]) * UNITS[found[2]])


def that_fits(nbytes: int) -> str:
    """The least size in binary units, as it can be given for a budget, in which so many bytes are."""
    unit = next((name for name in ("GiB", "MiB", "KiB") if nbytes >= UNITS[name]), "B")
    return f"{ceil(100 * nbytes / UNITS[unit]) / 100:.2f} {unit}"


def fit(budget: int, sizes: Sequence[int], plan: Callable[[int, bool], Plan], smaller: Callable[[str], Plan]) -> Plan:
    """The plan with the largest micro-batch whose resident memory is within the budget.

    The whole batch needs no accumulators, so it is tried first; among true micro-batches memory grows with the rows, so
    they are searched by halves. Where none fits, the same again with the forward pass computed twice.

    Args:
        budget: bytes.
        sizes: micro-batches to choose from, ascending.
        plan: that of a micro-batch, and of whether the backward pass computes the forward pass again.
        smaller: that of a named scheme for micro-batches of one row, to say what would fit.

    Raises:
        UsageError: nothing fits; it says the least there is, for this scheme and for smaller ones.
    """
    tried: dict[tuple[bool, int], Plan] = {}
    for again in (False, True):

        def fits(rows: int, again: bool = again) -> bool:
            tried[again, rows] = plan(rows, again)
            return _resident(tried[again, rows]) <= budget

        if rows := _largest(sizes, fits):
            return replace(tried[again, rows], tried=[Choice.of(tried[key]) for key in sorted(tried)])
    raise UsageError(_too_small(budget, list(tried.values()), smaller))


def _largest(sizes: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The whole batch, the last of the sizes, or else the largest part of it that fits; 0 where none does."""
    *parts, whole = sizes
    if fits(whole):
        return whole
    low, high = 0, len(parts)  # parts[:low] fit, parts[high:] do not
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(parts[middle]) else (low, middle)
    return parts[low - 1] if low else 0


def _too_small(budget: int, tried: Sequence[Plan], smaller: Callable[[str], Plan]) -> str:
    least = min(tried, key=_resident)
    others = {}
    for name in SMALLER:
        try:
            others[name] = smaller(name)
        except PocketuneError:  # not for this model
            continue
    lines = [
        f"    update={name!r}: {_needs(plan)}"
        for name, plan in sorted(others.items(), key=lambda item: _resident(item[1]))
        if _resident(plan) < _resident(least)
    ]
    said = (
        f"memory_budget: {size(budget)} is less than the scheme {least.scheme!r} can do, which needs {_needs(least)}."
    )
    if not lines:
        return f"{said} No smaller scheme needs less; frozen layers in int8 (frozen='int8') do."
    return "\n".join([f"{said} Frozen layers in int8 (frozen='int8') take less, and so do other schemes:", *lines])


def _resident(plan: Plan) -> int:
    return plan.costs["resident_bytes"]


def _needs(plan: Plan) -> str:
    costs = plan.costs
    parts = ", ".join(f"{part} {size(costs[f'{part}_bytes'])}" for part in ("arena", "state", "packed", "mapped"))
    again = ", the forward pass computed twice" * plan.recompute
    return f"{that_fits(costs['resident_bytes'])} at the least (micro_batch={plan.micro_batch}{again}: {parts})"
