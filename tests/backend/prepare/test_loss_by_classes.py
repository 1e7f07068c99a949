"""Losses of a frozen head, some classes at a time, are those of all classes, and so are the cotangents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.backend.prepare import loss_by_classes as module
from converter.backend.prepare import loss_in_parts as rows
from converter.backend.prepare.loss_in_parts import loss_in_parts
from converter.ir import INT4, INT8, INT32, Builder, Graph, TensorType, Value, evaluate, ops
from converter.passes.autodiff import differentiate

ROWS, TOKENS, WIDTH, CLASSES = 2, 5, 3, 71
#: Classes of each part by how many there is room for: parts of a matrix have a multiple of 32 rows.
PARTS = {1: [32, 32, 7], 32: [32, 32, 7], 36: [64, 7], 99: [71]}
RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((CLASSES, WIDTH)).astype(np.float32)
INTEGERS = RNG.integers(-7, 8, (CLASSES, WIDTH))
SCALES, BIASES = (RNG.standard_normal(CLASSES).astype(np.float32) for _ in range(2))


def plain(b: Builder, x: Value) -> Value:
    return b(ops.CastMatMul(adj_y=True), x, b.constant(MATRIX))


def transposed(b: Builder, x: Value) -> Value:
    return b(ops.CastMatMul(), x, b.constant(np.ascontiguousarray(MATRIX.T)))


def int4(b: Builder, x: Value) -> Value:
    return b(ops.Mul(), b(ops.CastMatMul(adj_y=True), x, b.constant(INTEGERS.astype(INT4))), b.constant(SCALES))


def biased_int8(b: Builder, x: Value) -> Value:
    flat = b.reshape(x, (ROWS * TOKENS, WIDTH))
    logits = b(ops.Add(), b(ops.CastMatMul(adj_y=True), flat, b.constant(INTEGERS.astype(INT8))), b.constant(BIASES))
    return b.reshape(b(ops.Mul(), logits, b.constant(SCALES[None])), (ROWS, TOKENS, CLASSES))


def one_scale(b: Builder, x: Value) -> Value:
    return b(ops.Mul(), b(ops.Add(), plain(b, x), b.constant(BIASES)), b.constant(np.float32(40.0)))


def trained(b: Builder, x: Value) -> Value:
    return b(ops.Add(), plain(b, x), b.input("biases", TensorType((CLASSES,))))


def graph_of(head: Any, everywhere: bool) -> tuple[Graph, Value]:
    """The loss weighted by rows, and its gradient by x."""
    b = Builder()
    x = b.input("x", TensorType((ROWS, TOKENS, WIDTH)))
    y = b.input("y", TensorType((ROWS, TOKENS), INT32))
    losses = b(ops.LabelCrossEntropy(everywhere), head(b, x), y)
    weighed = b(ops.Mul(), losses, b.input("weight", losses.type))
    b.graph.outputs = {"loss": b(ops.Sum((0, 1)), weighed), "losses": losses}
    return b.graph, x


def values(graph: Graph, x: Value, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    backward, gradients = differentiate(graph, graph.outputs["loss"], [x])
    backward.outputs |= {"dx": gradients[x]}
    return evaluate(backward, {v.name: feed[v.name] for v in backward.inputs})[0]


@pytest.mark.parametrize("at_once", PARTS)
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("head", [plain, transposed, int4, biased_int8, one_scale], ids=lambda head: head.__name__)
def test_values_and_gradients_are_the_same(
    head: Any, everywhere: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEWEST_CLASSES", 1)
    monkeypatch.setattr(module, "OF_MATRIX", at_once * WIDTH)
    monkeypatch.setattr(rows, "MOST", 0)
    rng = np.random.default_rng(1)
    feed = {
        "x": rng.standard_normal((ROWS, TOKENS, WIDTH)).astype(np.float32) * 20,
        "y": rng.integers(-1, CLASSES + 2, (ROWS, TOKENS)).astype(np.int32),
        "weight": rng.uniform(0, 2, (ROWS, TOKENS)).astype(np.float32),
    }
    graph, x = graph_of(head, everywhere)
    parts = loss_in_parts(graph)
    made = [n.output for n in parts.nodes if isinstance(n.op, ops.CastMatMul) and n.op.adj_y]
    assert [v.shape[-1] for v in made] == PARTS[at_once]
    expected, found = values(graph, x, feed), values(parts, x, feed)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_head_of_more_than_constants_is_left_to_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST", 0)
    graph, _ = graph_of(trained, False)
    made = [n.output.shape for n in loss_in_parts(graph).nodes if isinstance(n.op, ops.CastMatMul)]
    assert {shape[-1] for shape in made} == {CLASSES}


@pytest.mark.parametrize("head", [plain, transposed, int4, biased_int8, one_scale], ids=lambda head: head.__name__)
def test_the_softmax_of_other_logits_by_the_same_head_is_too(head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a base's, beside a loss of labels: the classes are met once for each of the two."""
    monkeypatch.setattr(module, "FEWEST_CLASSES", 1)
    monkeypatch.setattr(module, "OF_MATRIX", 32 * WIDTH)
    monkeypatch.setattr(rows, "MOST", 0)
    rng, b = np.random.default_rng(1), Builder()
    x, z = (b.input(name, TensorType((ROWS, TOKENS, WIDTH))) for name in "xz")
    logits, others = twice(b, head, x, z)
    p = b(ops.Softmax(), others)
    separate = b(ops.Sub(), b(ops.SoftmaxCrossEntropy(), logits, p), b(ops.SoftmaxCrossEntropy(), others, p))
    labelled = b(ops.LabelCrossEntropy(), logits, b.input("y", TensorType((ROWS, TOKENS), INT32)))
    losses = b(ops.Add(), labelled, b(ops.Mul(), separate, 0.3))
    b.graph.outputs = {"loss": b(ops.Sum((0, 1)), losses), "losses": losses}
    parts = loss_in_parts(b.graph)
    made = [n.output for n in parts.nodes if isinstance(n.op, ops.CastMatMul) and n.op.adj_y]
    assert [v.shape[-1] for v in made] == 2 * PARTS[32]
    feed = {name: 2 * rng.standard_normal((ROWS, TOKENS, WIDTH)).astype(np.float32) for name in "xz"}
    feed["y"] = rng.integers(-1, CLASSES, (ROWS, TOKENS)).astype(np.int32)
    expected, found = values(b.graph, x, feed), values(parts, x, feed)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=2e-5, err_msg=name)


def twice(b: Builder, head: Any, x: Value, z: Value) -> tuple[Value, Value]:
    """Two rows behind one head: its constants are the same, which small ones alone are by themselves."""
    logits = head(b, x)
    made = list(b.graph.nodes)
    bound = {x: z}
    for node in made:
        bound[node.output] = b(node.op, *(bound.get(v, v) for v in node.inputs))
    return logits, bound[logits]
