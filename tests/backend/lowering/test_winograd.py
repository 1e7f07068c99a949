"""Frozen 3x3 convolutions after Winograd: where they are taken, and whole steps through them against JAX."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.lowering.forms import FormChoice
from converter.backend.lowering.lower import lower
from converter.backend.lowering.rules.winograd import WAYS
from converter.backend.targets import target
from converter.driver.build import plan
from converter.driver.options import Options
from converter.ir import Builder, TensorType, ops
from converter.runtime import TrainingSession

BATCH, SIDE, CHANNELS, CLASSES = 16, 13, 48, 5


def forms_of(shape: tuple[int, int, int, int], outputs: int, machine: str = "litert-2") -> dict[str, float]:
    """What each form of a frozen 3x3 convolution is said to cost, the one taken first."""
    b, op = Builder(), ops.Conv2D((1, 1), ((1, 1), (1, 1)))
    filters = b.constant(np.ones((outputs, 3, 3, shape[3]), np.float32))
    b.graph.outputs = {"y": b(op, b.input("x", TensorType(shape)), filters)}
    choices: list[FormChoice] = []
    lower(b.graph, target(machine), choices)
    (choice,) = choices
    return {choice.form: choice.cost, **choice.alternatives}


def taken(*shape: int, machine: str = "litert-2") -> str:
    return next(iter(forms_of(shape[:4], shape[4], machine)))  # type: ignore[arg-type]


def test_it_is_taken_where_products_outweigh_sums_and_room() -> None:
    for machine in ("litert-2", "litert-2/x86-64"):
        assert taken(2, 56, 56, 64, 64, machine=machine) == "winograd 4x1"
        assert taken(8, 28, 28, 128, 128, machine=machine) == "winograd 4x4"
        # 14 pixels are no whole tiles of four.
        assert taken(2, 14, 14, 256, 256, machine=machine) == "winograd 2x2"
        # Few channels: the sums cost more than the products that they save.
        assert taken(2, 32, 32, 8, 8, machine=machine) == "builtin"
        # Few pixels: to transform the filter, and to pack what comes of it, takes longer than they save.
        assert taken(1, 7, 7, 512, 512, machine=machine) == "builtin"
    for engine in ("gpu", "web", "hexagon"):
        assert WAYS.keys().isdisjoint(forms_of((8, 14, 14, 256), 256, engine))


def model() -> tuple[jax_frontend.Model, Any]:
    """Three 3x3 convolutions, the first of which has a bias that trains: cotangents go back through the others."""
    rng, axes = np.random.default_rng(0), ("NHWC", "HWIO", "NHWC")
    shapes = {f"conv{i}": (3, 3, CHANNELS, CHANNELS) for i in range(3)}
    shapes |= {"stem": (3, 3, 3, CHANNELS), "head": (CHANNELS, CLASSES)}
    params: dict[str, Any] = {
        name: {"w": (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)}
        for name, shape in shapes.items()
    }
    for name in (*list(params)[:3], "stem"):
        params[name]["b"] = rng.normal(0, 0.1, CHANNELS).astype(np.float32)

    def apply(p: Any, x: jax.Array) -> jax.Array:
        for name, strides, padding in (("stem", 1, "SAME"), ("conv0", 1, "SAME"), ("conv1", 1, "VALID"),
                                       ("conv2", 1, ((0, 1), (2, 1)))):  # fmt: skip
            if name == "conv1":  # more than the filter reaches: cotangents are cut
                x = jnp.pad(x, ((0, 0), (3, 0), (5, 4), (0, 0)))
            x = lax.conv_general_dilated(x, p[name]["w"], (strides, strides), padding, dimension_numbers=axes)
            x = jax.nn.relu(x + p[name]["b"])
        return x.mean((1, 2)) @ p["head"]["w"]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), np.float32)]), apply


UPDATE = {"conv0/b": 1, "head/w": 1}
#: Nothing is beyond its caches.
NEAR = replace(target("litert-2"), shared_cache_bytes=1 << 30)


def filters(program: converter.Program, signature: str) -> set[tuple[int, ...]]:
    """The sizes of the filters of a signature's convolutions on more than three channels."""
    nodes = [node for node in program.signatures[signature].nodes if type(node.op) is tfl.Conv2D]
    return {node.inputs[1].shape[1:3] for node in nodes if node.inputs[1].shape[3] > 3}


@pytest.mark.parametrize("way", WAYS)
def test_a_step_through_them_is_jax_own(way: str, tmp_path: Path) -> None:
    source, apply = model()
    on = replace(NEAR, forced=frozenset({way}))
    program = converter.build(source, update=UPDATE, batch=BATCH, optimizer="sgd", target=on, check=False)
    used = {(c.layer, c.phase) for c in program.report if c.form == way}
    assert {("conv1", "forward"), ("conv2", "backward")} <= used
    file = program.write(tmp_path / "m.tflite")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((BATCH, SIDE, SIDE, 3)).astype(np.float32)
    y = rng.integers(0, CLASSES, BATCH).astype(np.int32)

    def loss(p: Any) -> jax.Array:
        return -jnp.mean(jax.nn.log_softmax(apply(p, x))[jnp.arange(BATCH), y])

    p = source.params
    with TrainingSession(file) as session:
        np.testing.assert_allclose(session.infer(x), apply(p, x), rtol=1e-4, atol=1e-5)
        for _ in range(10):
            value, gradient = jax.value_and_grad(loss)(p)
            assert session.train(x, y, learning_rate=0.3) == pytest.approx(float(value), rel=1e-5)
            for layer, name in (("conv0", "b"), ("head", "w")):
                moved = p[layer][name] - 0.3 * gradient[layer][name]
                p = {**p, layer: {**p[layer], name: moved}}
        np.testing.assert_allclose(session.infer(x), apply(p, x), rtol=1e-4, atol=1e-4)


def test_what_is_given_to_others_and_what_counts_bytes_have_filters_as_they_are() -> None:
    options: dict[str, Any] = {"update": UPDATE, "batch": BATCH, "target": NEAR, "check": False}
    program = converter.build(model()[0], **options)
    assert filters(program, "infer") == {(3, 3)}
    assert filters(program, "train").isdisjoint({(3, 3)})
    counted = converter.build(model()[0], memory_budget="1GiB", **options)
    assert filters(counted, "train") == {(3, 3)}
    assert counted.costs["mapped_bytes"] < program.costs["mapped_bytes"]


def test_a_plan_of_shapes_counts_the_filters_of_the_file() -> None:
    """Which are matrices of each filter and way round, all different."""
    source, options = model()[0], {"update": UPDATE, "batch": BATCH, "target": NEAR}
    shapes = replace(source, params=jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), source.params))
    costs = converter.build(source, check=False, **options).costs
    planned = plan(shapes, Options(**options)).costs
    assert planned == {name: costs[name] for name in planned}
