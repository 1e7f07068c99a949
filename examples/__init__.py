"""Models to build without writing any: `pocketune build digits-cnn`.

Each example is a module with `build(**options)`, which makes the model, and `sample_batch(batch, seed, **options)`,
which makes inputs and targets that fit it. Nothing but this table is imported until one of them is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

__all__ = ["DEFAULT", "EXAMPLES", "Example"]

# Before any example imports Keras; where the person has chosen another backend, the examples run on that.
os.environ.setdefault("KERAS_BACKEND", "jax")


@dataclass(frozen=True)
class Example:
    """A built-in model.

    Attributes:
        name: what the command line calls it.
        description: one line.
        sparse: the recommended sparse update scheme: rules for the model of `build()`, or a name.
        loss: the loss that its output is meant for.
        shapes_only: it has no weights and no batches: it can be planned, not built.
    """

    name: str
    description: str
    sparse: Mapping[str, Any] | str = "sparse"
    loss: str = "sparse_categorical_crossentropy"
    shapes_only: bool = False

    def build(self, **options: Any) -> Any:
        """The model: a `keras.Model`, or a `Model` of a front end; the same options give the same weights."""
        return self._module().build(**options)

    def sample_batch(self, batch: int, seed: int = 0, **options: Any) -> tuple[np.ndarray, ...]:
        """(inputs..., y) for a model built with the same options. The classes differ: training lowers the loss."""
        return self._module().sample_batch(batch, seed, **options)

    def _module(self) -> Any:
        return import_module(f"{__name__}.{self.name.replace('-', '_')}")


_ALL = (
    Example(
        "digits-cnn",
        "a convolutional net that reads handwritten digits, pretrained in seconds (Keras)",
        {"conv_2/kernel": 0.25, "conv_3/kernel": 1, "conv_[23]/bias": 1, "classifier/*": 1},
    ),
    Example(
        "mlp",
        "a multi-layer perceptron (plain JAX)",
        {"layers/1/w": 0.5, "layers/[12]/b": 1, "layers/2/w": 1},
    ),
    Example(
        "lenet",
        "a LeNet-like convolutional net with max-pooling (plain JAX)",
        {"conv2/w": 0.5, "conv2/b": 1, "fc1/w": 0.25, "fc[123]/b": 1, "fc3/w": 1},
    ),
    Example(
        "mobilenetv2",
        "MobileNetV2 of keras.applications, untrained; the first 1x1 of the last 7 blocks is its sparse scheme",
        {"block_1[0-6]_expand/kernel": 1, "block_1[0-6]_*BN/beta": 1, "predictions/*": 1},
    ),
    Example(
        "efficientnet-lite",
        "EfficientNet-Lite0 with its weights of ImageNet (scripts/pretrained fetches them; plain JAX)",
        {
            "blocks/9/expand/w": 1,
            "blocks/1[0-5]/expand/w": 1,
            "blocks/9/*/b": 1,
            "blocks/1[0-5]/*/b": 1,
            "classifier/*": 1,
        },
    ),
    Example(
        "efficientnet-lite-torch",
        "the same net from PyTorch, images in NCHW (scripts/pretrained fetches the weights)",
        {
            "_blocks.9._expand_conv.weight": 1,
            "_blocks.1[0-5]._expand_conv.weight": 1,
            "_blocks.9._bn?.bias": 1,
            "_blocks.1[0-5]._bn?.bias": 1,
            "_fc.*": 1,
        },
    ),
    Example(
        "flax-cnn",
        "a residual convolutional net with batch normalization (Flax)",
        {"Block_1/Conv_0/kernel": 0.5, "Block_[12]/BatchNorm_?/bias": 1, "Block_2/Conv_0/kernel": 1, "Dense_0/*": 1},
    ),
    Example(
        "encoder",
        "a BERT-like text encoder with a classifier (plain JAX)",
        {"layers/1/*": "bias", "layers/1/attention/value/w": 1, "layers/1/ffn/in/w": 0.5, "classifier/*": 1},
    ),
    Example(
        "minilm",
        "MiniLM, a BERT of six layers, with its weights of sentences (scripts/pretrained fetches them; plain JAX)",
        {
            "layers/[345]/*": "bias",
            "layers/[45]/attention/*/w": 1,
            "layers/[45]/ffn/in/w": 1,
            "classifier/*": 1,
        },
    ),
    Example(
        "mcunet",
        "MCUNet, which a search found for microcontrollers, untrained (Keras)",
        # PockEngine's: the first 1x1 of four blocks in the middle, the biases from there on.
        {
            "block_[789]_*BN/beta": 1,
            "block_1?_*BN/beta": 1,
            "block_[78]_expand/kernel": 1,
            "block_9_expand/kernel": 0.5,
            "block_10_expand/kernel": 1,
            "classifier/*": 1,
        },
    ),
    Example("proxylessnas", "ProxylessNAS-Mobile at width 0.3, untrained (Keras)"),
    Example("vit", "a vision transformer of the size of ViT-Ti/16, untrained (Flax)"),
    Example("distilbert", "a text classifier of the size of DistilBERT, untrained (Keras)"),
    Example("imu", "activities from accelerometer and gyroscope, pretrained in seconds (Keras)"),
    Example(
        "resemblyzer", "who of some people speaks, by Resemblyzer's voice encoder (scripts/pretrained; PyTorch)", "head"
    ),
    Example("resnet8", "ResNet-8 of MLPerf Tiny, int8, with new classes (scripts/pretrained fetches it; .tflite)"),
    Example("keyboard", "two GRU layers that predict the next character (Keras)", loss="next_token"),
    Example("llama", "a decoder like LLaMA that predicts the next token, untrained (plain JAX)", loss="next_token"),
    Example(
        "llama2-7b",
        "LLaMA 2 of 7 billion parameters as shapes, for `schemes` (plain JAX)",
        loss="next_token",
        shapes_only=True,
    ),
)

EXAMPLES: dict[str, Example] = {example.name: example for example in _ALL}

#: The model when none is named.
DEFAULT = "digits-cnn"
