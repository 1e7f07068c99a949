"""Search effort: how many candidates are tried, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from converter.tools.search.space import RATIOS


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        seeds: trainings of a scheme on each side of the split.
        rates: learning rates, of which each scheme has its best.
        rate_seeds: trainings of a scheme with each rate, before only the best goes on; None: all.
        combinations: that are proposed at the budgets, where gains add up; half as many at each share of them.
        generations: of the evolution.
        children: of a generation.
        ratios: shares of the channels of a weight that are tried, ascending.
        affordable: whether only parts within the budgets are trained alone.
        named: whether only the named schemes are trained, and of that of the architecture the last blocks that fit: no
            parts alone, and no other combinations.
        measure: whether steps of the named schemes are measured where the trainings are, and what is foreseen of other
            steps is corrected by them.
    """

    seeds: int = 5
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    rate_seeds: int | None = None
    combinations: int = 4
    generations: int = 3
    children: int = 6
    ratios: tuple[float, ...] = RATIOS
    affordable: bool = False
    named: bool = False
    measure: bool = False
