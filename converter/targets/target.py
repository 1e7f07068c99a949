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
        per_byte: cost of one byte read or written by form, in the same unit, while what is touched stays in the cache.
        per_byte_beyond: the same where it does not.
        per_operator: cost of dispatching one operator, in the same unit.
        lanes: columns that the kernel of a matrix product computes at once.
        cache_bytes: what one core has to itself (its second level).
        forced: names of forms that are taken wherever they are possible, whatever they cost.
    """

    name: str
    description: str
    per_mac: Mapping[str, float]
    per_byte: Mapping[str, float]
    per_byte_beyond: Mapping[str, float]
    per_operator: float
    lanes: int
    cache_bytes: int
    forced: frozenset[str] = frozenset()

    def macs(self, form: str, count: int) -> float:
        """Cost of an operator of `count` multiply-accumulates in a form."""
        return self.per_mac[form] * count + self.per_operator

    def product(self, m: int, k: int, n: int, constant: bool = False, touched: int | None = None) -> float:
        """Cost of a matrix product [m, k] x [k, n]; its kernels compute whole vectors of columns.

        Args:
            m: rows of the left operand.
            k: columns of the left operand.
            n: columns of the right operand.
            constant: the right operand is known at compile time; one that is not is packed at each run.
            touched: see `moved`; of the packing.
        """
        macs = m * k * -(-n // self.lanes) * self.lanes
        if constant:
            return self.macs("fully_connected.constant", macs)
        return self.macs("batch_matmul", macs) + self.moved("packed", 4 * k * n, touched)

    def moved(self, form: str, nbytes: int, touched: int | None = None) -> float:
        """Cost of reading and writing `nbytes` in all by elementwise operators (`delegated`), or the form named.

        Args:
            form: the kind of movement.
            nbytes: read and written.
            touched: bytes that are in use around it, which stay in the cache or do not; None: these alone.
        """
        if not nbytes:
            return 0.0
        far = (nbytes if touched is None else touched) > self.cache_bytes
        return (self.per_byte_beyond if far else self.per_byte)[form] * nbytes + self.per_operator


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
