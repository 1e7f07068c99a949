"""The host's worker with a planted slowdown: jobs of the build `new` take 8 % longer in every step.

python -m tests.harness.slow_worker JOB RESULTS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from converter.runtime import TrainingSession
from scripts.harness import worker

SLOWDOWN = 0.08


class SlowSession(TrainingSession):
    """Busy for a while after each step."""

    def train(self, *arguments: Any, **named: Any) -> float:
        began = time.perf_counter()
        loss = super().train(*arguments, **named)
        until = time.perf_counter() + SLOWDOWN * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
        return loss


if __name__ == "__main__":
    if "-new-" in Path(sys.argv[1]).name:
        worker.TrainingSession = SlowSession  # type: ignore[misc]
    worker.main()
