"""The target tflite-2.14: what it refuses; all else runs in that runtime, which `scripts/old_runtime` fetches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend
from converter.backend.lowering.lower import lower
from converter.backend.peephole.fuse import fuse
from converter.backend.targets import target
from converter.ir import evaluate
from converter.support.errors import UnsupportedError
from scripts.fidelity.runtimes import PYTHONS, Call, run
from tests.backend.builtins.cases import all_cases
from tests.backend.quantize.test_gradients import LAYERS
from tests.backend.quantize.test_gradients import case as int8_case
from tests.backend.stock import file, one_op
from tests.runtime.programs import BATCH, EXAMPLES

OLD = target("tflite-2.14")
NAME = "TFLite 2.14"
with_runtime = pytest.mark.skipif(
    not PYTHONS[NAME].exists(), reason="there is no tflite-runtime 2.14: scripts/old_runtime, which needs Python 3.11"
)


@with_runtime
def test_every_builtin_within_the_limits_runs_there() -> None:
    kinds, jobs, wanted = set(), [], []
    for case in all_cases():
        graph, feed = one_op(case.op, *case.arrays, constants=case.constants)
        types = [v.type for v in graph.nodes[0].inputs]
        kind = (case.op.code, *sorted({(t.dtype, t.rank) for t in types}, key=str), len({t.shape for t in types}) > 1)
        several = case.op.code == "REVERSE_V2" and len(case.op.axes) > 1  # wrong there, and lowered axis by axis
        if kind in kinds or several or not OLD.takes(case.op.code, types):
            continue
        kinds.add(kind)
        jobs.append((file(graph), [("main", feed)]))
        wanted.append((str(case), evaluate(graph, feed)[0]))
    assert len({code for code, *_ in kinds}) > 80
    for (name, outputs), found in zip(wanted, run(NAME, jobs), strict=True):
        for result in found:
            assert not isinstance(result, str), f"{name}: {result}"
            for key, want in outputs.items():
                scale = np.abs(want[np.isfinite(want)]).max(initial=1e-3) if want.dtype.kind == "f" else 0
                np.testing.assert_allclose(result[0][key], want, rtol=1e-5, atol=2e-6 * scale, err_msg=name)


@with_runtime
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_program_trains_there_as_in_litert(name: str) -> None:
    example = EXAMPLES[name]
    program = converter.build(example.model(), optimizer="adam", batch=BATCH, target=OLD, check=False)
    (x, y), rate = example.data(BATCH), np.float32([0.05])
    step: Call = ("train", {"x": x, "y": y, "weight": np.ones(BATCH, np.float32), "learning_rate": rate})
    evaluation: Call = ("evaluate", {key: value for key, value in step[1].items() if key != "learning_rate"})
    tick = {"tick": np.zeros(1, np.float32)}
    trained, loss = [step] * 5, slice(0, 5)
    ((with_xnnpack, without),) = run(
        NAME, [(program.data, [*trained, evaluation, ("infer", {"x": x}), ("save", tick)])]
    )
    with converter.runtime.TrainingSession(program.data) as session:
        losses = [session.train(x, y, 0.05) for _ in trained]
        after = session.evaluate(x, y)
        output = session.infer(x)
    for results in (with_xnnpack, without):
        assert not isinstance(results, str), results
        np.testing.assert_allclose([r["loss"].item() for r in results[loss]], losses, rtol=1e-5)
        assert results[5]["loss"].item() == pytest.approx(after["loss"], rel=1e-5)
        np.testing.assert_allclose(results[6]["output"], output, rtol=1e-4, atol=1e-5)
    state = with_xnnpack[7]
    initialized: list[Call] = [("initialize", tick), step, ("initialize", tick), ("restore", state), evaluation]
    (((_, first, *_, restored), _),) = run(NAME, [(program.data, initialized)])
    assert first["loss"].item() == pytest.approx(losses[0], rel=1e-6)
    assert restored["loss"].item() == with_xnnpack[5]["loss"].item()


@with_runtime
def test_the_way_back_through_int8_filters_runs_there() -> None:
    jobs, wanted, convolutions = [], [], [sizes for sizes in LAYERS if len(sizes[1]) == 4 and sizes[1][1] > 1]
    for sizes in convolutions:
        graph, layer = int8_case(*sizes)
        rng = np.random.default_rng(1)
        x = rng.standard_normal(sizes[0]).astype(np.float32)
        y, back = jax.vjp(layer, x)
        dy = rng.standard_normal(y.shape).astype(np.float32)
        jobs.append((file(fuse(lower(graph, OLD))), [("main", {"x": x, "dy": dy})]))
        wanted.append({"y": y, "dx": back(dy)[0]})
    for sizes, want, found in zip(convolutions, wanted, run(NAME, jobs), strict=True):
        for result in found:
            assert not isinstance(result, str), f"{sizes}: {result}"
            for key, array in want.items():
                error = np.linalg.norm(result[0][key] - array) / np.linalg.norm(array)
                assert error < 0.03, (sizes, key, error)


@pytest.mark.parametrize("key", OLD.limits)
def test_what_it_lacks_is_refused_and_nothing_else(key: str) -> None:
    code, *_ = key.split(".")
    taken = refused = 0
    for case in all_cases():
        if case.op.code != code:
            continue
        graph, _ = one_op(case.op, *case.arrays, constants=case.constants)
        if OLD.takes(code, [v.type for v in graph.nodes[0].inputs]):
            taken += 1
        else:
            refused += 1
    assert refused
    assert taken or not OLD.limits[key]


def test_the_refusal_names_the_layer() -> None:
    def apply(params: Any, x: Any) -> Any:
        with jax.named_scope("compare"):
            x = x.reshape(-1, 2, 2, 3, 2)
            wide = jnp.where(x > params["low"].reshape(2, 1, 3, 1), x, 0.0)
        return wide.reshape(-1, 24) @ params["w"]

    rng = np.random.default_rng(0)
    params = {"low": rng.random(6, np.float32), "w": rng.random((24, 2), np.float32)}
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 24), np.float32)])
    assert np.isfinite(converter.build(model, batch=2, update="head").costs["arena_bytes"])
    with pytest.raises(UnsupportedError, match=r"tflite-2\.14 has no GREATER of float32\[2,2,2,3,2\]") as caught:
        converter.build(model, batch=2, update="head", target=OLD)
    assert caught.value.sites[0].layer == "compare"


@pytest.mark.parametrize("name", ["tflite-2.14", "tflite-2.16"])
def test_neighbouring_axes_are_merged_where_that_is_enough(name: str) -> None:
    """As the mask of an attention over several heads; the kernel of TensorFlow Lite ends the process there."""
    mask, scores = np.random.default_rng(0).random((2, 3, 1, 1, 5)) < 0.5, np.ones((2, 3, 4, 2, 5), np.float32)

    def masked(mask: Any, scores: Any) -> Any:
        return jnp.logical_and(mask, scores > mask.astype(jnp.float32)), jnp.where(mask, scores, -1.0)

    function = converter.function(masked, mask, scores, target=name)
    for found, wanted in zip(function.run(mask, scores), masked(mask, scores), strict=True):
        np.testing.assert_array_equal(found, wanted)
