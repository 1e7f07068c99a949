"""What an order needs at least: never more than what it takes, near to it, and no other order is chosen by it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.lowering.state import with_variables
from converter.backend.schedule import Bound, how, schedule, transient
from converter.backend.schedule.order import dependencies
from converter.backend.targets import target
from converter.ir import INT32, Builder, Graph, Node, Parameter, TensorType, Value
from tests.models.zoo import CASES

TARGET = "litert-2/x86-64"
LANES = target(TARGET).lanes
#: Of the smallest, gaps are a good part.
NETS = ["lenet", "encoder", "flax-cnn", "llama"]


def recurrent() -> jax_frontend.Model:
    """A loop, the runtime's, whose states are kept for the backward pass."""
    rng = np.random.default_rng(0)

    def apply(p: dict[str, Any], x: jax.Array) -> jax.Array:
        def cell(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(row @ p["in"] + h @ p["h"])
            return h, h

        h, states = jax.lax.scan(cell, jnp.zeros((x.shape[0], 32)), x.swapaxes(0, 1))
        return (h + states.mean(0)) @ p["out"]

    weights = {"in": (16, 32), "h": (32, 32), "out": (32, 10)}
    params = {name: rng.standard_normal(shape).astype(np.float32) / 6 for name, shape in weights.items()}
    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 40, 16), jnp.float32)])


def dropping() -> Any:
    """A counter of steps, int32, which the delegate leaves to the runtime."""
    import keras

    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(64, "gelu")]
    return keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dropout(0.3), keras.layers.Dense(10)])


def step(name: str, update: str = "full") -> Graph:
    """A lowered, scheduled training step."""
    made = {"recurrent": recurrent, "dropping": dropping}
    model, scheme = (made[name](), update) if name in made else (CASES[name].model(), CASES[name].update(update))
    dropout = "train" if name == "dropping" else "off"
    loss = "sparse_categorical_crossentropy"
    program = converter.build(
        model, loss, update=scheme, target=TARGET, signatures=("train",), dropout=dropout, check=False
    )
    return program.signatures["train"]


def memory(graph: Graph) -> int:
    return transient(with_variables(graph), LANES)


def bound(graph: Graph) -> Bound:
    return Bound(graph, {node: how(graph.constants, node, LANES) for node in graph.nodes})


def shuffled(graph: Graph, rng: Random, freely: float) -> Graph:
    """Another order of the same nodes; `freely`: the share of nodes that run whenever they can."""
    after = dependencies(graph)
    waiting = {node: set(before) for node, before in after.items()}
    readers: dict[Node, list[Node]] = {}
    for node, before in after.items():
        for maker in before:
            readers.setdefault(maker, []).append(node)
    ready, other = [node for node in graph.nodes if not waiting[node]], graph.copy()
    other.nodes = []
    while ready:
        node = ready.pop(rng.randrange(len(ready)) if rng.random() < freely else 0)
        other.nodes.append(node)
        for reader in readers.get(node, ()):
            waiting[reader].discard(node)
            if not waiting[reader]:
                ready.append(reader)
    assert len(other.nodes) == len(graph.nodes)
    return other


@pytest.mark.parametrize(
    ("name", "update"),
    [*((name, update) for name in NETS for update in ("full", "sparse")), ("recurrent", "full"), ("dropping", "full")],
)
def test_no_order_takes_less(name: str, update: str) -> None:
    graph = step(name, update)
    least, rng = bound(graph), Random(0)
    for freely in (0.0, 0.02, 0.2, 1.0):
        ordered = shuffled(graph, rng, freely)
        assert 0 < least(ordered) <= memory(ordered)


def viewing() -> Graph:
    """Truth values, which the delegate does not take, in another shape: the same bytes."""
    b = Builder()
    x = b.input("x", TensorType((64, 64)))
    flags = b(tfl.Greater(), x, 0.0)
    row = b(tfl.Reshape((4096,)), flags)
    both = b(tfl.LogicalAnd(), b(tfl.LogicalNot(), row), row)
    b.graph.outputs = {"y": b(tfl.LogicalAnd(), flags, b(tfl.Reshape((64, 64)), both))}
    return b.graph


def adding() -> Graph:
    """Integers, which the delegate does not take, where the operand was."""
    b = Builder()
    sums = b(tfl.Add(), b(tfl.Add(), b.input("x", TensorType((64, 64), INT32)), 1), 1)
    b.graph.outputs = {"y": b(tfl.NotEqual(), sums, 0)}
    return b.graph


def padding() -> Graph:
    """Zeros around a window's input."""
    b = Builder()
    x = b(tfl.Relu(), b.input("x", TensorType((1, 64, 64, 8))))
    padded = b(tfl.Pad(((0, 0), (1, 1), (1, 1), (0, 0))), x)
    weights = b.constant(np.ones((8, 3, 3, 8)), np.float32), b.constant(np.ones(8), np.float32)
    b.graph.outputs = {"y": b(tfl.Sum((1, 2)), b(tfl.Conv2D((2, 2), "VALID"), padded, *weights))}
    return b.graph


def updating() -> Graph:
    """A weight's new value."""
    b = Builder()
    w = Value(TensorType((256, 64)), "w")
    b.graph.parameters[w] = Parameter("w", np.ones((256, 64), np.float32))
    new = b(tfl.Mul(), w, 0.5)
    b.graph.updates[w] = new
    b.graph.outputs = {"y": b(tfl.Sum((0,)), new)}
    return b.graph


@pytest.mark.parametrize("made", [viewing, adding, padding, updating])
def test_what_takes_no_memory_of_its_own_does_not_count(made: Callable[[], Graph]) -> None:
    graph = made()
    assert bound(graph)(graph) <= memory(graph)


def test_few_orders_are_planned_to_find_the_best() -> None:
    """Not of every net fewer: there may be few, of nearly the same need."""
    asked, known = 0, 0
    for name in NETS[1:]:
        graph, few, all_of_them = step(name), list[Graph](), list[Graph]()
        choose, least = partial(schedule, graph, stays=partial(_stays, graph)), bound(graph)
        quick = choose(partial(_counted, few), least=least)
        assert quick.nodes == choose(partial(_counted, all_of_them)).nodes
        assert memory(quick) < 1.1 * least(quick)
        asked, known = asked + len(few), known + len(all_of_them)
    assert asked < 0.6 * known


def _stays(graph: Graph, node: Node) -> bool:
    return how(graph.constants, node, LANES) is None


def _counted(planned: list[Graph], ordered: Graph) -> int:
    planned.append(ordered)
    return memory(ordered)
