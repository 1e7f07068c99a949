"""Boards by name, and what fits on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from converter.cli.boards import board_for
from converter.support.errors import UsageError
from converter.tools.micro.boards import KERNELS, board, boards


def test_boards_are_known_by_name() -> None:
    assert {
        "esp32-s3",
        "rp2350",
        "nrf5340",
        "stm32f746",
        "stm32h743",
        "arduino-nano-33",
        "corstone-300",
    } == boards().keys()
    assert all(known.ram_bytes >= 1 << 18 and known.flash_bytes > KERNELS for known in boards().values())
    with pytest.raises(UsageError, match=r"unknown board 'esp32s3'.*esp32-s3"):
        board("esp32s3")


def test_what_fits_and_what_does_not_is_said() -> None:
    nano = board("arduino-nano-33")
    assert nano.fits(256 * 1024)
    assert nano.fit(200 * 1024, 1024) == "fits, with 56.0 KiB of RAM left for the sketch"
    assert nano.fit(200 * 1024).startswith("fits in RAM, with 56.0 KiB of RAM left for the sketch; export-c --board")
    assert not nano.fits(257 * 1024)
    assert nano.fit(257 * 1024, nano.flash_bytes) == (
        "does not fit: 1.0 KiB of RAM too much and 200.0 KiB of flash too much"
    )


def test_a_board_asks_for_the_target_of_boards() -> None:
    flags: dict[str, object] = {"target": None}
    assert board_for("rp2350", flags).name == "rp2350"
    assert flags == {"target": "tflm"}
    with pytest.raises(UsageError, match="--board asks for --target tflm, not gpu"):
        board_for("rp2350", {"target": "gpu"})


def test_the_target_of_a_recipe_is_not_replaced(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('model = "digits-cnn"\ntarget = "gpu"\n')
    with pytest.raises(UsageError, match="--board asks for --target tflm, not gpu"):
        board_for("rp2350", {"target": None}, recipe)
