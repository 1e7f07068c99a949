"""The last lines of a run: what was left out, counted by reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

#: Tests that `-m` or `-k` left out.
DESELECTED = pytest.StashKey[int]()
#: By which name a process of xdist tells their number to the one that reports.
TOLD = "deselected"


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts them."""
    if items:
        stash = items[0].config.stash
        stash[DESELECTED] = stash.get(DESELECTED, 0) + len(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tells their number, in a process of xdist."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[TOLD] = session.config.stash.get(DESELECTED, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes what a process of xdist told: all of them collect the same tests."""
    node.config.stash[DESELECTED] = getattr(node, "workeroutput", {}).get(TOLD, 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Writes a line for each reason, the commonest first."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if count := config.stash.get(DESELECTED, 0):
        asked = [f"-{letter} '{value}'" for letter in "mk" if (value := config.getoption(f"-{letter}"))]
        reasons[f"not asked for by {' '.join(asked)}"] += count
    for reason, count in sorted(reasons.items(), key=lambda each: (-each[1], each[0])):
        terminalreporter.write_line(f"tests: left out: {count} x {reason}")
