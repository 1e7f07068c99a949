"""PyTorch as well as it goes on one thread: the same Keras file, its layers as PyTorch's own functions, traced once.

Keras runs on PyTorch here, so that TensorFlow is not loaded. What its layers do at each call is traced into a graph of
PyTorch's operators beforehand, as TensorFlow's graph is. Convolutions keep their filters as PyTorch stores them
(channels last), those of 1 x 1 are products of matrices, than which PyTorch's own are slower with one thread and few
rows, and a frozen batch norm is one `addcmul`. Together they bring a step of EfficientNet-Lite0 from 276 to 159 ms.
`torch.compile` saves what `addcmul` does, 12%, takes minutes, and its compiler stays in memory: it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sides import Array, parts, schedule, share_of, stretch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import keras  # isort: skip  behind torch, its backend

Tensor = torch.Tensor


class PyTorch:
    """The loop of a tutorial with fused Adam, over the traced net: all weights."""

    def __init__(self, file: Path, batch: int) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # as TensorFlow does: the wake word's took up to four times as long
        model = keras.models.load_model(file, compile=False)
        net = _Net(model)
        dtype = torch.int64 if "int" in model.inputs[0].dtype else torch.float32
        some = [torch.zeros((rows, *model.inputs[0].shape[1:]), dtype=dtype) for rows in (batch, _JUDGED)]
        self._net, self._judged = (make_fx(net, pre_dispatch=True)(rows) for rows in some)
        self._whole, self._batch, self._trained = net, batch, net.trained()
        self._first = [weight.detach().clone() for weight in self._trained]
        self.begin()

    def begin(self) -> None:
        """Go back to the first weights; the optimizer begins anew."""
        with torch.no_grad():
            for weight, value in zip(self._trained, self._first, strict=True):
                weight.copy_(value)
        self._optimizer = torch.optim.Adam(self._trained, eps=1e-7, fused=True)

    def train(self, x: Array, y: Array, rate: float, epochs: int, judge: Callable[[], None]) -> None:
        """Train on batches of rows in random order, and call `judge` behind each half epoch."""
        every, order = stretch(len(y), self._batch), np.random.default_rng(0)
        rates = schedule(rate, epochs * len(y) // self._batch).tolist()
        rows = np.concatenate([order.permutation(len(y)) for _ in range(epochs)]).reshape(len(rates), self._batch)
        for number, (some, each) in enumerate(zip(rows, rates, strict=True)):
            self._step(x[some], y[some], each)
            if (number + 1) % every == 0:
                judge()

    def losses(self, x: Array, y: Array, rate: float, steps: int) -> list[float]:
        """Return the losses of steps over batches of rows in their order."""
        return [self._step(x[part], y[part], rate).item() for part in parts(steps, self._batch)]

    def _step(self, x: Array, y: Array, rate: float) -> Tensor:
        logits, labels = self._net(torch.from_numpy(x)).flatten(0, -2), torch.from_numpy(y).long().flatten()
        loss = functional.cross_entropy(logits, labels, ignore_index=-1)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def right(self, x: Array, y: Array) -> float:
        """Return the share of right answers."""
        given = []
        for part in torch.from_numpy(x).split(_JUDGED):
            given.append((self._judged if len(part) == _JUDGED else self._whole)(part).argmax(-1))
        return share_of(torch.cat(given).numpy(), y)


#: Rows that are judged at once, as on the other sides.
_JUDGED = 50


class _Net:
    """A Keras model whose convolutions, dense layers and frozen batch norms are PyTorch's functions."""

    def __init__(self, model: Any) -> None:
        layers = keras.layers
        kinds = {
            layers.Conv2D: self._convolution,
            layers.DepthwiseConv2D: self._convolution,
            layers.BatchNormalization: self._normalization,
            layers.Dense: self._dense,
            layers.GRU: self._recurrent,
        }
        self._model, self._weights = model, list[Tensor]()
        self._own = {layer: kinds[type(layer)](layer) for layer in model.operations if type(layer) in kinds}
        for layer in model.operations:
            for variable in () if layer in self._own else getattr(layer, "variables", ()):
                self._weights.append(variable.value.requires_grad_(variable.trainable))

    def __call__(self, x: Tensor) -> Tensor:
        return self._model._run_through_graph(x, lambda layer: self._own.get(layer, layer))

    def trained(self) -> list[Tensor]:
        """Return the weights that train."""
        return [weight for weight in self._weights if weight.requires_grad]

    def _weight(self, variable: Any, axes: Sequence[int]) -> Tensor:
        """Return a weight of the model with its axes in another order, stored as PyTorch's kernels like it."""
        form = torch.channels_last if len(axes) == 4 else torch.contiguous_format
        value = variable.value.detach().permute(*axes).clone(memory_format=form)
        self._weights.append(value.requires_grad_(variable.trainable))
        return value

    def _bias(self, layer: Any) -> Tensor | None:
        return self._weight(layer.bias, [0]) if layer.use_bias else None

    def _convolution(self, layer: Any) -> Callable[..., Tensor]:
        is_deep = isinstance(layer, keras.layers.DepthwiseConv2D)
        if (
            layer.dilation_rate != (1, 1)
            or layer.data_format != "channels_last"
            or (is_deep and layer.depth_multiplier > 1)
        ):
            raise NotImplementedError(f"{layer.name} is a convolution that the side of PyTorch does not have")
        filters = self._weight(layer.kernel, (2, 3, 0, 1) if is_deep else (3, 2, 0, 1))
        bias, groups, strides = self._bias(layer), len(filters) if is_deep else 1, layer.strides

        def convolution(x: Tensor, **_: Any) -> Tensor:
            x = x.permute(0, 3, 1, 2)  # the memory stays: this is channels_last
            around = _padding(x.shape[2:], layer.kernel_size, strides) if layer.padding == "same" else [0, 0, 0, 0]
            if around[0] == around[1] and around[2] == around[3]:
                y = functional.conv2d(x, filters, bias, strides, around[::-2], groups=groups)
            else:
                y = functional.conv2d(functional.pad(x, around), filters, bias, strides, groups=groups)
            return layer.activation(y.permute(0, 2, 3, 1))

        def product(x: Tensor, **_: Any) -> Tensor:
            return layer.activation(functional.linear(x, filters.flatten(1), bias))

        return product if filters.shape[2:] == (1, 1) and strides == (1, 1) and not is_deep else convolution

    def _normalization(self, layer: Any) -> Callable[..., Tensor]:
        stored = (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
        gamma, beta, mean, variance = (self._weight(variable, [0]) for variable in stored)

        def normalization(x: Tensor, **_: Any) -> Tensor:
            scale = gamma * torch.rsqrt(variance + layer.epsilon)
            return torch.addcmul(beta - mean * scale, x, scale)

        return normalization

    def _recurrent(self, layer: Any) -> Callable[..., Tensor]:
        def turned(variable: Any) -> Tensor:
            update, reset, new = variable.value.detach().chunk(3, dim=-1)  # PyTorch has the gate of the reset first
            value = torch.cat([reset, update, new], -1).movedim(-1, 0).contiguous()
            self._weights.append(value.requires_grad_(variable.trainable))
            return value

        cell = layer.cell
        matrices, biases = [turned(cell.kernel), turned(cell.recurrent_kernel)], turned(cell.bias)
        begun = torch.zeros(1, 1, layer.units)

        def recurrent(x: Tensor, **_: Any) -> Tensor:
            weights = [*matrices, *biases.unbind(-1)]
            return torch.gru(x, begun.expand(1, len(x), -1), weights, True, 1, 0.0, True, False, True)[0]

        return recurrent

    def _dense(self, layer: Any) -> Callable[..., Tensor]:
        matrix, bias = self._weight(layer.kernel, (1, 0)), self._bias(layer)
        return lambda x, **_: layer.activation(functional.linear(x, matrix, bias))


def _padding(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return what "same" adds to the left, right, top and bottom of an image of height and width `sizes`."""
    totals = [max((ceil(n / s) - 1) * s + k - n, 0) for n, k, s in zip(sizes, kernel, strides, strict=True)]
    return [part for total in totals[::-1] for part in (total // 2, total - total // 2)]
