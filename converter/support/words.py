"""Human-readable figures: sizes, counts, shares, and what those of `converter.backend.costs.costs` are called."""

from __future__ import annotations

import re
from math import ceil

from converter.support.errors import UsageError

#: The figures of `converter.backend.costs.costs` in words, in the order shown; the flag says that they are bytes.
COSTS: dict[str, tuple[str, bool]] = {
    "trained_parameters": ("trained parameters", False),
    "flops_forward": ("FLOPs forward", False),
    "flops_backward": ("FLOPs backward", False),
    "flops_update": ("FLOPs update", False),
    "step_cost": ("step by the target's table", False),
    "product_cost": ("products in it", False),
    "traffic_bytes": ("traffic beyond the cache", True),
    "read_bytes": ("read from the file", True),
    "labels": ("labels", False),
    "residual_bytes": ("residuals", True),
    "resident_bytes": ("resident memory", True),
    "arena_bytes": ("arena", True),
    "state_bytes": ("state", True),
    "packed_bytes": ("packed weights and operators", True),
    "mapped_bytes": ("mapped file", True),
    "file_bytes": ("file", True),
}


#: Bytes a second that the flash of a phone gives, at the least and at the most.
FLASH = (1e9, 2e9)
#: Bytes of the file that a step reads, from which on it is said.
MUCH_READ = 16_000_000


def reading(nbytes: float, least: float | None = None, most: float | None = None) -> str:
    """Return how long a step reads the file where no page of it stays in memory, and whether it waits for that.

    Args:
        nbytes: that a step reads, each as often as it is read.
        least: seconds that the step computes; None where they are not known.
        most: the same, where it takes longest.
    """
    quick, slow = nbytes / FLASH[1], nbytes / FLASH[0]
    said = (
        f"a step reads {size(nbytes)} of the file, {quick:.2g} to {slow:.2g} s from flash of 1 to 2 GB/s where memory "
        "lends it no page"
    )
    if least is None or most is None:
        return said
    if slow <= least:
        return f"{said}: less than it computes"
    return f"{said}: {'more' if quick > most else 'perhaps more'} than it computes"


def counted(number: int, noun: str) -> str:
    """So many of what the noun says, one or several."""
    return f"{number} {noun}{'s' * (number > 1)}"


def share(fraction: float) -> str:
    """Return how much of a parameter trains."""
    return {0.0: "frozen", 1.0: "all"}.get(fraction, f"{fraction:.1%}")


def amount(name: str, value: float | None, unit: str = "") -> str:
    """Return a figure of `converter.backend.costs.costs` with its unit.

    Args:
        name: its key in `COSTS`.
        value: None where it is not known.
        unit: of the target's table, `ns` or `instructions`; empty where its numbers only compare with each other.
    """
    if value is None:
        return "unknown"
    if name in ("step_cost", "product_cost"):
        return f"{value / 1e6:.3g} ms" if unit == "ns" else f"{count(value)} {unit or 'by comparison'}"
    return size(value) if COSTS[name][1] else count(value)


def figure(name: str, value: float) -> str:
    """Return what `evaluate` gives under a name: shares (`accuracy`, `top_5`) in percent, all else as a number."""
    if name.rpartition("_")[2] == "accuracy" or "top_" in name:
        return f"{100 * value:.1f} %"
    return f"{value:.4g}"


def size(nbytes: float) -> str:
    """Return bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def count(number: float) -> str:
    """Return a number in thousands, millions, ..."""
    for unit in ("", " k", " M"):
        if number < 1000:
            return f"{number:.0f}" if not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.2f} G"


UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_bytes(budget: str | int) -> int:
    """Return bytes from `"64MiB"`, `"1.5 GB"` or a number of bytes. Raises UsageError."""
    if isinstance(budget, int) and not isinstance(budget, bool) and budget > 0:
        return budget
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B|B)\s*", budget) if isinstance(budget, str) else None
    if found is None or not float(found[1]):
        raise UsageError(f"memory_budget: expected a size such as 64MiB or 100MB, got {budget!r}", page="memory-budget")
    return round(float(found[1]) * UNITS[found[2]])


def that_fits(nbytes: int) -> str:
    """Return the least size in binary units, as it can be given for a budget, in which so many bytes are."""
    unit = next((name for name in ("GiB", "MiB", "KiB") if nbytes >= UNITS[name]), "B")
    return f"{ceil(100 * nbytes / UNITS[unit]) / 100:.2f} {unit}"
