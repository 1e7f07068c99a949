"""An example's program as a board runs it: exported, built, taught under QEMU, beside the stock wheel.

    MICRO_SOURCES=FOLDER .venv/bin/python -m scripts.micro.rehearsal wake-word    # or wake-word-dense, anomaly

It takes what `tests/tools/micro/test_boards.py` does, and the extra `micro`. The net is pretrained less than where its
accuracy is measured, which changes neither memory nor instructions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from converter.tools.micro.export import export_c
from scripts.arguments import parser
from scripts.micro.boards import BOARDS
from scripts.micro.building import firmware, flash
from scripts.micro.device import Device, command
from scripts.micro.wheel import trained

Row = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Rehearsed:
    """What a board took and gave.

    Attributes:
        arena, session, flash, file: bytes: used of the arena; of the session with its state; of code, kernels and
            program; of a saved state.
        step, infer: instructions.
        difference: of losses and of the state behind the last step, at most, from the wheel's.
    """

    arena: int
    session: int
    flash: int
    file: int
    step: int
    infer: int
    difference: float


def rehearsed(whole: bytes, step: bytes, rows: Sequence[Row], rate: float, sources: Path, board: str) -> Rehearsed:
    """Return what an emulated board makes of rows, one step each.

    Args:
        whole: a program.
        step: the same with `signatures=["train"]`.
        rows: x and y of each.
        rate: learning rate.
        sources: checkouts; see `building`.
        board: its name in `boards.BOARDS`.
    """
    losses, state = trained(step, rows, rate)
    with tempfile.TemporaryDirectory() as made:
        folder, chosen = Path(made), BOARDS[board]
        exported = export_c(whole, folder / "c")
        sizes = {"ARENA_BYTES": exported.arena, "VALUES_BYTES": 1 << 16, "RESULT_BYTES": 1 << 16}
        device = Device(firmware(folder / "c", sources, chosen, sources / board, sizes), chosen, folder)
        taught = [command("t", 2, [(x, y)]) for x, y in rows]
        first = [command("v", 2, [(np.float32(rate), np.float32(0))]), *taught]
        *answers, inferred, saved, dumped = device.run(
            [*first, command("i", 2, [(rows[0][0],)]), command("s", 2), command("d", 2)]
        )
        if wrong := {answer.status for answer in (*answers, inferred, saved, dumped)} - {"ok"}:
            raise RuntimeError(f"the board said: {', '.join(wrong)}")
        apart = np.abs([answer.floats()[0] for answer in answers[1:]] - np.array(losses)).max()
        numbers = np.concatenate([array.reshape(-1) for array in state.values()])
        apart = max(apart, np.abs(dumped.floats() - numbers).max())
        ticks = [1_000_000_000 // chosen.hertz * answer.ticks for answer in (answers[-1], inferred)]  # one a nanosecond
        file = (folder / "place-0.state").stat().st_size
        return Rehearsed(device.arena_used, device.session, flash(device.elf), file, *ticks, float(apart))


def wake_word(sources: Path, board: str = "cortex-m4", hidden: int = 0) -> Rehearsed:
    """Return what the wake word's board takes for the twenty utterances of an owner; of `hidden` see `pretrained`."""
    from examples import micro_wake_word as example
    from examples.data.micro_speech import people

    net = example.pretrained(people("pretraining")[:2], epochs=1, said=16, hidden=hidden)
    taught, _ = example.of_an_owner(people("owners")[0], 0)
    programs = [example.program(net, **options).data for options in ({}, {"signatures": ["train"]})]
    return rehearsed(*programs, list(zip(*taught, strict=True)), 0.003, sources, board)


def anomaly(sources: Path, board: str = "cortex-m4", rows: int = 60) -> Rehearsed:
    """Return what the autoencoder's board takes for the first ten minutes of a machine."""
    from examples import micro_anomaly as example

    weights = example.pretrained(machines=2, each=20, epochs=2)
    taught = example.rows([example.machine(100)], rows, 9)
    programs = [example.program(weights, **options).data for options in ({}, {"signatures": ["train"]})]
    return rehearsed(*programs, list(zip(taught, taught, strict=True)), 0.03, sources, board)


#: Numbers of the layer in front of the last one, where a head has one.
HIDDEN = 16
#: Names the folder of checkouts.
SOURCES = "MICRO_SOURCES"
#: What gives an example's figures for a folder of checkouts.
Example = Callable[[Path], Rehearsed]
EXAMPLES: dict[str, Example] = {
    "wake-word": wake_word,
    "wake-word-dense": partial(wake_word, hidden=HIDDEN),
    "anomaly": anomaly,
}

if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("example", choices=EXAMPLES)
    example = options.parse_args().example
    if SOURCES not in os.environ:
        options.error(f"{SOURCES} names no folder with checkouts of TensorFlow Lite Micro and what it includes")
    print(EXAMPLES[example](Path(os.environ[SOURCES])))
