"""Evolutionary search where gains do not add up: candidates mutate, mix, and are trained for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from converter.tools.search.space import Candidate, Space

#: How often a child that costs too much, or is known, is drawn again.
_DRAWS = 8
#: The share of children that have two parents.
_MIXED = 0.5

#: Of candidates those within the budgets.
Able = Callable[[Sequence[Candidate]], Sequence[Candidate]]
#: The score of each candidate, which has been trained; None where that failed.
Scores = Callable[[Sequence[Candidate]], Sequence[float | None]]


def evolve(
    space: Space, first: Sequence[Candidate], able: Able, scores: Scores, generations: int, size: int, seed: int = 0
) -> dict[Candidate, float]:
    """Return all candidates that were trained, with their scores: the first ones, and `size` more each generation.

    The parents of a generation are the `size` best ones so far; of equal ones the smaller.

    Args:
        space: to choose from.
        first: the parents of the first generation.
        able: leaves out what is over a budget.
        scores: trains candidates.
        generations: how many.
        size: children of a generation at the most.
        seed: of what is drawn.
    """
    rng = np.random.default_rng(seed)
    known: dict[Candidate, float] = {}
    seen: set[Candidate] = set()

    def train(candidates: Sequence[Candidate]) -> None:
        found = zip(candidates, scores(candidates), strict=True)
        known.update({candidate: score for candidate, score in found if score is not None})

    train(list(dict.fromkeys(first)))
    seen |= {*first}
    for _ in range(generations):
        parents = sorted(known, key=lambda c: (-known[c], c))[:size]
        children: list[Candidate] = []
        for _ in range(_DRAWS):
            drawn = [_child(space, parents, rng) for _ in range(size - len(children))]
            drawn = [child for child in dict.fromkeys(drawn) if child not in seen]
            seen |= {*drawn}
            children += able(drawn) if drawn else ()
            if len(children) == size:
                break
        if not children:
            break
        train(children)
    return known


def _child(space: Space, parents: Sequence[Candidate], rng: np.random.Generator) -> Candidate:
    """Return a candidate with some choices of one or two parents, and at least one that changes at random."""
    options = [(0, *choices) for choices in space.groups]
    choices: list[float] = list(parents[int(rng.integers(len(parents)))].choices()) if parents else [0] * len(options)
    if parents and rng.random() < _MIXED:
        other = parents[int(rng.integers(len(parents)))].choices()
        choices = [b if rng.random() < 0.5 else a for a, b in zip(choices, other, strict=True)]
    for _ in range(1 + rng.binomial(len(options) - 1, 1 / len(options))):
        group = int(rng.integers(len(options)))
        choices[group] = options[group][int(rng.integers(len(options[group])))]
    return space.candidate(choices)
