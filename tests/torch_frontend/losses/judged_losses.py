"""A loss beside PyTorch's own: its value and the gradients by all outputs, on the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from converter.frontends.torch import loss_of
from converter.ir import Builder, Graph, TensorType, Value, evaluate
from converter.passes.autodiff import differentiate
from converter.training.losses import attach_loss


def graph_of(
    outputs: Sequence[np.ndarray], names: Sequence[str] = ()
) -> tuple[Graph, list[Value], dict[str, np.ndarray]]:
    """A graph that gives what it takes, as outputs of some names."""
    b = Builder()
    values = [b.input(f"x{i}", TensorType(x.shape)) for i, x in enumerate(outputs)]
    usual = [f"output_{i}" for i in range(len(values))] if len(values) > 1 else ["output"]
    b.graph.outputs = dict(zip(names or usual, values, strict=True))
    return b.graph, values, {v.name: x for v, x in zip(values, outputs, strict=True)}


def check_loss(
    loss: Any,
    outputs: Sequence[np.ndarray],
    y: Any,
    names: Sequence[str] = (),
    eager: Any = None,
    described: bool = True,
) -> None:
    """Compare a loss with what PyTorch computes eagerly.

    Args:
        loss: as `build` takes it.
        outputs: of a module.
        y: the targets: an array, a dict of them, or None.
        names: of the outputs.
        eager: what PyTorch calls, with the outputs, followed by y; None: the loss.
        described: whether `y=` is said.
    """
    tensors = [torch.tensor(x, requires_grad=True) for x in outputs]
    if eager is None:
        eager = (lambda mean, var, y: loss(mean, y, var)) if isinstance(loss, nn.GaussianNLLLoss) else loss
    expected = eager(*tensors, *(() if y is None else (_tensors(y),))).mean()
    expected.backward()

    graph, values, given = graph_of(outputs, names)
    targets = _types(y) if described and y is not None else None
    scored = attach_loss(graph, loss_of(loss, dict(graph.outputs), targets))
    made, gradients = differentiate(scored, scored.outputs["loss"], values)
    made.outputs = {"loss": made.outputs["loss"], **{v.name: gradients[v] for v in values}}
    given |= {"weight": np.ones(len(outputs[0]), np.float32)}
    given |= {f"y/{k}": v for k, v in y.items()} if isinstance(y, Mapping) else {} if y is None else {"y": y}
    with np.errstate(all="ignore"):
        found, _ = evaluate(made, given)
    np.testing.assert_allclose(found["loss"], float(expected.detach()), rtol=1e-5)
    for value, tensor in zip(values, tensors, strict=True):
        np.testing.assert_allclose(found[value.name], tensor.grad.numpy(), rtol=1e-5, atol=1e-6, err_msg=value.name)


def _tensors(y: Any) -> Any:
    if isinstance(y, Mapping):
        return {name: _tensors(part) for name, part in y.items()}
    return torch.tensor(y).long() if y.dtype == np.int32 else torch.tensor(y)


def _types(y: Any) -> Any:
    return {k: _types(v) for k, v in y.items()} if isinstance(y, Mapping) else TensorType(y.shape, y.dtype)
