"""Random nets with `head_reads`: what the last layer reads is what the framework gives there, pooled by NumPy."""

from __future__ import annotations

import importlib

import pytest

from tests.driver.head_reads import random_torch
from tests.driver.head_reads.judged_gradients import judge_gradients
from tests.driver.head_reads.judged_reads import judge

#: Of each framework one net whose blocks are all read; the rest is slow.
QUICK = {("keras", 0), ("torch", 6), ("jax", 1)}
_NETS = [(framework, seed) for framework in ("keras", "torch", "jax") for seed in range(40)]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("framework", "seed"), [pytest.param(*net, marks=() if net in QUICK else pytest.mark.slow) for net in _NETS]
)
def test_what_is_read_is_what_the_framework_gives(framework: str, seed: int) -> None:
    """As the notes of the program say: features, and what is inferred before anything is trained."""
    drawn = importlib.import_module(f"tests.driver.head_reads.random_{framework}").draw(seed)
    wrong, _ = judge(drawn, seed)
    assert wrong == [], drawn.story


@pytest.mark.quick
@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s == 6 else pytest.mark.slow) for s in range(40)])
def test_gradients_through_what_is_read_are_those_of_autograd(seed: int) -> None:
    drawn = random_torch.draw(seed)
    wrong, _ = judge_gradients(drawn, seed)
    assert wrong == [], drawn.story
