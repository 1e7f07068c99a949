"""Labels: the operators that a step gets for them, in the stock interpreter, against jax."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from converter.backend.lowering.lower import lower
from converter.backend.targets import tables, target
from converter.ir import INT32, Builder, Graph, TensorType, ops
from converter.passes import eliminate_dead_code, merge_common_subexpressions, simplify
from converter.passes.autodiff import differentiate
from tests.backend.stock import file, run

#: Engines of accelerators have kernels of their own for it, and round to float16.
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


@pytest.mark.parametrize("name", sorted(tables()))
def test_accelerators_keep_their_kernels(name: str) -> None:
    b = Builder()
    b.graph.outputs = {"y": b(ops.OneHot(3), b.input("x", TensorType((2,), INT32)))}
    assert ("ONE_HOT" in codes(lower(b.graph, target(name)))) == (name in ACCELERATORS)


def _loss(labels: np.ndarray, logits: np.ndarray, everywhere: bool = False) -> Graph:
    b = Builder()
    z, y = b.input("z", TensorType(logits.shape)), b.input("y", TensorType(labels.shape, INT32))
    rows = b(ops.LabelCrossEntropy(everywhere), z, y)
    b.graph.outputs = {"rows": rows, "total": b(ops.Sum((0, 1)), rows)}
    graph, gradients = differentiate(b.graph, b.graph.outputs["total"], [z])
    graph.outputs = {"rows": rows, "dz": gradients[z]}
    return simplify(eliminate_dead_code(graph))


@pytest.mark.parametrize("name", ["litert-2", "litert-2/x86-64", "gpu"])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("everywhere", [False, True])
def test_the_loss_of_labels_is_exact(name: str, scale: float, everywhere: bool) -> None:
    """Against jax in double precision: sure answers, wrong ones, labels that are no class."""
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((3, 40, 17)) * scale).astype(np.float32)
    labels = rng.integers(-1, 18, (3, 40)).astype(np.int32)
    labels[0] = logits[0].argmax(-1)
    lowered = lower(_loss(labels, logits, everywhere), target(name))
    with jax.enable_x64(True):
        z = logits.astype(np.float64)

        def rows(z: jax.Array) -> jax.Array:
            classes = jax.nn.one_hot(labels, 17, dtype=z.dtype)
            if everywhere:
                return jax.nn.logsumexp(z, -1) - (z * classes).sum(-1)
            return -(jax.nn.log_softmax(z) * classes).sum(-1)

        expected, gradient = rows(z), jax.grad(lambda z: rows(z).sum())(z)
    for xnnpack in (True, False):
        got = run(file(lowered), {"z": logits, "y": labels}, xnnpack)
        np.testing.assert_allclose(got["rows"], expected, rtol=3e-6, atol=4e-7)
        np.testing.assert_allclose(got["dz"], gradient, rtol=3e-5, atol=4e-7)


def test_a_loss_of_labels_passes_over_the_logits_seldom() -> None:
    """Zeros and ones, the softmax, what they give, and the cotangent: nothing else is as large as the logits."""
    logits, labels = np.zeros((3, 4, 50), np.float32), np.zeros((3, 4), np.int32)
    lowered = merge_common_subexpressions(lower(_loss(labels, logits), target("litert-2")))
    large = [node.op.code for node in lowered.nodes if node.output.type.size == logits.size]
    assert sorted(set(large) - {"RESHAPE"}) == ["MUL", "SOFTMAX", "SQUARED_DIFFERENCE", "SUB"]
    assert [large.count(code) for code in ("MUL", "SOFTMAX", "SQUARED_DIFFERENCE", "SUB")] == [1, 1, 1, 3]
