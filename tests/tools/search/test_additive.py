"""The optimiser against trying everything, and evolution where gains do not add up."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.tools.search.additive import Gains, LinearCost, best_within, propose
from converter.tools.search.evolution import evolve
from converter.tools.search.space import Block, Candidate, Layer, Space
from tests.tools.search.common import space


def everything(of: Space) -> list[Candidate]:
    return [of.candidate(choices) for choices in product(*((0, *group) for group in of.groups))]


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Blocks with up to two layers, with biases or without."""
    blocks = draw(st.integers(1, 3))
    biases = [draw(st.booleans()) for _ in range(blocks)]
    owners = draw(st.lists(st.integers(0, blocks - 1), max_size=3))
    ratios = [draw(st.sampled_from([(1.0,), (0.5, 1.0), (0.125, 0.25, 1.0)])) for _ in owners]
    return Space(
        tuple(Block(f"{i}", (f"{i}/b",) if has else (), ()) for i, has in enumerate(biases)),
        tuple(Layer(f"{i}/w{n}", i, r) for n, (i, r) in enumerate(zip(sorted(owners), ratios, strict=True))),
        ("head",),
    )


@settings(max_examples=30, deadline=None)
@given(spaces(), st.integers(0, 2**32 - 1), st.floats(0, 1.2))
def test_the_best_within_the_budgets_is_found(of: Space, seed: int, share: float) -> None:
    """Costs grow with what is reached and chosen, and are off from that sum by up to the room of the model."""
    rng, points = np.random.default_rng(seed), everything(of)
    gains = Gains({column: float(rng.normal(0.3)) if rng.random() < 0.9 else None for column in of.columns})
    tables: dict[str, dict[Candidate, float]] = {}
    models: dict[str, LinearCost] = {}
    for name in ("memory", "step"):
        exact = LinearCost(of, dict.fromkeys(points, 0.0))
        exact.weights = rng.uniform(1, 5, len(exact.weights))
        tables[name] = {point: exact.of(point) + rng.uniform(-1, 1) for point in points}
        models[name] = LinearCost(of, tables[name])
    limits = {n: min(t.values()) + share * (max(t.values()) - min(t.values())) for n, t in tables.items()}

    def costs(candidates: list[Candidate]) -> list[dict[str, float]]:
        return [{name: table[candidate] for name, table in tables.items()} for candidate in candidates]

    chosen = best_within(of, gains, models, limits, costs, want=3, most=len(points) + 1)
    fit = [p for p in points if all(tables[name][p] <= limit for name, limit in limits.items())]
    totals = sorted((total for p in fit if (total := gains.total(p)) is not None), reverse=True)
    found = [gains.total(candidate) for candidate in chosen.best]
    assert chosen.complete
    np.testing.assert_allclose(found, totals[: len(found)], atol=1e-4)  # of equal gains the smaller comes first
    assert len(found) == min(3, len(totals))
    assert len(set(chosen.best)) == len(found)


def test_what_gains_nothing_is_not_proposed() -> None:
    of = space(2)
    nothing = Gains(dict.fromkeys(of.columns, 0.0))
    assert propose(of, nothing, []) == of.candidate([0, 0, 0])
    assert propose(of, Gains({**nothing.of, (2, 0.25): 0.5, (2, 1.0): None}), []) == of.alone(2, 0.25)


def test_linear_costs_are_exact_where_costs_are_linear() -> None:
    of = space(2)
    truth = LinearCost(of, dict.fromkeys(everything(of), 0.0))
    truth.weights = np.arange(1.0, 1 + len(truth.weights))
    model = LinearCost(of, {point: truth.of(point) for point in everything(of)})
    assert all(abs(model.of(point) - truth.of(point)) < 1e-9 for point in everything(of))
    assert model.room < 1e-6


def test_evolution_finds_what_does_not_add_up() -> None:
    """Two layers are worth nothing alone, and everything together."""
    of = space(3)

    def scores(candidates: list[Candidate]) -> list[float | None]:
        return [float(c.ratios[0] == 0.25 and c.ratios[2] == 1.0) - 0.01 * sum(c.ratios) for c in candidates]

    def able(candidates: list[Candidate]) -> list[Candidate]:
        return [c for c in candidates if sum(c.ratios) < 1.6]

    known = evolve(of, [of.candidate([0, 0, 0, 0])], able, scores, generations=12, size=6)
    best = max(known, key=lambda c: known[c])
    assert (best.ratios[0], best.ratios[2]) == (0.25, 1.0)
    assert able(list(known)) == list(known)
    assert known == evolve(of, [of.candidate([0, 0, 0, 0])], able, scores, generations=12, size=6)
