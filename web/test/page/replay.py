"""What the host's runtime makes of the batches that the page trained on.

    replay.py PROGRAM BATCHES EXPORTED HOST

Prints as JSON the losses of the steps in BATCHES (rows of images and labels, and a learning rate), how good the model
is on the drawings held out in BATCHES before and after them, and with the state that the page EXPORTED; writes its own
state to HOST.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from converter.runtime import TrainingSession


def main() -> None:
    """See above."""
    program, batches, exported, host = sys.argv[1:]
    given = json.loads(Path(batches).read_text())

    def rows(drawings: list[dict]) -> tuple[np.ndarray, np.ndarray]:
        images = np.array([drawing["image"] for drawing in drawings], np.float32).reshape(-1, 8, 8, 1)
        return images, np.array([drawing["label"] for drawing in drawings], np.int32)

    with TrainingSession(program) as session:
        before = session.evaluate(*rows(given["held"]))
        losses = [session.train(*rows(step["rows"]), step["rate"]) for step in given["steps"]]
        after = session.evaluate(*rows(given["held"]))
        Path(host).unlink(missing_ok=True)
        session.save(host)
        session.restore(exported)
        restored = session.evaluate(*rows(given["held"]))
    print(json.dumps({"losses": list(map(float, losses)), "before": before, "after": after, "restored": restored}))


if __name__ == "__main__":
    main()
