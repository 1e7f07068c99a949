"""The course of the learning rate: that of optax, and the one that trainings have."""

from __future__ import annotations

import numpy as np
import optax
import pytest

import converter
from converter.driver.models import import_model
from converter.driver.options import Options
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.tools.search.rate_schedule import RateSchedule
from converter.tools.search.splits import split
from converter.tools.search.subject import Evaluation, Subject, Trial
from tests.cli.factories import good

STEPS = 40


@pytest.mark.parametrize("rising", [0, 1, 10])
def test_the_rates_are_those_of_optax(rising: int) -> None:
    start = 0.3 / max(rising, 1)
    falling = RateSchedule("cosine", rising / STEPS).rates(0.3, STEPS)
    expected = optax.warmup_cosine_decay_schedule(start, 0.3, rising, STEPS)
    np.testing.assert_allclose(falling, [expected(step) for step in range(STEPS)], rtol=1e-5, atol=1e-7)
    staying = RateSchedule("constant", rising / STEPS).rates(0.3, STEPS)
    expected = optax.warmup_constant_schedule(start, 0.3, rising)
    np.testing.assert_allclose(staying, [expected(step) for step in range(STEPS)], rtol=1e-5)


def test_trainings_have_it() -> None:
    x = np.random.default_rng(0).standard_normal((40, 6), np.float32)
    y = x[:, 3:] / 2
    parts, options = split(40, y, None, 10, 2), {"loss": "mse", "optimizer": "adam", "batch": 4}
    subject = Subject(import_model(good(), 4), Options(**options), x, y, parts, 3, RateSchedule("cosine", 0.25))
    found = subject(Evaluation("full", (Trial("selection", 1, 0.05),)))["scores"]
    episode = parts.selection[1]
    with TrainingSession(converter.build(good(), **options).data) as session:
        rate = optax.warmup_cosine_decay_schedule(0.05 / 2, 0.05, 2, 9)  # 3 epochs of 3 steps; 2.25 of them rise
        rows = x[episode.learned], y[episode.learned]
        session.fit(*rows, epochs=3, learning_rate=lambda step: float(rate(step)), progress=False, seed=1)
        expected = session.evaluate(x[episode.judged], y[episode.judged])["loss"]
    assert found == [pytest.approx(-expected, rel=1e-5)]


def test_a_course_that_is_none() -> None:
    with pytest.raises(UsageError, match="schedule: expected constant or cosine, got 'linear'"):
        RateSchedule("linear")
    with pytest.raises(UsageError, match="warmup: expected a share of the steps"):
        RateSchedule(warmup=1.0)


def test_a_course_in_words() -> None:
    assert RateSchedule().describe(0.01) == "the learning rate 0.01"
    said = "a learning rate of 0.01 that rises for 10% of the steps, then falls to 0 along a cosine"
    assert RateSchedule("cosine", 0.1).describe(0.01) == said
