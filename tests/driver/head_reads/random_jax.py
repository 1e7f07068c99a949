"""Random small nets as functions of JAX, in either layout, which tell what each product with a weight reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pocketune
from tests.driver.head_reads.drawn import CLASSES, Dice, Drawn, Inside

#: Adds to what a block gives, by its parameters, the value, and a place to tell what is read.
Block = Callable[[Any, Any, dict[str, Any]], Any]


class Net:
    """Draws a net: its parameters by block, and what computes them."""

    def __init__(self, seed: int) -> None:
        self.dice = Dice(seed)
        self.params: dict[str, dict[str, np.ndarray]] = {}
        self.first = self.dice.yes()  # channels before positions
        self.story: list[str] = []

    def weight(self, block: str, name: str, *shape: int) -> None:
        """Draw a weight."""
        drawn = self.dice.rng.normal(size=shape).astype("f") / 2
        self.params.setdefault(block, {})[name] = drawn

    def rows_last(self, x: Any) -> Any:
        """Return a value with its channels last."""
        return jnp.moveaxis(x, 1, -1) if self.first else x

    def convolution(self, name: str, channels: int, spatial: int) -> tuple[Block, int]:
        """Two convolutions, strided at times, in groups at times."""
        wide, stride = self.dice.size(2, 5), self.dice.one(1, 2)
        deep = self.dice.yes(0.3)
        self.weight(name, "a", *[3] * spatial, 1 if deep else channels, channels if deep else wide)
        self.weight(name, "b", *[1] * spatial, channels if deep else wide, wide)
        axes = "HW"[-spatial:]
        layout = f"NC{axes}" if self.first else f"N{axes}C"

        def block(params: Any, x: Any, reads: dict[str, Any]) -> Any:
            for part, strides in (("a", stride), ("b", 1)):
                reads[f"{name}/{part}"] = self.rows_last(x)
                x = jax.lax.conv_general_dilated(
                    x,
                    params[name][part],
                    (strides,) * spatial,
                    "SAME",
                    dimension_numbers=(layout, f"{axes}IO", layout),
                    feature_group_count=channels if deep and part == "a" else 1,
                )
                x = jnp.tanh(x)
            return x

        return block, wide

    def mixing(self, name: str, channels: int, spatial: int) -> tuple[Block, int]:
        """Two products along the channels, wherever these are, and the value itself."""
        self.weight(name, "up", channels, 2 * channels)
        self.weight(name, "down", 2 * channels, channels)
        axes = "hw"[:spatial]
        by = f"nc{axes},cd->nd{axes}" if self.first else f"n{axes}c,cd->n{axes}d"

        def block(params: Any, x: Any, reads: dict[str, Any]) -> Any:
            reads[f"{name}/up"] = self.rows_last(x)
            y = jax.nn.gelu(jnp.einsum(by, x, params[name]["up"]))
            reads[f"{name}/down"] = self.rows_last(y)
            return x + jnp.einsum(by, y, params[name]["down"])

        return block, channels

    def ended(self, spatial: int) -> tuple[str, Callable[[Any, Any], Any]]:
        """Return how positions come together: by the value, and a mask [rows, positions]."""
        names = ["mean", "max", "flat"] + (["masked", "product", "last"] if spatial == 1 else [])
        name = self.dice.one(*names)

        def end(x: Any, mask: Any) -> Any:
            y = self.rows_last(x)
            y = y if spatial == 1 else y.reshape(len(y), -1, y.shape[-1])
            if name == "masked":
                return (y * mask[..., None]).sum(1) / jnp.maximum(mask.sum(1, keepdims=True), 1e-9)
            if name == "product":
                return jnp.einsum("nl,nlc->nc", mask, y) / jnp.maximum(mask.sum(1, keepdims=True), 1e-9)
            found = {"mean": y.mean(1), "max": y.max(1), "last": y[:, -1], "flat": x.reshape(len(x), -1)}
            return found[name]

        return name, end


def draw(seed: int) -> Drawn:
    """Return a random net of JAX."""
    net = Net(seed)
    dice, spatial = net.dice, net.dice.one(1, 2, 2)
    name, end = net.ended(spatial)
    sizes, channels = [dice.size(4, 7) for _ in range(spatial)], dice.size(2, 4)
    shape = (channels, *sizes) if net.first else (*sizes, channels)
    kinds = [net.mixing] if name in ("masked", "product") else [net.mixing, net.convolution]
    blocks: list[Block] = []
    for number in range(dice.size(1, 3)):
        kind = dice.one(*kinds)
        block, channels = kind(f"block{number}", channels, spatial)
        blocks.append(block)
        net.story.append(kind.__name__)

    def before_head(params: Any, x: Any, reads: dict[str, Any]) -> Any:
        mask = (net.rows_last(x)[..., 0] > -0.5).astype(jnp.float32)
        for block in blocks:
            x = block(params, x, reads)
        return end(x, mask), mask, net.rows_last(x).shape[1]

    own, _, length = before_head(net.params, np.zeros((1, *shape), "f"), {})
    net.weight("head", "w", own.shape[1], CLASSES)
    net.weight("head", "b", CLASSES)

    def apply(params: Any, x: Any) -> Any:
        return before_head(params, x, {})[0] @ params["head"]["w"] + params["head"]["b"]

    def inside(x: np.ndarray) -> Inside:
        reads: dict[str, Any] = {}
        own, mask, _ = before_head(net.params, x, reads)
        masked = np.asarray(mask) if name in ("masked", "product") else None
        return Inside(
            np.asarray(apply(net.params, x)), np.asarray(own), {k: np.asarray(v) for k, v in reads.items()}, masked
        )

    model = pocketune.Model(apply, net.params, [jax.ShapeDtypeStruct((1, *shape), "float32")])
    rng = np.random.default_rng(seed)
    story = f"{shape} {'channels first' if net.first else ''} {net.story} {name}"
    return Drawn(
        model,
        lambda many: rng.normal(size=(many, *shape)).astype("f"),
        inside,
        length - 1 if name == "last" else None,
        length if name in ("last", "masked", "product") else None,
        options={"loss": "sparse_categorical_crossentropy"},
        story=story,
    )
