"""Boards that QEMU emulates: how to compile for them, and where their memory lies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Board:
    """A board.

    Attributes:
        machine: as QEMU calls it.
        flags: of the compiler.
        memory: where vectors, code and data lie, and how many bytes, as the linker script names them.
        hertz: of the clock that the counter counts.
    """

    machine: str
    flags: tuple[str, ...]
    memory: dict[str, int]
    hertz: int


BOARDS = {
    "cortex-m4": Board(
        "mps2-an386",
        ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"),
        {"VECTORS_AT": 0, "FLASH_AT": 0x400, "FLASH_BYTES": 0x3FFC00, "RAM_AT": 0x20000000, "RAM_BYTES": 0x400000},
        25_000_000,
    ),
    "cortex-m55": Board(
        "mps3-an547",
        ("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"),
        {"VECTORS_AT": 0, "FLASH_AT": 0x400, "FLASH_BYTES": 0x7FC00, "RAM_AT": 0x21000000, "RAM_BYTES": 0x200000},
        32_000_000,
    ),
}
