"""Memory budget: chooses the largest micro-batch that fits, else recomputes the forward pass, else says what would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from converter.driver.options import declared
from converter.driver.program import Choice, Plan
from converter.ir import Graph, reachable
from converter.support.errors import PocketuneError, UsageError
from converter.support.words import size, that_fits

#: Schemes that are looked at where the one that was asked for does not fit; the first trains least.
OTHERS = ("head", "sparse", "last-3", "last-2", "bias-only", "lora")


def check_room(budget: int, model: Graph) -> None:
    """Raise UsageError where the weights of a forward graph alone, in int4, are more than the budget."""
    needed = reachable(model, list(model.outputs.values()))
    weights = sum(prod(v.type.shape) for v in model.parameters if v in needed) // 2
    if weights > budget:
        raise UsageError(
            f"memory_budget: {size(budget)} is less than the weights of the model alone, which take {size(weights)} in "
            "int4: no scheme fits",
            page="memory-budget",
        )


def fit(
    budget: int,
    sizes: Sequence[int],
    ways: Sequence[bool],
    plan: Callable[[int, bool], Plan],
    other: Callable[[str, str], Plan],
) -> Plan:
    """Return the plan with the largest micro-batch whose resident memory is within the budget.

    The whole batch needs no accumulators, so it is tried first; among true micro-batches memory grows with the rows, so
    the least is tried next, and the others by halves. Where none fits, the same again with the forward pass computed
    twice. What is hopeless by what was compiled so far is not compiled.

    Args:
        budget: bytes.
        sizes: micro-batches to choose from, ascending.
        ways: whether the backward pass computes the forward pass again, in the order in which that is tried.
        plan: that of a micro-batch, and of whether the backward pass computes the forward pass again.
        other: that of a named scheme, with frozen layers in float32 or int8, for micro-batches of one row.

    Raises:
        UsageError: nothing fits; it says what this scheme needs, and which others fit.
    """
    *parts, whole = sizes
    tried: dict[tuple[bool, int], Plan] = {}

    def fits(rows: int, again: bool) -> bool:
        if min((_fixed(each, again) for each in tried.values()), default=0) > budget:
            return False
        tried[again, rows] = plan(rows, again)
        return _resident(tried[again, rows]) <= budget

    for again in ways:
        if rows := whole if fits(whole, again) else _largest(parts, partial(fits, again=again)):
            return replace(tried[again, rows], tried=[Choice.of(tried[key]) for key in sorted(tried)])
    least = min(tried.values(), key=_resident)
    if any(again for again, _ in tried):
        needs = _needs(least)
    else:
        packs_alike = len(tried) > 1 or not parts
        needs = f"more than {size(min(_fixed(each, packs_alike) for each in tried.values()))}"
    said = f"memory_budget: {size(budget)} is less than the scheme {least.scheme!r} can do, which needs {needs}."
    raise UsageError(f"{said} {_instead(budget, least, other)}", page="memory-budget")


def _largest(sizes: Sequence[int], fits: Callable[[int], bool]) -> int:
    """Return the largest that fits where a smaller one fits if a larger does; 0 where none does."""
    if not sizes or not fits(sizes[0]):
        return 0
    low, high = 1, len(sizes)  # sizes[:low] fit, sizes[high:] do not
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(sizes[middle]) else (low, middle)
    return sizes[low - 1]


def _instead(budget: int, least: Plan, other: Callable[[str, str], Plan]) -> str:
    """Return what fits where a scheme does not, in words; of what does not fit either, the least."""
    found: list[tuple[str, Plan]] = []
    for frozen in declared()["frozen"].metadata["choices"]:
        for name in OTHERS:
            said = f"update={name!r}" + f", frozen={frozen!r}" * (frozen != "float32")
            try:
                found.append((said, other(name, frozen)))
            except PocketuneError:  # not for this model, or without a layer that becomes so
                continue
            if name == "head" and _fixed(found[-1][1], packed=False) > budget:
                break  # what trains more has more state
    able = sorted(
        ((said, each) for said, each in found if _resident(each) <= budget),
        key=lambda item: -item[1].costs["trained_parameters"],
    )
    if able:
        return "\n".join(["These fit:", *(f"    {said}: {_needs(each)}" for said, each in able)])
    found.sort(key=lambda item: _resident(item[1]))
    if not found or _resident(found[0][1]) >= _resident(least):
        return "No other scheme needs less."
    return f"No other scheme fits; the least is\n    {found[0][0]}: {_needs(found[0][1])}"


def _fixed(plan: Plan, packed: bool) -> int:
    """Return what other micro-batches have as well.

    With `packed`, what the forward pass computed again leaves as it is.
    """
    return sum(plan.costs[f"{part}_bytes"] for part in ("state", "mapped", *["packed"] * packed))


def _resident(plan: Plan) -> int:
    return plan.costs["resident_bytes"]


def _needs(plan: Plan) -> str:
    costs = plan.costs
    parts = ", ".join(f"{part} {size(costs[f'{part}_bytes'])}" for part in ("arena", "state", "packed", "mapped"))
    again = ", the forward pass computed twice" * plan.recompute
    return f"{that_fits(costs['resident_bytes'])} at the least (micro_batch={plan.micro_batch}{again}: {parts})"
