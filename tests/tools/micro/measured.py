"""What a step takes on a Cortex-M4 that QEMU emulates: the table of docs/microcontrollers.md, row by row.

    MICRO_SOURCES=FOLDER python -m tests.tools.micro.measured [head last mcunet ...]

It takes what `test_boards.py` does. A row is printed as it is done: bytes of the arena that are predicted, used, and
predicted of plain inference; of state and file; instructions of a step and of `infer`; and how far losses are from
LiteRT's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import converter
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.tools.micro.entries import row_values
from converter.tools.micro.export import export_c
from scripts.micro.boards import BOARDS
from scripts.micro.building import firmware
from scripts.micro.device import Device, command
from tests.runtime.engines.micro_nets import keyword_net

BOARD, STEPS = "cortex-m4", 3
ON_FEATURES = ("train", "features", "infer")
LAST = {"point3/*": 1, "head/*": 1}
#: By name: what trains, and whether layers in front of it are int8.
KEYWORD: dict[str, tuple[Any, bool, tuple[str, ...] | None]] = {
    "head-int8": ("head", True, None),
    "head-features": ("head", True, ON_FEATURES),
    "head": ("head", False, None),
    "last-int8": (LAST, True, None),
    "last": (LAST, False, None),
    "full": ("full", False, None),
}
#: The last block's biases and the classifier.
MCUNET = {"block_13_*BN/beta": 1, "classifier/*": 1}


def built(name: str) -> bytes:
    """Return a program of the table."""
    options: dict[str, Any] = {"optimizer": "sgd", "batch": 1, "target": "tflm", "check": False}
    if name == "mcunet":
        from examples import mcunet

        options |= {"frozen": "int8", "calibration": mcunet.sample_batch(8)[0]}
        return converter.build(mcunet.build(), update=MCUNET, signatures=ON_FEATURES, **options).data
    update, int8, signatures = KEYWORD[name]
    net = keyword_net()
    if int8:
        options |= {"frozen": "int8", "calibration": {"x": net.rows(16, np.random.default_rng(0))}}
    options |= {"signatures": signatures} if signatures else {}
    return converter.build(net.model(), update=update, loss="sparse_categorical_crossentropy", **options).data


def measured(data: bytes, sources: Path, folder: Path) -> str:
    """Return what a board makes of a few steps, in words."""
    made = export_c(data, folder / "c")
    sizes = {"ARENA_BYTES": made.arena, "VALUES_BYTES": 1 << 18, "RESULT_BYTES": 1 << 18}
    board = BOARDS[BOARD]
    device = Device(firmware(folder / "c", sources, board, sources / BOARD, sizes), board, folder)
    manifest, rng = read_program(data).manifest, np.random.default_rng(1)
    rows = [
        [
            rng.integers(0, 4, s.shape[1:]).astype(s.dtype) if s.dtype == "int32" else
            rng.standard_normal(s.shape[1:]).astype(np.float32)
            for s in row_values(manifest)
        ]
        for _ in range(STEPS)
    ]  # fmt: skip
    answers = device.run([*(command("t", 2, [row]) for row in rows), command("i", 2, [rows[0][:1]])])
    if wrong := {answer.status for answer in answers} - {"ok"}:
        raise RuntimeError(f"the board said: {', '.join(wrong)}")
    with TrainingSession(data) as session:
        losses = [session.train(*(value[None] for value in row)) for row in rows]
    apart = np.abs([answer.floats()[0] for answer in answers[:STEPS]] - np.array(losses)).max()
    step, infer = (1_000_000_000 // board.hertz * answer.ticks for answer in answers[STEPS - 1 :])
    largest = max(made.arenas.values())
    return (
        f"arena {largest} predicted, {device.arena_used} used, {made.arenas['infer']} of infer; "
        f"state {made.state}; session {device.session}; file {len(data)}; "
        f"instructions {step:,} a step, {infer:,} of infer: {step / infer:.2f} times; "
        f"losses {apart:.1e} from LiteRT's"
    )


def main(names: list[str]) -> None:
    for name in names or [*KEYWORD, "mcunet"]:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {measured(built(name), Path(os.environ['MICRO_SOURCES']), Path(folder))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
