"""What engines refuse or compute wrongly: each pattern is found, is replaced by what means the same, and is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend import legalize as avoid
from converter.backend.lowering.state import with_own_results
from converter.backend.stages import check_limits
from converter.backend.targets import tables, target
from converter.ir import Builder, Graph, TensorType, evaluate, verify
from converter.passes import fold_constants
from converter.program.manifest import manifest_of_bytes
from converter.runtime.engines import ENGINES
from converter.runtime.engines.work import Outcome, Task
from converter.support.errors import UnsupportedError, UsageError
from tests.backend.legalize.avoid_cases import BROWSER, CASES, HALF, MICRO, ON_HEXAGON, REFUSED, ZEROS, floats
from tests.backend.stock import file, interpreter, run

#: Of a float16 below 1; and what sums of several are off by.
LAST_BIT, LAST_BITS = 2.0**-11, {"sine": 3 * 2.0**-11}


def graph_of(name: str, cases: Mapping[str, Any] = CASES) -> tuple[Graph, dict[str, np.ndarray]]:
    """The operators of a pattern, and inputs."""
    build, arrays = cases[name]
    b = Builder()
    feed = {f"x{k}": array for k, array in enumerate(arrays)}
    b.graph.outputs = {"y": build(b, *(b.input(key, TensorType(a.shape, a.dtype)) for key, a in feed.items()))}
    return b.graph, feed


def rewritten(graph: Graph, names: Any) -> Graph:
    """As a program has it."""
    return with_own_results(fold_constants(verify(avoid.without(graph, names))))


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Equal as float32 has it; NaN is not, and XNNPACK's ADD gives the largest number for an infinity."""
    most = np.finfo(np.float32).max
    return np.allclose(*(np.clip(a, -most, most) for a in (found, wanted)), rtol=1e-5, atol=1e-5)


def test_every_pattern_has_a_case_and_every_table_names_patterns() -> None:
    assert CASES.keys() == avoid.PATTERNS.keys()
    assert all(set(target(name).avoids) <= avoid.PATTERNS.keys() for name in tables())
    assert set(target("gpu").avoids) == set(target("web").avoids) == CASES.keys() - HALF - MICRO.keys()
    for name in tables():
        avoid.without(Graph(), target(name).avoids)
    with pytest.raises(UsageError, match=r"avoids 'sofmax', which is no pattern\. Did you mean 'softmax'"):
        avoid.without(Graph(), ["sofmax"])
    assert set(target("hexagon").avoids) == HALF | ON_HEXAGON.keys() | {"rank-above-4", "pad-average-pool"}
    assert set(target("tflm").avoids) == MICRO.keys() | {"scatter-nd"}


@pytest.mark.parametrize("name", CASES)
def test_a_pattern_is_replaced_by_what_means_the_same(name: str) -> None:
    graph, feed = graph_of(name)
    assert {pattern.name for _, pattern in avoid.left(graph, [name])} == {name}
    after = rewritten(graph, [name])
    assert bool(list(avoid.left(after, [name]))) == (name in REFUSED)
    wanted = evaluate(graph, feed)[0]["y"]
    assert close(evaluate(after, feed)[0]["y"], wanted)
    for xnnpack in (True, False):
        assert close(run(file(after), feed, xnnpack)["y"], wanted)


@pytest.mark.parametrize("name", CASES)
def test_all_patterns_together_leave_none(name: str) -> None:
    table = target("hexagon" if name in HALF else "tflm" if name in MICRO else "gpu")
    graph, feed = graph_of(name)
    after = rewritten(graph, table.avoids)
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=r"rounded to float32|not supported"):
            check_limits(after, table)
        return
    check_limits(after, table)
    assert close(evaluate(after, feed)[0]["y"], evaluate(graph, feed)[0]["y"])


@pytest.mark.parametrize("shape", [(3, 0), (0, 3)])
def test_what_has_no_elements_is_padded(shape: tuple[int, int]) -> None:
    b = Builder()
    b.graph.outputs = {"y": b(tfl.Pad(((0, 0), (1, 4))), b.input("x", TensorType(shape)))}
    after = rewritten(b.graph, ["pad-last-axis"])
    x = np.zeros(shape, np.float32)
    np.testing.assert_array_equal(evaluate(after, {"x": x})[0]["y"], np.pad(x, ((0, 0), (1, 4))))


def cases_of(name: str) -> dict[str, Any]:
    """The cases of an engine."""
    if name == "hexagon":
        return {case: CASES[case] for case in CASES if case in HALF - REFUSED} | ON_HEXAGON
    if name == "tflm":  # an index that the table has is looked up rightly
        return {
            case: CASES[case]
            for case in target("tflm").avoids
            if case not in ("gather-unchecked", "product-that-copies")
        }
    return {case: CASES[case] for case in CASES if case not in HALF | REFUSED | BROWSER | MICRO.keys()}


@cache
def on_the_engine(name: str) -> dict[str, tuple[Outcome, Outcome]]:
    """Each of an engine's cases as it was and rewritten, on the engine."""
    engine, cases = ENGINES[name](), cases_of(name)
    if said := engine.missing():
        pytest.skip(said)
    graphs = [(graph_of(case, cases), rewritten(graph_of(case, cases)[0], target(name).avoids)) for case in cases]
    tasks = [
        Task(file(with_own_results(form)), [("main", feed)])
        for (graph, feed), after in graphs
        for form in (graph, after)
    ]
    outcomes = engine.run(tasks)
    return dict(zip(cases, zip(outcomes[::2], outcomes[1::2], strict=True), strict=True))


@pytest.mark.parametrize(("on", "name"), [(on, name) for on in ("gpu", "hexagon", "tflm") for name in cases_of(on)])
def test_the_engine_fails_at_a_pattern_and_is_right_without(on: str, name: str) -> None:
    engine, (graph, feed) = ENGINES[on](), graph_of(name, cases_of(on))
    wanted = evaluate(graph, feed)[0]["y"]

    def right(outcome: Outcome) -> bool:
        # What the CPU takes instead counts as accelerated, so that the log is asked as well.
        whole = outcome.said.get("whole") and not engine.refusals(outcome.log)
        if not whole or outcome.error:
            return False
        given = outcome.results[0]["y"]
        return (
            np.allclose(given, wanted, atol=LAST_BITS.get(name, LAST_BIT)) if on == "hexagon" else close(given, wanted)
        )

    before, after = on_the_engine(engine.name)[name]
    assert not right(before)
    assert right(after), (after.error, after.said, after.log[-2000:])


def test_the_engine_takes_a_transposed_convolution_for_one_of_its_input_s_size() -> None:
    """Its padding in front is wrong where the pattern says so, and nowhere else."""
    engine = ENGINES["gpu"]()
    if said := engine.missing():
        pytest.skip(said)
    tasks, expected = [], []
    for stride, window, size in product((2, 3), (2, 3, 4), (5, 6)):
        for made in range(stride * (size - 1) + 1, stride * size + 1):
            b, feed = Builder(), {"w": floats(4, window, 1, 4), "x": floats(1, size, 3, 4)}
            operands = [b.input(name, TensorType(a.shape, a.dtype)) for name, a in feed.items()]
            b.graph.outputs = {"y": b(tfl.TransposeConv((1, made, 3, 4), (stride, 1), "SAME"), *operands)}
            is_found = bool(list(avoid.left(b.graph, ["transpose-conv-padding"])))
            for graph, is_right in ((b.graph, not is_found), (rewritten(b.graph, ["transpose-conv-padding"]), True)):
                tasks.append(Task(file(with_own_results(graph)), [("main", feed)]))
                expected.append((is_right, evaluate(b.graph, feed)[0]["y"]))
    outcomes = engine.run(tasks)
    given = [outcome.results[0]["y"] for outcome in outcomes]
    assert [close(y, wanted) for y, (_, wanted) in zip(given, expected, strict=True)] == [r for r, _ in expected]
    assert {is_right for is_right, _ in expected} == {True, False}


def small(classes: int = 3) -> jax_frontend.Model:
    """An embedding with rotary positions, and a loop."""

    def apply(params: Any, ids: jax.Array) -> jax.Array:
        x = jnp.take(params["table"], ids, axis=0)
        pairs = x.reshape(*x.shape[:-1], 4, 2)
        transposed = jnp.stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(x.shape)
        return jnp.tanh(transposed + params["bias"]).mean(1) @ params["head"]

    rng = np.random.default_rng(0)
    params = {
        name: rng.standard_normal(s, np.float32)
        for name, s in (("table", (20, 8)), ("bias", 8), ("head", (8, classes)))
    }
    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 5), np.int32)])


@pytest.mark.parametrize(
    ("name", "state"), [("gpu", "stateless"), ("web", "stateless"), ("hexagon", "split"), ("gpu,litert-2", "stateless")]
)
def test_a_target_has_its_own_state(name: str, state: str) -> None:
    program = converter.build(small(), batch=2, target=name)
    assert program.manifest.state == state
    assert program.manifest.target == name
    assert manifest_of_bytes(program.manifest.to_bytes()) == program.manifest
    for graph in program.signatures.values():
        check_limits(graph, target(name))
        assert not list(avoid.left(graph, target(name).avoids))


def test_the_strictest_of_several_targets_counts() -> None:
    gpu, phone, old = target("gpu"), target("litert-2"), target("tflite-2.14")
    both = target("litert-2, gpu")
    assert list(both.avoids) == list(gpu.avoids)
    assert (both.state, both.limits) == (gpu.state, gpu.limits)
    three = target("gpu,tflite-2.14,litert-2")
    assert three.limits["SLICE"] == 4
    assert three.limits["DILATE"] == 0
    assert all(three.per_mac[form] == max(t.per_mac[form] for t in (gpu, phone, old)) for form in three.per_mac)
    assert not three.takes("WHILE", [TensorType((1,))])
    assert three.takes("ADD", [TensorType((2, 3))])


def test_an_engine_without_variables_says_so() -> None:
    with pytest.raises(UsageError, match=r"the engine of gpu,litert-2 has no variables"):
        converter.build(small(), batch=2, target="gpu,litert-2", state="variables")


def test_an_engine_that_would_round_the_state_says_so() -> None:
    with pytest.raises(UsageError, match=r"hexagon rounds weights and optimizer slots to float16\. .* 'split'"):
        converter.build(small(), batch=2, target="hexagon", state="stateless")


def test_what_an_engine_lacks_is_refused_with_layer_and_advice() -> None:
    def apply(params: Any, x: jax.Array) -> jax.Array:
        with jax.named_scope("largest"):
            x = jax.lax.top_k(x @ params["w"], 2)[0]
        return x @ params["head"]

    params = {"w": floats(4, 6), "head": floats(2, 3)}
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 4), np.float32)])
    with pytest.raises(UnsupportedError, match=r"largest: gpu has no TOPK_V2") as caught:
        converter.build(model, batch=2, update="head", target="gpu")
    (site, *_) = caught.value.sites
    assert (site.layer, site.primitive) == ("largest", "TOPK_V2")
    assert site.advice == "Compute it by other operators, or build for a newer runtime or the CPU."


def test_a_function_of_many_axes_runs_for_the_gpu() -> None:
    x = floats(4, 16)

    def transposed(x: jax.Array) -> jax.Array:
        return jnp.flip(jnp.cumsum(jnp.transpose(x.reshape(2, 2, 2, 2, 2, 2), (5, 1, 3, 0, 2, 4)), 2), 1).reshape(4, 16)

    np.testing.assert_allclose(
        converter.function(transposed, x, target="gpu").run(x)[0], transposed(x), rtol=1e-5, atol=1e-6
    )


def test_what_the_cpu_computes_beside_an_engine_stays_as_it_is() -> None:
    """Adam's 1e-8 is no number of float16, but that is no matter where the update is made."""
    model = jax_frontend.Model(
        lambda p, x: jnp.tanh(x @ p["w"]), {"w": floats(4, 3)}, [jax.ShapeDtypeStruct((1, 4), np.float32)]
    )
    program = converter.build(model, optimizer=optax.adam(1.0), batch=2, target="hexagon")
    assert not list(avoid.left(program.signatures["gradients"], target("hexagon").avoids))
    runner = interpreter(program.data, xnnpack=True).get_signature_runner("apply")
    details = runner.get_input_details()
    feed = {name: np.zeros(d["shape"], d["dtype"]) for name, d in details.items()}
    feed |= {"learning_rate": np.ones(1, np.float32), "gradient/w": np.full((4, 3), 1e-9, np.float32)}
    rule = optax.adam(1.0)
    given = runner(**feed)["w"]
    wanted, _ = rule.update(feed["gradient/w"], rule.init(feed["w"]))
    np.testing.assert_allclose(given, wanted, rtol=1e-4)


def test_a_constant_that_float16_has_not_is_told_by_layer() -> None:
    def apply(params: Any, x: jax.Array) -> jax.Array:
        with jax.named_scope("norm"):
            x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-12)
        return x @ params["w"]

    model = jax_frontend.Model(apply, {"w": floats(4, 3)}, [jax.ShapeDtypeStruct((1, 4), np.float32)])
    options = {"loss": "mse", "optimizer": optax.sgd(0.1), "batch": 2, "check": False}
    (note,) = converter.build(model, target="hexagon", **options).notes
    assert (note.subject, note.status) == ("norm", "raised")
    assert "1e-12 is too small for float16" in note.why
    assert not converter.build(model, target="gpu", **options).notes


def test_a_sum_over_a_window_is_no_mask() -> None:
    """Of a window that is lost within float16's range the sign is another than that of its centre."""
    feed = {"x": floats(1, 5, 5, 4)}
    for window, is_mask in (((1, 1), True), ((3, 3), False)):
        b = Builder()
        huge = b.constant(np.full((1, *window, 4), 1e30, np.float32))
        op = tfl.DepthwiseConv2D(padding="SAME", activation="RELU_N1_TO_1")
        b.graph.outputs = {"y": b(op, b.input("x", TensorType((1, 5, 5, 4))), huge, b.constant(ZEROS))}
        assert bool(list(avoid.left(b.graph, ["mask-of-huge"]))) == is_mask
        after = rewritten(b.graph, ["mask-of-huge"])
        np.testing.assert_array_equal(evaluate(after, feed)[0]["y"], evaluate(b.graph, feed)[0]["y"])
