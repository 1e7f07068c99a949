"""Labels and the loss of logits: the operators that a step gets for them, in the stock interpreter, against jax."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from converter.ir import INT32, Builder, Graph, TensorType, ops
from converter.passes import eliminate_dead_code
from converter.targets import tables, target
from converter.tflite.lower import lower
from tests.tflite.stock import file, run

RNG = np.random.default_rng(0)
#: Engines of accelerators have kernels of their own for these, and round to float16.
ACCELERATORS = {"gpu", "web", "hexagon"}


def codes(graph: Graph) -> set[str]:
    return {node.op.code for node in graph.nodes}


@pytest.mark.parametrize("shape", [(9,), (3, 3), (3, 1, 3)])
@pytest.mark.parametrize("classes", [1, 6, 3000])
def test_labels_are_rows_of_zeros_and_ones(shape: tuple[int, ...], classes: int) -> None:
    """To the last bit, labels that are no class included."""
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    known = [0, classes - 1, classes, -1, least, most, 2**24 + 1, most - 1, classes // 2]
    y = np.asarray(known, np.int32).reshape(shape)
    b = Builder()
    b.graph.outputs = {"y": b(ops.OneHot(classes), b.input("x", TensorType(shape, INT32)))}
    lowered = lower(b.graph, target("litert-2"))
    assert "ONE_HOT" not in codes(lowered)
    expected = jax.nn.one_hot(y, classes)
    for xnnpack in (True, False):
        np.testing.assert_array_equal(run(file(lowered), {"x": y}, xnnpack)["y"], expected)


def test_more_classes_than_float32_tells_apart() -> None:
    b = Builder()
    b.graph.outputs = {"y": b(ops.OneHot(2**24 + 1), b.input("x", TensorType((1,), INT32)))}
    assert codes(lower(b.graph, target("litert-2"))) == {"ONE_HOT"}


def cross_entropy() -> Graph:
    """The loss of [4, 7] logits, and its cotangent of the logits."""
    b, loss = Builder(), ops.SoftmaxCrossEntropy()
    logits, targets, dy = (b.input(n, TensorType(s)) for n, s in (("z", (4, 7)), ("t", (4, 7)), ("dy", (4,))))
    y = b(loss, logits, targets)
    to_logits, _ = loss.vjp(b, logits, targets, y=y, dy=dy)
    assert to_logits is not None
    b.graph.outputs = {"y": y, "dz": to_logits()}
    return b.graph


def test_the_exponentials_of_the_loss_serve_its_gradient() -> None:
    z, t = (RNG.uniform(low, 9, (4, 7)).astype(np.float32) for low in (-90, 0))
    dy = RNG.standard_normal(4).astype(np.float32)

    def reference(z: jax.Array) -> jax.Array:
        return ((jax.nn.logsumexp(z, -1, keepdims=True) - z) * t).sum(-1)

    expected, back = jax.vjp(reference, z)
    lowered = lower(cross_entropy(), target("litert-2"))
    assert "SOFTMAX" not in codes(lowered)
    assert sum(node.op.code == "EXP" for node in lowered.nodes) == 1
    found = run(file(lowered), {"z": z, "t": t, "dy": dy}, xnnpack=True)
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5)
    np.testing.assert_allclose(found["dz"], back(dy)[0], rtol=1e-4, atol=1e-5)


def test_a_softmax_alone_is_one_operator() -> None:
    graph = cross_entropy()
    del graph.outputs["y"]
    assert "SOFTMAX" in codes(lower(eliminate_dead_code(graph), target("litert-2")))


@pytest.mark.parametrize("name", sorted(tables()))
def test_accelerators_keep_their_kernels(name: str) -> None:
    b = Builder()
    b.graph.outputs = {"y": b(ops.OneHot(3), b.input("x", TensorType((2,), INT32)))}
    assert ("ONE_HOT" in codes(lower(b.graph, target(name)))) == (name in ACCELERATORS)
    assert ("SOFTMAX" in codes(lower(cross_entropy(), target(name)))) == (name in ACCELERATORS)
