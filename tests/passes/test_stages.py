"""Every stage of the pipeline on random networks: the graph stays well-formed and means what it meant."""

from collections.abc import Iterator

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.backend.lowering import state as export
from converter.backend.lowering.lower import lower
from converter.backend.peephole.fuse import fuse
from converter.backend.schedule import check_no_overlap, plan, recompute, schedule
from converter.backend.targets import tables, target
from converter.driver.features.optimizer import with_optimizer
from converter.ir import Graph, evaluate, verify
from converter.passes import (
    absorb_layout,
    eliminate_dead_code,
    fold_affine,
    fold_constants,
    merge_common_subexpressions,
    simplify,
)
from converter.passes.canonical import canonicalize, specialize
from converter.training.losses import attach_loss, named_loss
from converter.training.optim.named import resolve
from converter.training.schemes import select, update_scheme
from converter.training.step import whole_step
from tests.driver.random_models import random_batch, random_network, random_rules

PASSES = [
    absorb_layout,
    eliminate_dead_code,
    fold_affine,
    fold_constants,
    merge_common_subexpressions,
    simplify,
]
SEEDS = st.integers(0, 2**20)


def training_graph(seed: int) -> Graph:
    """A selected, differentiated graph with its update, as lowering gets it."""
    forward = canonicalize(random_network(seed))
    rows = update_scheme(random_rules(forward, seed)).resolve(absorb_layout(forward))
    optimizer = [optax.sgd(1.0), optax.adam(1.0)][seed % 2]
    selected, rule = with_optimizer(forward, rows, resolve(optimizer), target("litert-2"))
    return whole_step(selected, named_loss("sparse_categorical_crossentropy"), rule)


def assert_same(before: Graph, after: Graph, feed: dict[str, np.ndarray], what: str) -> None:
    """Equal outputs, and equal next values in the model's own layout, but for constants rounded to float32."""
    expected, wanted = evaluate(before, feed, np.float64)
    found, updated = evaluate(after, feed, np.float64)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name].reshape(array.shape), array, rtol=1e-5, atol=1e-6, err_msg=what)
    assert wanted.keys() == updated.keys()
    for name, array in in_model_layout(before, wanted):
        np.testing.assert_allclose(
            dict(in_model_layout(after, updated))[name], array, rtol=1e-5, atol=1e-6, err_msg=f"{what}: {name}"
        )


def in_model_layout(graph: Graph, stored: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    for parameter in graph.parameters.values():
        if parameter.name in stored:
            whole = parameter.model_value.astype(np.float64)
            parameter.view.scatter(whole, stored[parameter.name])
            yield parameter.name, whole


@pytest.mark.quick
@pytest.mark.parametrize("change", PASSES, ids=lambda change: change.__name__)
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_pass_keeps_the_meaning_of_a_whole_step(change, seed: int) -> None:
    step = training_graph(seed)
    assert_same(step, verify(change(step), change.__name__), random_batch(step_input(step), seed), change.__name__)


def step_input(step: Graph) -> Graph:
    """The same graph with only the model's own input, for `random_batch`."""
    return Graph(inputs=[v for v in step.inputs if v.name == "x"])


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_selection_and_specialization_keep_the_forward_pass(seed: int) -> None:
    forward = verify(random_network(seed), "import")
    feed = {"x": random_batch(forward, seed)["x"]}
    expected, _ = evaluate(forward, feed, np.float64)
    canonical = verify(canonicalize(forward), "canonicalize")
    stored = verify(absorb_layout(canonical), "absorb_layout")
    rows = update_scheme(random_rules(forward, seed)).resolve(stored)
    selected = verify(select(stored, rows), "select")
    assert {p.name for p in selected.parameters.values()} == {r.parameter for r in rows if r.fraction}
    for stage, graph in {"canonicalize": canonical, "select": selected, "specialize": specialize(selected)}.items():
        found, _ = evaluate(verify(graph, stage), feed, np.float64)
        # Folded constants are rounded to float32.
        np.testing.assert_allclose(found["output"], expected["output"], rtol=1e-5, atol=1e-5, err_msg=stage)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, chosen=st.sampled_from(sorted(tables())))
def test_lowering_and_scheduling_keep_the_whole_step(seed: int, chosen: str) -> None:
    step = verify(training_graph(seed), "whole_step")
    feed = random_batch(step_input(step), seed)
    lowered = verify(fuse(merge_common_subexpressions(fold_constants(lower(step, target(chosen))))), "fuse")
    scheduled = verify(schedule(lowered, lambda ordered: plan(ordered).size, lambda node: False), "schedule")
    again = verify(recompute(lowered), "recompute")
    for stage, graph in {"lower": lowered, "schedule": scheduled, "recompute": again}.items():
        assert_same(step, graph, feed, stage)
    check_no_overlap(plan(scheduled))
    stateful = verify(export.with_variables(scheduled), "with_variables")
    check_no_overlap(plan(stateful))
    assert stateful.outputs.keys() == {"loss"}


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_gradients_equal_those_of_finite_differences(seed: int) -> None:
    """Along a random direction in the space of all trained parameters, in double precision."""
    forward = canonicalize(random_network(seed))
    rows = update_scheme(random_rules(forward, seed)).resolve(absorb_layout(forward))
    selected, rule = with_optimizer(forward, rows, resolve(optax.sgd(1.0)), target("litert-2"))
    goal = named_loss("sparse_categorical_crossentropy")
    step, with_loss = whole_step(selected, goal, rule), attach_loss(selected, goal)
    feed = random_batch(selected, seed) | {"learning_rate": np.array([1.0])}
    start = {p.name: p.value.astype(np.float64) for p in selected.parameters.values()}
    _, updated = evaluate(step, feed, np.float64)
    rng = np.random.default_rng(seed)
    direction = {name: rng.standard_normal(array.shape) for name, array in start.items()}
    slope = sum(((start[name] - updated[name].reshape(array.shape)) * array).sum() for name, array in direction.items())

    def loss(distance: float) -> float:
        moved = {name: array + distance * direction[name] for name, array in start.items()}
        outputs, _ = evaluate(with_loss, {k: feed[k] for k in ("x", "y", "weight")}, np.float64, **moved)
        return float(outputs["loss"])

    h = 1e-6
    secants = [(loss(h) - loss(0)) / h, (loss(0) - loss(-h)) / h]
    # A kink inside the interval makes the two sides differ; the gradient is then between them.
    low, high = min(secants), max(secants)
    margin = 1e-4 * (1 + abs(slope))
    assert low - margin <= slope <= high + margin
