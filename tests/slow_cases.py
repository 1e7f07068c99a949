"""Writes tests/slow_cases.txt, the cases that only the whole run takes, from what a run of the tests has measured.

scripts/test --slow --costs costs                               # hours; or what has changed:
.venv/bin/python -m pytest -m "slow or not slow" --costs costs tests/runtime
.venv/bin/python -m tests.slow_cases costs

Cases that the run did not take stay in the list: a quick run can add to it, a whole one decides anew.
"""

from __future__ import annotations

from pathlib import Path

from scripts.arguments import parser
from tests.tiers import LIST, read_costs, slow_cases


def main() -> None:
    """Writes the list and says what the quick run takes of what was measured."""
    arguments = parser(__doc__)
    arguments.add_argument("costs", type=Path, help="the folder of pytest's --costs")
    costs = read_costs(arguments.parse_args().costs)
    slow = slow_cases(costs)
    measured = {cost.case for cost in costs}
    kept = [case for case in LIST.read_text(encoding="utf-8").splitlines() if case not in measured]
    LIST.write_text("".join(f"{case}\n" for case in sorted([*kept, *slow])), encoding="utf-8")
    quick, all_of_it = len(costs) - len(slow), sum(cost.seconds for cost in costs)
    seconds = sum(cost.seconds for cost in costs if cost.case not in set(slow))
    print(f"{quick} of {len(costs)} cases are quick: {seconds:.0f} of {all_of_it:.0f} s")


if __name__ == "__main__":
    main()
