"""When curves of accuracy arrive, and what that comes to over the choices of samples."""

from __future__ import annotations

from typing import Any

import numpy as np


def summed_up(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each side what it reaches, and when it stays at full's own accuracy; None where it never does."""
    ends = [curve[-1]["accuracy"] for curve in found[0]["curves"]]
    wanted = float(np.mean(ends) - np.std(ends, ddof=min(1, len(ends) - 1)) / 2)
    rows = []
    for side in found:
        there = [arrival(curve, wanted) for curve in side["curves"]]
        times = {key: [each[key] for each in there if each is not None] for key in ("cpu_s", "wall_s")}
        mean = {key: float(np.mean(of)) if len(of) == len(there) else None for key, of in times.items()}
        error = (
            float(np.std(times["cpu_s"], ddof=1) / np.sqrt(len(there)))
            if len(times["cpu_s"]) == len(there) > 1
            else None
        )
        final = float(np.mean([curve[-1]["accuracy"] for curve in side["curves"]]))
        reached = sum(each is not None for each in there)
        rows.append({**side, "wanted": wanted, "final": final, "reached": reached, **mean, "cpu_error_s": error})
    return rows


def arrival(curve: list[dict[str, float]], wanted: float) -> dict[str, float] | None:
    """Return the first point of a curve from which on accuracy stays at what is wanted; None where it does not."""
    below = [place for place, point in enumerate(curve) if point["accuracy"] < wanted]
    first = below[-1] + 1 if below else 0
    return curve[first] if first < len(curve) else None
