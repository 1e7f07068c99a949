"""Early layers a few rows at a time: the same function, the same steps, where it pays, and nowhere else."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.prepare.tiling import tile_batch
from converter.backend.targets import target
from converter.ir import Builder, Graph, Parameter, TensorType, Value, evaluate, ops, verify
from converter.runtime import TrainingSession
from tests.driver.random_models import random_network
from tests.models.oracle import Oracle

#: A cache that nothing fits in, and operators that cost nothing: whatever can be tiled is.
EAGER = replace(target("litert-2"), cache_bytes=16, shared_cache_bytes=64, per_operator=0.0)
BATCH = 8


def parts(graph: Graph) -> set[int]:
    """The numbers of rows that values of a graph have."""
    return {v.shape[0] for node in graph.nodes for v in node.outputs if v.shape}


def image_net(b: Builder, middle: Callable[[Value], Value], batch: int = BATCH) -> Graph:
    """Two convolutions of images with something between."""
    rng = np.random.default_rng(0)
    x = b.input("x", TensorType((batch, 16, 16, 4)))
    filters = [rng.normal(0, 0.1, (32, k, k, n)).astype(np.float32) for k, n in ((1, 4), (2, 32))]
    y = b(ops.Conv2D(), x, filters[0])
    for activation in (ops.Relu(), ops.Logistic(), ops.Silu(), ops.Tanh(), ops.Gelu()):
        y = b(activation, y)
    b.graph.outputs["y"] = b(ops.Relu6(), b(ops.Conv2D((2, 2), ((0, 1), (1, 0))), middle(y), filters[1]))
    return b.graph


def assert_same(before: Graph, after: Graph) -> None:
    rng = np.random.default_rng(1)
    feed = {v.name: rng.normal(0, 1, v.shape).astype(np.float32) for v in before.inputs}
    wanted, _ = evaluate(before, feed, np.float64)
    found, _ = evaluate(verify(after, "tile_batch"), feed, np.float64)
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("batch", "rows"), [(8, 2), (6, 2), (9, 3), (32, 4), (2, None), (1, None), (7, None), (11, None)]
)
def test_early_layers_take_a_divisor_of_the_batch_at_a_time(batch: int, rows: int | None) -> None:
    net = image_net(Builder(), lambda x: x, batch)
    tiled = tile_batch(net, EAGER)
    assert parts(tiled) == ({batch} if rows is None else {batch, rows})
    assert_same(net, tiled)


def test_what_stays_in_the_cache_or_is_only_dispatched_stays_whole() -> None:
    net = image_net(Builder(), lambda x: x)
    assert tile_batch(net, replace(EAGER, shared_cache_bytes=4 << 20)) is net
    assert tile_batch(net, replace(EAGER, per_operator=1e6)) is net
    assert tile_batch(net, EAGER) is not net


def _turned(b: Builder, x: Value) -> Value:
    """Its rows in another order."""
    first, others = ((n, *x.shape[1:]) for n in (1, BATCH - 1))
    return b(ops.Concat(0), b(ops.Slice((1, 0, 0, 0), others), x), b(ops.Slice((0, 0, 0, 0), first), x))


MIXING: dict[str, Callable[[Builder, Value], Value]] = {
    "mean of the batch": lambda b, x: b(ops.Sub(), x, b(ops.Sum((0,), keepdims=True), x)),
    "rows in another order": _turned,
    "a number for each row": lambda b, x: b(ops.Mul(), x, np.arange(BATCH, dtype=np.float32).reshape(-1, 1, 1, 1)),
    "rows as pixels and back": lambda b, x: b.reshape(b.reshape(x, (BATCH * 256, 32)), x.shape),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_needs_the_whole_batch_gets_it(name: str) -> None:
    """Layers before it are tiled, those behind it are not: they depend on more than their rows of the input."""
    b = Builder()
    net = image_net(b, partial(MIXING[name], b))
    tiled = tile_batch(net, EAGER)
    assert_same(net, tiled)
    convolved = [n.inputs[0].shape[0] for n in tiled.nodes if isinstance(n.op, ops.Conv2D)]
    assert convolved == [2, 2, 2, 2, BATCH]


def test_some_channels_of_all_rows_are_those_of_a_few() -> None:
    """As a layer takes them that trains in part."""
    b = Builder()
    halves = [ops.Slice((0, 0, 0, first), (BATCH, 16, 16, 16)) for first in (16, 0)]
    net = image_net(b, lambda x: b(ops.Concat(3), *(b(half, x) for half in halves)))
    tiled = tile_batch(net, EAGER)
    assert_same(net, tiled)
    assert [n.inputs[0].shape[0] for n in tiled.nodes if isinstance(n.op, ops.Conv2D)] == [2] * 8


@pytest.mark.parametrize(("kind", "rows"), [("choice", 2), ("statistic", BATCH)])
def test_chosen_channels_are_those_of_a_few_rows_too(kind: Any, rows: int) -> None:
    """No step writes which channels train; what a step writes between its readers is read once, by all rows."""
    b = Builder()
    channels = Value(TensorType((3,), np.dtype(np.int32)), "channels")
    b.graph.parameters[channels] = Parameter("channels", np.array([1, 7, 30], np.int32), kind=kind)
    filters = np.random.default_rng(2).normal(0, 0.1, (32, 1, 1, 3)).astype(np.float32)

    def middle(x: Value) -> Value:
        return b(ops.Add(), x, b(ops.Conv2D(), b(ops.Gather(3, distinct=True), x, channels), filters))

    net = image_net(b, middle)
    tiled = tile_batch(net, EAGER)
    assert_same(net, tiled)
    assert {n.inputs[0].shape[0] for n in tiled.nodes if isinstance(n.op, ops.Gather)} == {rows}


def test_a_stretch_ends_where_least_is_joined() -> None:
    """A bias and an activation stay with their operator, and a narrow layer with the wide one before it."""
    rng, b = np.random.default_rng(0), Builder()

    def filter(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.1, shape).astype(np.float32)

    y = b.input("x", TensorType((BATCH, 32, 32, 4)))
    for _ in range(4):
        y = b(ops.Relu6(), b(ops.Add(), b(ops.Conv2D(), y, filter(64, 1, 1, y.shape[-1])), filter(64)))
    y = b(ops.Conv2D((2, 2), ((0, 1), (0, 1))), y, filter(64, 3, 3, 64))
    y = b(ops.Relu6(), b(ops.Add(), y, filter(64)))
    narrow = b(ops.Add(), b(ops.Conv2D(), y, filter(8, 1, 1, 64)), filter(8))
    b.graph.outputs["y"] = b(ops.Relu6(), b(ops.Conv2D(), narrow, filter(64, 1, 1, 8)))
    tiled = tile_batch(b.graph, replace(EAGER, shared_cache_bytes=1 << 19))
    assert_same(b.graph, tiled)
    assert [node.output.shape for node in tiled.nodes if isinstance(node.op, ops.Concat)] == [narrow.shape]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20), cache=st.sampled_from([16, 512, 4096]))
def test_random_networks_mean_the_same(seed: int, cache: int) -> None:
    net = random_network(seed, batch=BATCH)
    if any(v.dtype.kind == "i" for v in net.inputs):
        return
    assert_same(net, tile_batch(net, replace(EAGER, shared_cache_bytes=4 * cache)))


@cache
def net() -> jax_frontend.Model:
    """Three convolutions and a dense layer."""
    rng = np.random.default_rng(3)
    shapes = {"first": (1, 1, 3, 64), "second": (1, 1, 64, 64), "third": (3, 3, 64, 8), "head": (8, 5)}
    params = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for name in ("first", "second", "third"):
            dimensions = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=dimensions)
            x = jax.nn.gelu(jax.nn.relu6(x))
        return x.mean((1, 2)) @ params["head"]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 12, 12, 3), np.float32)])


def rows_of(seed: int, count: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (count, 12, 12, 3)).astype(np.float32), rng.integers(0, 5, count)


def tiled(program: converter.Program) -> dict[str, int]:
    """The signatures whose early layers are computed in parts of the batch, and in how many."""
    forward = {name: [n for n in g.nodes if n.origin.phase == "forward"] for name, g in program.signatures.items()}
    joined = {name: [n for n in nodes if n.op == tfl.Concatenation(0)] for name, nodes in forward.items()}
    return {name: len(nodes[0].inputs) for name, nodes in joined.items() if nodes}


@pytest.mark.parametrize(
    "update", ["full", {"third": 1.0, "head": 1.0}, {"second": 0.25, "third": 0.5, "head": 1.0}, "head"], ids=str
)
def test_steps_equal_jax_and_optax(update: Any) -> None:
    rule = optax.adam(1.0)
    program = converter.build(net(), optimizer=rule, update=update, batch=BATCH, target=EAGER)
    parts = BATCH if update == "full" else BATCH // 2  # gradients of filters go image by image anyway
    assert tiled(program) == {"train": parts, "evaluate": parts}  # `infer` is what `export` gives to others
    oracle = Oracle(net(), {row.parameter: row.fraction for row in program.table}, rule)
    with TrainingSession(program.data) as session:
        for step in range(5):
            weight = np.linspace(0.5, 1.5, BATCH, dtype=np.float32)
            wanted = oracle.train(*rows_of(step), 0.01, weight)
            assert session.train(*rows_of(step), learning_rate=0.01, weight=weight) == pytest.approx(wanted, rel=1e-5)
        found = session.parameters()
    for name, array in oracle.parameters().items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-5 * np.abs(array).max())


OPTIONS: dict[str, dict[str, Any]] = {
    "kept features": {"update": "head", "signatures": ("train", "features")},
    "micro-batches": {"micro_batch": 4, "batch": 16},
    "a split step": {"state": "split"},
    "augmented": {"augment": lambda x, key: x + jax.random.normal(key, x.shape)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_other_programs_train_as_they_do_in_one_piece(name: str) -> None:
    options = {"batch": BATCH, "optimizer": "sgd", "check": False} | OPTIONS[name]
    batch = options["batch"]
    whole, eager = (converter.build(net(), target=t, **options) for t in ("litert-2", EAGER))
    assert tiled(eager).keys() - {"evaluate"}
    assert not tiled(whole)
    losses = []
    for program in (whole, eager):
        with TrainingSession(program.data) as session:
            if name == "kept features":
                history = session.fit(*rows_of(0, 3 * batch), epochs=2, learning_rate=0.05, seed=0)
                losses.append(history["loss"])
            else:
                losses.append([session.train(*rows_of(i, batch), learning_rate=0.05) for i in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    assert losses[0][0] != losses[0][-1]


def test_layers_in_training_keep_their_batch() -> None:
    """Batch norms need all rows, dropouts number them: what lies before is tiled and they see what they saw."""
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((12, 12, 3)),
            layers.Conv2D(64, 1, activation="relu"),
            layers.Conv2D(64, 1, activation="tanh"),
            layers.Conv2D(8, 3),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Conv2D(8, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5),
        ]
    )
    options = {"optimizer": "sgd", "batch": BATCH, "batch_norm": "train", "dropout": "train", "check": False}
    whole, eager = (converter.build(model, target=t, **options) for t in ("litert-2", EAGER))
    assert "train" in tiled(eager)
    sessions = [TrainingSession(program.data) for program in (whole, eager)]
    for step in range(3):
        losses = [session.train(*rows_of(step), learning_rate=0.05) for session in sessions]
        assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    for name, array in sessions[0].parameters().items():
        np.testing.assert_allclose(sessions[1].parameters()[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpu", "web", "hexagon", "gpu,litert-2"])
def test_engines_of_accelerators_take_the_whole_batch(name: str) -> None:
    eager = replace(target(name), cache_bytes=16, shared_cache_bytes=64, per_operator=0.0)
    assert not tiled(converter.build(net(), batch=BATCH, target=eager, signatures=("train",), check=False))
