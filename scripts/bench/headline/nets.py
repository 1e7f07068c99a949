"""Nets with real weights as Keras models, which every side takes: EfficientNet-Lite0, MiniLM, openWakeWord's."""

from __future__ import annotations

from typing import Any

from ai_edge_litert.interpreter import Interpreter

from examples import efficientnet_lite, minilm, wake_word
from examples.weights import safetensors_file, torch_file
from examples.weights.packages import resource

import keras  # isort: skip  after examples, which choose its backend

SIZE = 96
#: Tokens of a text.
LENGTH = 32
_HEADS, _LAYERS, _WIDTH = 12, 6, 384


def efficientnet() -> keras.Model:
    """EfficientNet-Lite0 with its weights of ImageNet as layers of Keras, and a new classifier.

    Batch norms are frozen: `fit` of Keras 3 takes the batch's statistics of all others, whatever they were called with.
    """
    tensors = torch_file.read(resource(*efficientnet_lite.WEIGHTS))
    layers = keras.layers

    def unit(x: Any, conv: str, norm: str, stride: int = 1, active: bool = True) -> Any:
        kernel = tensors[f"{conv}.weight"].transpose(2, 3, 1, 0)  # PyTorch has [out, in, H, W]
        is_deep, size = kernel.shape[2] == 1, kernel.shape[:2]
        if is_deep:
            layer = layers.DepthwiseConv2D(size, stride, padding="same", use_bias=False, name=conv.replace(".", "_"))
        else:
            layer = layers.Conv2D(
                kernel.shape[3], size, stride, padding="same", use_bias=False, name=conv.replace(".", "_")
            )
        normed = layers.BatchNormalization(epsilon=1e-3, name=f"{layer.name}_bn")
        y = normed(layer(x))
        layer.set_weights([kernel.transpose(0, 1, 3, 2) if is_deep else kernel])
        normed.set_weights([tensors[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")])
        normed.trainable = False
        return layers.ReLU(6.0)(y) if active else y

    image = keras.Input((SIZE, SIZE, 3), name="image")
    x, number = unit(image, "_conv_stem", "_bn0", stride=2), 0
    for stage in efficientnet_lite.STAGES:
        for place in range(stage.blocks):
            name, y = f"_blocks.{number}", x
            if stage.expansion > 1:
                y = unit(y, f"{name}._expand_conv", f"{name}._bn0")
            y = unit(y, f"{name}._depthwise_conv", f"{name}._bn1", 1 if place else stage.stride)
            y = unit(y, f"{name}._project_conv", f"{name}._bn2", active=False)
            x, number = layers.Add()([x, y]) if x.shape == y.shape else y, number + 1
    x = layers.GlobalAveragePooling2D()(unit(x, "_conv_head", "_bn1"))
    return keras.Model(image, layers.Dense(10, name="classifier")(x), name="efficientnet_lite0")


def sentences() -> keras.Model:
    """MiniLM (all-MiniLM-L6-v2) as layers of Keras: the mean of its last states, and a new classifier."""
    tensors, layers, ops = safetensors_file.read(resource(*minilm.WEIGHTS)), keras.layers, keras.ops

    def weighed(layer: Any, x: Any, *names: str, **others: Any) -> Any:
        """Call a layer, and give it the file's weights: matrices as [inputs, outputs]."""
        y = layer(x, **others)
        values = [tensors[name] for name in names]
        turned = [v.T if v.ndim == 2 and not isinstance(layer, layers.Embedding) else v for v in values]
        layer.set_weights([v.reshape(w.shape) for v, w in zip(turned, layer.weights, strict=True)])
        return y

    def normed(x: Any, name: str) -> Any:
        norm = layers.LayerNormalization(epsilon=1e-12, name=name.replace(".", "_"))
        return weighed(norm, x, f"{name}.weight", f"{name}.bias")

    def dense(x: Any, name: str, width: int, activation: str | None = None) -> Any:
        layer = layers.Dense(width, activation=activation, name=name.replace(".", "_"))
        return weighed(layer, x, f"{name}.weight", f"{name}.bias")

    ids = keras.Input((LENGTH,), dtype="int32", name="ids")
    known = ops.not_equal(ids, 0)
    tokens = layers.Embedding(len(tensors["embeddings.word_embeddings.weight"]), _WIDTH, name="tokens")
    places = layers.Embedding(LENGTH, _WIDTH, name="places")
    x = weighed(tokens, ids, "embeddings.word_embeddings.weight")
    x = x + places(ops.zeros_like(ids) + ops.arange(LENGTH, dtype="int32"))
    # All tokens are of the first of the two types.
    types = tensors["embeddings.token_type_embeddings.weight"][0]
    places.set_weights([tensors["embeddings.position_embeddings.weight"][:LENGTH] + types])
    x = normed(x, "embeddings.LayerNorm")
    for number in range(_LAYERS):
        name = f"encoder.layer.{number}"
        attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS, name=f"attention_{number}")
        parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        stored = [
            f"{part}.{kind}" for part in (*parts, f"{name}.attention.output.dense") for kind in ("weight", "bias")
        ]
        y = weighed(attention, x, *stored, value=x, attention_mask=ops.expand_dims(known, 1))
        x = normed(x + y, f"{name}.attention.output.LayerNorm")
        y = dense(x, f"{name}.intermediate.dense", 4 * _WIDTH, "gelu")
        x = normed(x + dense(y, f"{name}.output.dense", _WIDTH), f"{name}.output.LayerNorm")
    share = ops.expand_dims(ops.cast(known, "float32"), -1)
    mean = ops.sum(x * share, 1) / ops.sum(share, 1)
    return keras.Model(ids, layers.Dense(2, name="classifier")(mean), name="minilm")


def sounds() -> keras.Model:
    """openWakeWord's embedding of three quarters of a second as layers of Keras, and a new classifier.

    The file is a chain of operators; Keras' layers have its filters.
    """
    runtime, layers = Interpreter(str(wake_word.embedding())), keras.layers
    runtime.allocate_tensors()
    shapes = {detail["index"]: detail["shape"] for detail in runtime.get_tensor_details()}
    x = made = keras.Input((wake_word.FRAMES, wake_word.BANDS, 1), name="mel")
    for operator in runtime._get_ops_details():
        inputs = operator["inputs"]
        before, after = shapes[inputs[0]], shapes[operator["outputs"][0]]
        match operator["op_name"]:
            case "PAD":
                _, rows, columns, _ = runtime.get_tensor(inputs[1]).tolist()
                made = layers.ZeroPadding2D((rows, columns))(made)
            case "CONV_2D":
                filters, biases = (runtime.get_tensor(i) for i in inputs[1:])
                padding = "same" if (after[1:3] == before[1:3]).all() else "valid"
                conv = layers.Conv2D(len(filters), filters.shape[1:3], padding=padding)
                made = conv(made)
                conv.set_weights([filters.transpose(1, 2, 3, 0), biases])
            case "LEAKY_RELU":
                made = layers.LeakyReLU(0.2)(made)
            case "MAXIMUM":
                made = keras.ops.maximum(made, float(runtime.get_tensor(inputs[1])))
            case "MAX_POOL_2D":
                made = layers.MaxPooling2D((before[1] // after[1], before[2] // after[2]))(made)
    return keras.Model(x, layers.Dense(2, name="classifier")(layers.Flatten()(made)), name="openwakeword")
