"""What kills its worker. In a file of its own, which a worker reads in no time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from converter.tools.search.subject import Evaluation


class Mortal:
    """Kills its process on the first job that it meets."""

    def __init__(self, folder: Path, always: bool = False) -> None:
        self._mark, self._always = folder / "died", always

    def __call__(self, job: Evaluation) -> dict[str, Any]:
        if self._always or not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"of": job.update}


class Slow:
    """A job whose scheme is `for ever` takes ten minutes, others nothing."""

    def __call__(self, job: Evaluation) -> dict[str, Any]:
        if job.update == "for ever":
            time.sleep(600)
        return {"of": job.update}
