"""Random small nets of Keras, which keep the tensor that each layer with a kernel reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

from tests.driver.head_reads.drawn import CLASSES, Dice, Drawn, Inside

_ACTIVATIONS = ("relu", "relu6", "tanh", "silu", "gelu", "hard_silu", "linear")


class Net:
    """Draws a net layer by layer."""

    def __init__(self, seed: int) -> None:
        self.dice = Dice(seed)
        self.reads: dict[str, Any] = {}
        self.mask: Any = None
        self.token: int | None = None
        self.positions: int | None = None
        self.story: list[str] = []

    def read(self, layer: Any, x: Any, **given: Any) -> Any:
        """Return what a layer gives; what it reads is kept."""
        self.reads[layer.name] = x
        return layer(x, **given)

    def after(self, x: Any) -> Any:
        """Return a value after a normalization and an activation, each of which may be none."""
        d = self.dice
        norm = d.one(None, layers.BatchNormalization, layers.BatchNormalization, layers.LayerNormalization)
        x = x if norm is None else norm()(x)
        x = layers.Activation(d.one(*_ACTIVATIONS))(x)
        return layers.Dropout(0.3)(x) if d.yes(0.2) else x

    def conv(self, x: Any, name: str, channels: int, window: int = 3, **options: Any) -> Any:
        """Return a convolution, what is after it too."""
        spatial = len(x.shape) - 2
        options = {"padding": "same", "use_bias": self.dice.yes(), **options}
        return self.after(self.read(getattr(layers, f"Conv{spatial}D")(channels, window, name=name, **options), x))

    def depthwise(self, x: Any, name: str, **options: Any) -> Any:
        spatial = len(x.shape) - 2
        options = {"padding": "same", "depth_multiplier": self.dice.one(1, 1, 2), **options}
        return self.after(self.read(getattr(layers, f"DepthwiseConv{spatial}D")(3, name=name, **options), x))

    def residual(self, x: Any, name: str) -> Any:
        channels, stride = self.dice.size(2, 6), self.dice.one(1, 1, 2)
        way = x
        if self.dice.yes() or channels != x.shape[-1] or stride > 1:
            way = self.conv(x, f"{name}_shortcut", channels, 1, strides=stride)
        y = self.conv(x, f"{name}_a", channels, self.dice.one(1, 3), strides=stride)
        return layers.Add()([way, self.conv(y, f"{name}_b", channels)])

    def bottleneck(self, x: Any, name: str) -> Any:
        y = self.conv(x, f"{name}_expand", x.shape[-1] * 2, 1) if self.dice.yes(0.7) else x
        y = self.depthwise(y, f"{name}_depthwise", strides=self.dice.one(1, 2))
        y = self.squeezed(y, name) if self.dice.yes(0.4) else y
        y = self.conv(y, f"{name}_project", self.dice.one(x.shape[-1], self.dice.size(2, 6)), 1)
        return layers.Add()([x, y]) if y.shape == x.shape else y

    def squeezed(self, x: Any, name: str) -> Any:
        """Squeeze-and-excite: dense or by convolutions of one pixel."""
        spatial = len(x.shape) - 2
        pool = getattr(layers, f"GlobalAveragePooling{spatial}D")
        if self.dice.yes():
            s = pool(keepdims=True)(x)
            s = self.conv(s, f"{name}_reduce", 3, 1)
            s = self.conv(s, f"{name}_excite", x.shape[-1], 1)
        else:
            s = pool()(x)
            s = self.after(self.read(layers.Dense(3, name=f"{name}_reduce"), s))
            s = self.after(self.read(layers.Dense(x.shape[-1], name=f"{name}_excite"), s))
            s = layers.Reshape((*[1] * spatial, x.shape[-1]))(s)
        return layers.Multiply()([x, layers.Activation("sigmoid")(s)])

    def branches(self, x: Any, name: str) -> Any:
        ways = [self.conv(x, f"{name}_way{k}", self.dice.size(2, 4), self.dice.one(1, 3)) for k in range(2)]
        return layers.Concatenate()([*ways, x] if self.dice.yes(0.3) else ways)

    def grouped(self, x: Any, name: str) -> Any:
        y = self.conv(x, f"{name}_a", 4, 1) if self.dice.yes() or x.shape[-1] % 2 else x
        y = self.conv(y, f"{name}_b", 4, groups=2)
        return self.conv(y, f"{name}_c", 3, 1) if self.dice.yes() else y

    def twice(self, x: Any, name: str) -> Any:
        """A layer that is used twice, among others or alone."""
        shared = getattr(layers, f"Conv{len(x.shape) - 2}D")(x.shape[-1], 1, name=f"{name}_shared")
        y = shared(layers.Activation("tanh")(self.read(shared, x)))
        return self.conv(y, f"{name}_after", 4, 1) if self.dice.yes() else y

    def dense(self, x: Any, name: str) -> Any:
        y = self.after(self.read(layers.Dense(self.dice.size(3, 6), name=f"{name}_a"), x))
        if self.dice.yes():
            y = self.after(self.read(layers.Dense(self.dice.size(3, 6), name=f"{name}_b"), y))
        return y

    def recurrent(self, x: Any, name: str) -> Any:
        kind = self.dice.one(layers.LSTM, layers.GRU)
        layer = kind(self.dice.size(3, 5), return_sequences=True, name=f"{name}_rnn", unroll=self.dice.yes(0.3))
        if self.dice.yes(0.3):
            layer = layers.Bidirectional(layer, name=f"{name}_both")
        y = self.read(layer, x)
        return self.after(self.read(layers.Dense(4, name=f"{name}_dense"), y)) if self.dice.yes() else y

    def attention(self, x: Any, name: str) -> Any:
        width = x.shape[-1]
        y = layers.LayerNormalization(name=f"{name}_norm")(x) if self.dice.yes() else x
        layer = layers.MultiHeadAttention(2, self.dice.size(2, 4), name=f"{name}_attention")
        self.reads |= {f"{name}_attention/{part}": y for part in ("query", "key", "value")}
        x = layers.Add()([x, layer(y, y)])
        y = self.after(self.read(layers.Dense(2 * width, name=f"{name}_up"), x))
        return layers.Add()([x, self.read(layers.Dense(width, name=f"{name}_down"), y)])

    def blocks(self, x: Any, *kinds: Callable[[Any, str], Any]) -> Any:
        for number in range(self.dice.size(1, 3)):
            kind = self.dice.one(*kinds)
            self.story.append(f"{kind.__name__} of {tuple(x.shape[1:])}")
            x = kind(x, f"block{number}")
        return x

    def pictures(self) -> tuple[Any, Any, Any]:
        d = self.dice
        shape = (d.size(4, 7), d.size(4, 7), d.size(1, 4))
        x = layers.Input(shape)
        y = self.conv(x, "stem", d.size(2, 4), strides=d.one(1, 2)) if d.yes(0.7) else x
        y = self.blocks(y, self.residual, self.bottleneck, self.branches, self.grouped, self.twice)
        pool = d.one(layers.GlobalAveragePooling2D, layers.GlobalMaxPooling2D, layers.Flatten, layers.Flatten)
        return x, pool()(y), shape

    def series(self) -> tuple[Any, Any, Any]:
        d = self.dice
        shape = (d.size(4, 8), d.size(2, 4))
        x = layers.Input(shape)
        kinds = [self.residual, self.bottleneck, self.branches, self.dense, self.dense, self.recurrent, self.twice]
        y = self.blocks(x, *kinds, self.attention)
        ends = (layers.GlobalAveragePooling1D(), layers.GlobalMaxPooling1D(), layers.Flatten(), layers.LSTM(3), "last")
        end = d.one(*ends)
        self.story.append(f"end {end if isinstance(end, str) else type(end).__name__}")
        if end == "last":
            self.token, self.positions = y.shape[1] - 1, y.shape[1]
            return x, y[:, -1], shape
        if isinstance(end, layers.LSTM):
            return x, self.read(end, y), shape
        return x, end(y), shape

    def text(self) -> tuple[Any, Any, Any]:
        d = self.dice
        length, masked = d.size(5, 7), d.yes()
        x = layers.Input((length,), dtype="int32")
        y = layers.Embedding(9, 4, mask_zero=masked)(x)
        end = d.one("mean", "mean", "first", "last", "max", "flat")
        self.story.append(f"{'masked' if masked else 'all'} {end}")
        y = self.blocks(y, self.attention, self.attention, self.dense, self.recurrent)
        if end == "mean":
            if masked and getattr(y, "_keras_mask", None) is not None:
                self.positions = length
                self.mask = keras.ops.cast(keras.ops.not_equal(x, 0), "float32")
            return x, layers.GlobalAveragePooling1D()(y), (length, "ids")
        if end in ("first", "last"):
            self.token, self.positions = 0 if end == "first" else length - 1, length
            return x, y[:, self.token], (length, "ids")
        return x, (layers.GlobalMaxPooling1D() if end == "max" else layers.Flatten())(y), (length, "ids")

    def vectors(self) -> tuple[Any, Any, Any]:
        shape = (self.dice.size(3, 6),)
        x = layers.Input(shape)
        return x, self.blocks(x, self.dense), shape

    def several(self) -> tuple[Any, Any, Any]:
        """Two inputs, each with layers of its own, and what is after both."""
        first, given, first_shape = self.dice.one(self.pictures, self.series, self.vectors)()
        shape = (self.dice.size(2, 5),)
        x = layers.Input(shape, name="second")
        y = self.after(self.read(layers.Dense(4, name="other"), x)) if self.dice.yes() else x
        joined = layers.Concatenate()([given, y])
        joined = self.after(self.read(layers.Dense(5, name="joined"), joined)) if self.dice.yes() else joined
        return [first, x], joined, [first_shape, shape]


def draw(seed: int) -> Drawn:
    """Return a random net of Keras."""
    keras.utils.set_random_seed(seed)
    net = Net(seed)
    kind = net.dice.one(net.pictures, net.pictures, net.series, net.series, net.text, net.vectors, net.several)
    inputs, own, shape = kind()
    own = layers.Dropout(0.2)(own) if net.dice.yes(0.3) else own
    output = layers.Dense(CLASSES, name="head", activation=net.dice.one(None, "softmax"))(own)
    model = keras.Model(inputs, output)
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        around = 1.0 if weight.path.endswith(("gamma", "variance")) else 0.0
        if weight.dtype.startswith("float"):
            scale = 0.1 if around else 0.5
            drawn = around + scale * np.clip(rng.standard_normal(weight.shape), -3, 3)
            weight.assign(drawn.astype("f"))
    read = dict(net.reads)
    watched = keras.Model(inputs, [output, own, *read.values(), *([] if net.mask is None else [net.mask])])

    def rows(many: int) -> Any:
        if isinstance(inputs, list):
            return tuple(rng.standard_normal((many, *one)).astype("f") for one in shape)
        if shape[-1] == "ids":
            ids = rng.integers(1, 9, (many, shape[0]))
            for row in ids:
                row[rng.integers(1, shape[0] + 1) :] = 0
            return ids.astype(np.int32)
        return rng.standard_normal((many, *shape)).astype("f")

    def inside(x: Any) -> Inside:
        given, first, *others = map(np.asarray, watched(list(x) if isinstance(x, tuple) else x, training=False))
        mask = others.pop() if net.mask is not None else None
        return Inside(given, first, dict(zip(read, others, strict=True)), mask)

    return Drawn(
        model, rows, inside, token=net.token, positions=net.positions, story=f"{kind.__name__}: {'; '.join(net.story)}"
    )
