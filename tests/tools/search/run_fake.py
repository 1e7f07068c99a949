"""A search with fake evaluations in a process of its own, which is killed after some of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.backend.targets import target
from converter.tools.search.budgets import parse_budgets
from converter.tools.search.effort import Effort
from converter.tools.search.evaluator import Evaluator, Progress, SearchJournal
from converter.tools.search.explore import Explorer
from converter.tools.search.found import Found
from converter.tools.search.limit import TimeLimit
from converter.tools.search.subject import Evaluation
from converter.tools.search.workers import Inline
from tests.tools.search.common import NAMED, fake, space

EFFORT = Effort(seeds=3, rates=(0.003, 0.01, 3.0), combinations=2, generations=2, children=3)
PRIOR = {"block_2/w": 1.0, "block_2/b": 1.0}


def run(
    journal: Path | None,
    function: Any = fake,
    budgets: tuple[str, ...] = ("memory=60%",),
    effort: Effort = EFFORT,
    prior: Mapping[str, float] = PRIOR,
    limit: TimeLimit | None = None,
    progress: Progress = lambda how_far: None,
) -> Found:
    """The search; evaluations are made here."""
    evaluator = Evaluator(Inline(function), SearchJournal(journal, {"of": "a test"}), progress, limit)
    explorer = Explorer(space(), evaluator, effort, parse_budgets(budgets, target("litert-2")))
    return Found(explorer.run(NAMED, prior), "fake", "", True, effort, {})


def main() -> None:
    """The arguments: the journal, and with which job the process is killed."""
    left = int(sys.argv[2])

    def dying(job: Evaluation) -> dict[str, Any]:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return fake(job)

    run(Path(sys.argv[1]), dying)


if __name__ == "__main__":
    main()
