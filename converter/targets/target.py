"""A target: runtime, version and processor, with what each form of an operator costs there.

The form of an operator depends on all three: a trainable 3x3 convolution costs 1.2 times its frozen twin in the kernels
of an arm64 phone and 5 times on x86-64, where splitting it into matrix products wins. The tables beside this file hold
measured costs; `scripts/bench/forms.py` measures them again.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from converter.errors import UsageError, nearest


@dataclass(frozen=True)
class Target:
    """One table.

    Attributes:
        name: as the person writes it, e.g. `litert-2/x86-64`.
        description: runtime, version, processor, and where the figures come from.
        per_mac: cost of one multiply-accumulate by form, in the table's own unit.
        per_byte: cost of one byte read or written by form, in the same unit.
        per_operator: cost of dispatching one operator, in the same unit.
        lanes: columns that the kernel of a matrix product computes at once.
    """

    name: str
    description: str
    per_mac: Mapping[str, float]
    per_byte: Mapping[str, float]
    per_operator: float
    lanes: int

    def macs(self, form: str, count: int) -> float:
        """Cost of an operator of `count` multiply-accumulates in a form."""
        return self.per_mac[form] * count + self.per_operator

    def product(self, rows: int, columns: int) -> float:
        """Cost of a BATCH_MATMUL of `rows` (and depth) by `columns`; its kernels compute whole vectors of columns."""
        return self.macs("batch_matmul", rows * -(-columns // self.lanes) * self.lanes)

    def moved(self, form: str, nbytes: int) -> float:
        """Cost of reading and writing `nbytes` in all by elementwise operators (`delegated`), or the form named."""
        return self.per_byte[form] * nbytes + self.per_operator if nbytes else 0.0


def names() -> list[str]:
    """The targets there is a table for."""
    files = resources.files("converter.targets").iterdir()
    return sorted(tomllib.loads(f.read_text())["name"] for f in files if f.name.endswith(".toml"))


def target(name: str | Target) -> Target:
    """A target by name. Raises UsageError for an unknown one."""
    if isinstance(name, Target):
        return name
    if not isinstance(name, str):
        raise UsageError(f"target must be a name, not {name!r}. Known: {', '.join(names())}.")
    for file in resources.files("converter.targets").iterdir():
        if file.name.endswith(".toml"):
            table = tomllib.loads(file.read_text())
            if table["name"] == name:
                return Target(**table)
    raise UsageError(f"unknown target {name!r}.{nearest(name, names())} Known: {', '.join(names())}.")
