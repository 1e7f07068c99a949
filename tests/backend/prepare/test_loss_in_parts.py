"""Losses of many classes, a few rows at a time, are those of all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.backend.prepare import loss_in_parts as module
from converter.backend.prepare.loss_in_parts import loss_in_parts
from converter.ir import INT4, INT32, Builder, Graph, TensorType, Value, evaluate, ops
from converter.passes.autodiff import differentiate

ROWS, TOKENS, WIDTH, CLASSES = 2, 5, 3, 7


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3 * CLASSES * 4)
    monkeypatch.setattr(module, "FEWEST_ROWS", 1)
    monkeypatch.setattr(module.ByClasses, "loss", lambda *_: None)


def constant(b: Builder, *shape: int) -> Value:
    return b.constant(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def matrix(b: Builder, x: Value) -> Value:
    return b(ops.MatMul(), x, constant(b, WIDTH, CLASSES))


def transposed(b: Builder, x: Value) -> Value:
    flat = b.reshape(x, (ROWS * TOKENS, WIDTH))
    logits = b(ops.MatMul(adj_y=True), flat, constant(b, CLASSES, WIDTH))
    return b(ops.Add(), b.reshape(logits, (ROWS, TOKENS, CLASSES)), constant(b, 1, 1, CLASSES))


def adapted(b: Builder, x: Value) -> Value:
    narrow = b(ops.MatMul(), b(ops.MatMul(), x, constant(b, WIDTH, 2)), constant(b, 2, CLASSES))
    return b(ops.Add(), matrix(b, x), b(ops.Mul(), narrow, 0.5))


def int4(b: Builder, x: Value) -> Value:
    stored = np.random.default_rng(0).integers(-7, 8, (CLASSES, WIDTH)).astype(INT4)
    w = Value(TensorType(stored.shape, INT4), "w")
    b.graph.constants[w] = stored
    return b(ops.Mul(), constant(b, CLASSES), b(ops.CastMatMul(adj_y=True), x, w))


def not_by_rows(b: Builder, x: Value) -> Value:
    return b(ops.CumSum(1), matrix(b, x))


def graph_of(head: Any, targets: str) -> tuple[Graph, Value]:
    """The mean loss, and its gradient by x; targets are labels, shares of the classes, or logits of other rows."""
    b = Builder()
    x = b.input("x", TensorType((ROWS, TOKENS, WIDTH)))
    if targets == "labels":
        losses = b(ops.LabelCrossEntropy(), head(b, x), b.input("y", TensorType((ROWS, TOKENS), INT32)))
    elif targets == "shares":
        y = b.input("y", TensorType((ROWS, TOKENS, CLASSES)))
        losses = b(ops.SoftmaxCrossEntropy(), head(b, x), y)
    else:
        other = head(b, b.input("y", TensorType((ROWS, TOKENS, WIDTH))))
        losses = b(ops.SoftmaxCrossEntropy(), head(b, x), b(ops.Softmax(), other))
    b.graph.outputs = {"loss": b(ops.Mean((0, 1)), losses), "losses": losses}
    return b.graph, x


@pytest.mark.parametrize("targets", ["labels", "shares", "logits"])
@pytest.mark.parametrize("head", [matrix, transposed, adapted, int4, not_by_rows], ids=lambda head: head.__name__)
def test_values_and_gradients_are_the_same(head: Any, targets: str) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(-1, CLASSES, (ROWS, TOKENS)).astype(np.int32)
    y: Any = labels
    if targets != "labels":
        shares, rows = np.eye(CLASSES, dtype=np.float32)[labels], rng.standard_normal((ROWS, TOKENS, WIDTH))
        y = shares if targets == "shares" else rows.astype(np.float32)
    feed = {"x": rng.standard_normal((ROWS, TOKENS, WIDTH)).astype(np.float32), "y": y}
    found = []
    graph, x = graph_of(head, targets)
    for form in (graph, loss_in_parts(graph)):
        backward, gradients = differentiate(form, form.outputs["loss"], [x])
        backward.outputs |= {"dx": gradients[x]}
        found.append(evaluate(backward, feed)[0])
        products = [n.output for n in form.nodes if isinstance(n.op, ops.MatMul | ops.CastMatMul)]
        largest = max(v.type.size for v in products if v.shape[-1] == CLASSES)
        in_parts = form is not graph and head is not not_by_rows
        assert largest == (3 if in_parts else ROWS * TOKENS) * CLASSES
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_few_classes_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", ROWS * TOKENS * CLASSES * 4)
    graph, _ = graph_of(matrix, "labels")
    assert [node.op for node in loss_in_parts(graph).nodes] == [node.op for node in graph.nodes]
