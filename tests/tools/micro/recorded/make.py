"""Records `board.tflite.gz` and `board.state`: an emulated Cortex-M4 trains a program and saves.

    MICRO_SOURCES=FOLDER python -m tests.tools.micro.recorded.make

`phone.state` is what BoardTest of android_app/runtime-tflite saved: it restored that state and made one step more
(android_app/target/programs/board-phone.state).
"""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path

import numpy as np

import converter
from converter.tools.micro.export import export_c
from scripts.micro.boards import BOARDS
from scripts.micro.building import firmware
from scripts.micro.device import Device, command
from tests.runtime.engines.micro_nets import NETS
from tests.tools.micro.recorded import BATCH, HERE, RATE, STEPS, rows


def main(sources: Path, folder: Path) -> None:
    options = {"loss": "sparse_categorical_crossentropy", "optimizer": "adam", "batch": BATCH, "micro_batch": 1}
    built = converter.build(NETS["mlp-elu"]().model(), target="tflm", check=False, **options)
    (HERE / "board.tflite.gz").write_bytes(gzip.compress(built.data, 9, mtime=0))
    sizes = {"ARENA_BYTES": export_c(built.data, folder / "c").arena, "VALUES_BYTES": 1 << 14, "RESULT_BYTES": 1 << 14}
    elf = firmware(folder / "c", sources, BOARDS["cortex-m4"], sources / "cortex-m4", sizes)
    x, y = rows()
    taught = [
        list(zip(*(part[at : at + BATCH] for part in (x, y)), strict=True)) for at in range(0, STEPS * BATCH, BATCH)
    ]
    rate = [[np.float32(RATE), np.float32(0)]]
    commands = [command("v", 2, rate), *(command("t", 2, step) for step in taught), command("s", 2)]
    answers = Device(elf, BOARDS["cortex-m4"], folder).run(commands)
    assert {answer.status for answer in answers} == {"ok"}
    (HERE / "board.state").write_bytes((folder / "place-0.state").read_bytes())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(os.environ["MICRO_SOURCES"]), Path(made))
