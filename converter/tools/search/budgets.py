"""Search constraints: memory and time of a step, in units or by what other schemes take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converter.backend.targets import Target
from converter.support.errors import UsageError
from converter.support.words import UNITS, that_fits

#: The figure of `converter.backend.costs.costs` that each budget limits.
RESOURCES = {"memory": "resident_bytes", "step": "step_cost"}
#: Nanoseconds of a unit of time.
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@dataclass(frozen=True)
class Budget:
    """A limit.

    Attributes:
        resource: `memory` or `step`.
        amount: of bytes or of the target's unit; or with `of`, a factor.
        of: the scheme whose cost is multiplied, None for none.
        text: as it was written.
    """

    resource: str
    amount: float
    of: str | None
    text: str

    def limit(self, costs: Mapping[str, Mapping[str, float]]) -> float:
        """Return the limit in bytes or the target's unit, from the costs of `full` and `head`."""
        return self.amount if self.of is None else self.amount * costs[self.of][RESOURCES[self.resource]]


def parse_budgets(texts: Sequence[str], target: Target) -> list[Budget]:
    """Budgets such as `memory=64MiB`, `step=40ms`, `step=30%` (of full) and `memory=head+25%`.

    Raises:
        UsageError: one is none of these, or names a time of a target whose table holds no times.
    """
    budgets = [_parse(text, target) for text in texts]
    if len({b.resource for b in budgets}) < len(budgets):
        raise UsageError("budget: one for memory and one for step at the most", page="search")
    return budgets


def check_head(budgets: Sequence[Budget], costs: Mapping[str, Mapping[str, float]]) -> None:
    """Raise UsageError where not even the head is within a budget; the costs are of `head` and what they name."""
    for budget in budgets:
        taken, limit = costs["head"][RESOURCES[budget.resource]], budget.limit(costs)
        if taken > limit:
            said = f", {that_fits(int(taken))}" if budget.resource == "memory" else ""
            raise UsageError(
                f"budget {budget.text}: the head alone takes {taken / limit:.2f} times that{said}. Give it more, or "
                "take a smaller batch or micro-batch, fewer signatures, or int8 for frozen layers (frozen='int8')",
                page="search",
            )


def _parse(text: str, target: Target) -> Budget:
    resource, _, amount = text.partition("=")
    if resource not in RESOURCES:
        raise UsageError(f"budget: expected memory=... or step=..., got {text!r}", page="search")
    if found := re.fullmatch(r"(head\+)?(\d+(?:\.\d+)?)%", amount):
        share = float(found[2]) / 100
        return Budget(resource, 1 + share, "head", text) if found[1] else Budget(resource, share, "full", text)
    units = UNITS if resource == "memory" else _TIMES
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", amount)
    if found is None or found[2] not in units or not float(found[1]):
        example = "64MiB" if resource == "memory" else "40ms"
        raise UsageError(
            f"budget: expected {resource}={example}, {resource}=30% (of full) or {resource}=head+25%, got {text!r}",
            page="search",
        )
    if resource == "step" and target.unit != "ns":
        raise UsageError(
            f"budget: the costs of the target {target.name} are in {target.unit or 'a unit of its own'}, not in "
            f"time, so {text} cannot be told: say step=30% (of full) or step=head+25%, or measure this "
            "machine (--profile measured) or a phone (scripts/device measure phone.toml, --target phone.toml)",
            page="search",
        )
    return Budget(resource, float(found[1]) * units[found[2]], None, text)
