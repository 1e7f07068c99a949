"""Boards of microcontrollers by name (`boards.toml`), and whether a program fits on one."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from converter.support.errors import UsageError, nearest
from converter.support.records import decode
from converter.support.words import size

#: Bytes of flash of TensorFlow Lite Micro with the kernels of a program, about (Cortex-M4, GCC with -O2).
KERNELS = 200 * 1024


@dataclass(frozen=True)
class Board:
    """A microcontroller.

    Attributes:
        name: as a user writes it.
        title: what it is sold as.
        core: of its processor.
        ram_bytes: the largest piece that one array may take.
        flash_bytes: of the usual version.
        mhz: the highest clock.
        per_cycle: instructions of the reference kernels that it retires in a cycle, at the least and at the most.
        float_unit: whether float32 is computed by the hardware.
        vector: a unit that computes several numbers at once; empty where there is none.
    """

    name: str
    title: str
    core: str
    ram_bytes: int
    flash_bytes: int
    mhz: int
    per_cycle: tuple[float, ...]
    float_unit: bool
    vector: str

    def said(self) -> str:
        """Return what it is, in a line."""
        units = ["hardware float" if self.float_unit else "no hardware float", *([self.vector] if self.vector else [])]
        memory = f"RAM {size(self.ram_bytes)}, flash {size(self.flash_bytes)}"
        return f"{self.title}: {self.core} at {self.mhz} MHz, {', '.join(units)}, {memory}"

    def fits(self, ram: int, flash: int | None = None) -> bool:
        """Return whether a program fits: its arena and state, and its models, where known, with TFLM's kernels."""
        return ram <= self.ram_bytes and (flash or 0) + KERNELS <= self.flash_bytes

    def fit(self, ram: int, flash: int | None = None) -> str:
        """Return whether it fits, and by how much, in words; of the RAM alone where the flash is not known."""
        lacks = [
            f"{size(needed - there)} of {kind} too much"
            for kind, needed, there in (
                ("RAM", ram, self.ram_bytes),
                ("flash", (flash or 0) + KERNELS, self.flash_bytes),
            )
            if needed > there
        ]
        if not lacks:
            left = f"with {size(self.ram_bytes - ram)} of RAM left for the sketch"
            return (
                f"fits, {left}" if flash is not None else f"fits in RAM, {left}; export-c --board looks at flash, too"
            )
        return f"does not fit: {' and '.join(lacks)}"


#: What takes less, for who has a program that does not fit.
ADVICE = (
    "less of the net trained (--update), frozen='int8', micro_batch=1, or plain descent (--optimizer sgd) take less"
)


@cache
def boards() -> dict[str, Board]:
    """Return all boards that are known, by name."""
    table = tomllib.loads((resources.files(__package__) / "boards.toml").read_text())
    return {found.name: found for found in (decode(Board, entry, "boards.toml") for entry in table["board"])}


def board(name: str) -> Board:
    """Return a board by name.

    Raises:
        UsageError: an unknown name.
    """
    known = boards()
    if name not in known:
        raise UsageError(
            f"unknown board {name!r}.{nearest(name.lower(), known)} Known: {', '.join(known)}.", page="targets"
        )
    return known[name]
