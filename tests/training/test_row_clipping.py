"""Clipping of each row's gradient, in closed form and of single rows, beside `jax.vmap` of per-example gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend
from converter.runtime import TrainingSession
from converter.support.errors import UsageError

RATE, BATCH = 0.5, 6
RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(max(np.prod(shape[:-1]), 1))).astype(np.float32)


def dense(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["head"]["w"] + params["head"]["b"]


def sequence(params: Any, x: Any) -> Any:
    """[rows, places, channels]: a normalization with a scale, a product at each place, and one of all places."""
    hidden = x * params["scale"] + params["places"]
    hidden = jnp.tanh(hidden @ params["mix"]["w"] + params["mix"]["b"])
    return hidden.mean(1) @ params["head"]["w"]


def pictures(params: Any, x: Any) -> Any:
    for name, stride, pad in (("first", 2, "SAME"), ("second", 1, "VALID"), ("point", 1, "SAME")):
        x = jax.lax.conv_general_dilated(
            x, params[name]["w"], (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + params[name]["b"])
    return x.reshape(x.shape[0], -1) @ params["head"]["w"]


def depthwise(params: Any, x: Any) -> Any:
    x = jax.lax.conv_general_dilated(
        x, params["deep"]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
    )
    return x.reshape(x.shape[0], -1) @ params["head"]["w"]


NETS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "dense": (
        dense,
        {"hidden": {"w": weight(5, 7), "b": weight(7)}, "head": {"w": weight(7, 3), "b": weight(3)}},
        (5,),
    ),
    "sequence": (
        sequence,
        {
            "scale": 1 + weight(4),
            "places": weight(5, 4),
            "mix": {"w": weight(4, 6), "b": weight(6)},
            "head": {"w": weight(6, 3)},
        },
        (5, 4),
    ),
    "short sequence": (
        sequence,
        {
            "scale": 1 + weight(8),
            "places": weight(3, 8),
            "mix": {"w": weight(8, 9), "b": weight(9)},
            "head": {"w": weight(9, 3)},
        },
        (3, 8),
    ),
    "pictures": (
        pictures,
        {
            "first": {"w": weight(3, 3, 2, 4), "b": weight(4)},
            "second": {"w": weight(2, 3, 4, 3), "b": weight(3)},
            "point": {"w": weight(1, 1, 3, 5), "b": weight(5)},
            "head": {"w": weight(3 * 2 * 5, 3)},
        },
        (8, 8, 2),
    ),
    "depthwise": (depthwise, {"deep": {"w": weight(3, 3, 1, 2)}, "head": {"w": weight(32, 3)}}, (4, 4, 2)),
}
QUICK = [("dense", None), ("sequence", None)]
CASES = [
    pytest.param(name, micro, id=f"{name}-{micro}", marks=[] if (name, micro) in QUICK else pytest.mark.slow)
    for name in NETS
    for micro in (None, 3, 1)
    if name != "depthwise" or micro == 1
]


def rows(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of very different sizes, whose gradients are some above and some below the norm; one has no weight."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((BATCH, *NETS[name][2])) * np.geomspace(0.05, 4, BATCH).reshape(
        -1, *[1] * len(NETS[name][2])
    )
    return x.astype(np.float32), rng.integers(0, 3, BATCH).astype(np.int32), np.array([1, 2, 0.5, 1, 0, 3], np.float32)


def of_row(name: str, params: Any, x: Any, y: Any) -> Any:
    return -jax.nn.log_softmax(NETS[name][0](params, x[None])[0])[y]


def build(name: str, norm: float | None, **asked: Any) -> Any:
    apply, params, shape = NETS[name]
    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, *shape), np.float32)])
    options = {"batch": BATCH, "loss": "sparse_categorical_crossentropy", "optimizer": "sgd", "update": "full"}
    return converter.build(model, row_clipping=norm, check=False, **(options | asked))


def stepped(program: Any, name: str) -> dict[str, np.ndarray]:
    """Weights after one step, in the model's layout."""
    from converter.federated import Exchange
    from converter.program.file import read_program

    x, y, share = rows(name)
    with TrainingSession(program.data) as session:
        session.fit(x, y, 1, RATE, progress=False, weight=share, shuffle=False)
        return Exchange(read_program(program.data)).sent(session.state())


@pytest.mark.parametrize(("name", "micro"), CASES)
def test_a_step_is_the_mean_of_clipped_gradients(name: str, micro: int | None) -> None:
    """Exactly the rows above the norm are scaled down; the step differs from the one without clipping."""
    params = NETS[name][1]
    x, y, share = rows(name)
    gradients = jax.vmap(jax.grad(lambda p, a, b: of_row(name, p, a, b)), (None, 0, 0))(params, x, y)
    norms = np.sqrt(
        sum(np.square(np.asarray(g, np.float64)).reshape(BATCH, -1).sum(1) for g in jax.tree.leaves(gradients))
    )
    norm = float(np.median(norms))
    assert (norms < norm).any()
    assert (norms > norm).any()
    factor = np.minimum(1, norm / norms) * share / share.sum()
    wanted = jax.tree.map(lambda p, g: p - RATE * np.tensordot(factor, np.asarray(g, np.float64), 1), params, gradients)
    found = stepped(build(name, norm, micro_batch=micro), name)
    by_name = {
        "/".join(str(k.key) for k in path): np.asarray(a) for path, a in jax.tree_util.tree_leaves_with_path(wanted)
    }
    assert found.keys() == by_name.keys()
    plain = stepped(build(name, None, micro_batch=micro), name)
    for key, array in by_name.items():
        np.testing.assert_allclose(found[key], array, rtol=0, atol=3e-6, err_msg=key)
    assert max(np.abs(plain[key] - array).max() for key, array in by_name.items()) > 1e-3


def test_a_norm_that_no_row_reaches_changes_nothing() -> None:
    plain, clipped = (stepped(build("dense", norm), "dense") for norm in (None, 1e6))
    for key, array in plain.items():
        np.testing.assert_allclose(clipped[key], array, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "kind",
    ["lora-1", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ({"hidden/w": 0.4, "head/*": 1}, "head"))],
)
def test_adapters_and_parts_of_weights(kind: Any) -> None:
    """The step of single rows, whose gradients are made, and the closed form agree, and clip."""
    whole, alone, plain = (
        stepped(build("dense", norm, update=kind, micro_batch=micro), "dense")
        for norm, micro in ((0.2, None), (0.2, 1), (None, None))
    )
    for key, array in alone.items():
        np.testing.assert_allclose(whole[key], array, rtol=0, atol=2e-6, err_msg=key)
    assert max(np.abs(plain[key] - array).max() for key, array in alone.items()) > 1e-3


def test_what_has_no_closed_form_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"gradient of deep/w is not known.*DepthwiseConv2D.*micro_batch=1"):
        build("depthwise", 1.0)
    build("depthwise", 1.0, update="head")


@pytest.mark.parametrize("norm", [0, -1.0, float("nan"), True, "1"])
def test_a_norm_that_is_none_is_refused(norm: Any) -> None:
    with pytest.raises(UsageError, match="row_clipping is the largest norm"):
        build("dense", norm)


def test_rows_that_influence_each_other_are_refused() -> None:
    def mixing(params: Any, x: Any) -> Any:
        return (x - x.mean(0)) @ params["head"]["w"]

    model = jax_frontend.Model(mixing, {"head": {"w": weight(4, 3)}}, inputs=[jax.ShapeDtypeStruct((1, 4), np.float32)])
    with pytest.raises(UsageError, match="influence each other"):
        converter.build(model, batch=4, loss="sparse_categorical_crossentropy", row_clipping=1.0, update="full")


def test_the_file_says_the_norm() -> None:
    assert build("dense", 0.75).manifest.row_clipping == 0.75
    assert build("dense", None).manifest.row_clipping is None
