"""Steps that are measured: what a table is worth on a machine, and a search that goes by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from converter.driver.models import import_model
from converter.driver.options import Options
from converter.tools.search import interleaving as turns
from converter.tools.search.clock import fitted
from converter.tools.search.interleaving import in_turns
from converter.tools.search.rate_schedule import RateSchedule
from converter.tools.search.splits import split
from converter.tools.search.subject import Evaluation, Subject
from tests.cli.factories import wide
from tests.tools.search.common import NAMED, fake, nanoseconds
from tests.tools.search.run_fake import EFFORT, run


def test_the_factors_are_those_that_are_least_off_in_proportion() -> None:
    costs = [{"step_cost": step, "product_cost": products} for step, products in ((900, 300), (5000, 4000), (70, 20))]
    clock = fitted(costs, [0.4 * c["product_cost"] + 3 * (c["step_cost"] - c["product_cost"]) for c in costs])
    assert (clock.products, clock.rest) == (pytest.approx(0.4), pytest.approx(3))
    assert clock.corrected({"step_cost": 100, "product_cost": 50, "resident_bytes": 7}) == {
        "step_cost": 170,
        "product_cost": 50,
        "resident_bytes": 7,
    }
    # One factor cannot meet both: relative errors are alike, whatever the size.
    clock = fitted([{"step_cost": cost, "product_cost": 0} for cost in (1000, 10)], [1100, 9])
    assert clock.rest * 1000 / 1100 - 1 == pytest.approx(-(clock.rest * 10 / 9 - 1), abs=0.02)
    # A factor is not below zero, even where that fits best.
    clock = fitted([{"step_cost": 100, "product_cost": 50}, {"step_cost": 100, "product_cost": 90}], [100, 10])
    assert clock.products == 0


def test_functions_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = 0, ""

    def taking(name: str, nanoseconds: Callable[[int], int]) -> Callable[[], None]:
        def step() -> None:
            nonlocal now, order
            now += nanoseconds(order.count(name))
            order += name

        return step

    monkeypatch.setattr(turns.time, "process_time_ns", lambda: now)
    # The first turns and every tenth one are slow, which medians do not see.
    times = in_turns(taking("a", lambda n: 10**9 if n < 3 or n % 10 == 0 else 500), taking("b", lambda n: 70 + n % 3))
    assert times == [500, 71]
    assert set(order.replace("ab", "-")) == {"-"}


def test_steps_are_foreseen_as_they_were_measured() -> None:
    found = run(None, budgets=("step=80%",), effort=replace(EFFORT, measure=True))
    by_name = {t.name: t for t in found.findings.trained}
    for name, trained in by_name.items():
        truth = nanoseconds(fake(Evaluation(trained.update))["costs"])
        assert trained.costs["step_cost"] == pytest.approx(truth, rel=1e-3), name
        assert trained.within == (trained.costs["step_cost"] <= 0.8 * by_name["full"].costs["step_cost"])
    # That is not what the table says.
    full = fake(Evaluation("full"))["costs"]["step_cost"]
    assert by_name["full"].costs["step_cost"] < 0.8 * full
    assert set(found.findings.fitted) == set(NAMED)
    assert set(found.findings.measured) == set(found.findings.held_out)
    others = len(found.findings.held_out) - len(NAMED)
    assert f"steps of {others} other schemes were foreseen within 0%" in found.sentences()
    assert run(None).findings.measured == {}


def test_a_search_that_measured_goes_on_where_it_was(tmp_path: Path) -> None:
    effort = replace(EFFORT, measure=True)
    found = run(tmp_path / "journal.jsonl", effort=effort).to_json()

    def nothing(job: Evaluation) -> dict[str, object]:
        raise AssertionError(job)

    assert run(tmp_path / "journal.jsonl", nothing, effort=effort).to_json() == found


def test_what_a_step_takes_here() -> None:
    x = np.random.default_rng(0).standard_normal((40, 6), np.float32)
    parts = split(40, np.zeros(40, np.int32), None, 10, 2)
    options = Options(optimizer="adam", batch=8)
    subject = Subject(import_model(wide(), 8), options, x, np.zeros(40, np.int32), parts, 1, RateSchedule())
    full, head = subject(Evaluation("full", timed=True))["times"]
    assert full > 2 * head > 0  # it has hundreds of times the FLOPs of what the head adds to the forward pass
