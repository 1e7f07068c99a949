"""A program of a microcontroller and the state that a board saved, with what the host makes of it (test_programs.py).

OUT/board.tflite and OUT/board.state; OUT/board.x and OUT/board.y are the rows of one step more, OUT/board.losses and
OUT/board-trained.state what it comes to, OUT/board-phone.recorded what Kotlin saved of the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from converter.runtime import TrainingSession
from tests.tools.micro.recorded import BATCH, HERE, RATE, program, rows


def write_board(out: Path) -> None:
    """Write the files."""
    (out / "board.tflite").write_bytes(program())
    for name, recorded in (("board.state", "board.state"), ("board-phone.recorded", "phone.state")):
        (out / name).write_bytes((HERE / recorded).read_bytes())
    x, y = (part[-BATCH:] for part in rows())
    x.tofile(out / "board.x")
    y.tofile(out / "board.y")
    with TrainingSession(program()) as session:
        session.restore(out / "board.state")
        np.array([session.train(x, y, RATE)], np.float32).tofile(out / "board.losses")
        # The generation behind the board's, as the phone's.
        trained = out / "board-trained.state"
        trained.write_bytes((out / "board.state").read_bytes())
        session.save(trained)
