"""Kernels of which a part trains, against JAX: its gradient, and the optimizer's update, masked by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.frontends import keras as keras_frontend
from converter.passes.idioms import with_idioms
from converter.support.errors import UnsupportedError
from converter.training.schemes import SchemeRow, select, update_scheme
from tests.models.oracle import flat
from tests.steps import stepped

BATCH, CLASSES, STEPS = 3, 2, 4
RULES = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.05, momentum=0.9, nesterov=True),
    "decay": optax.adamw(3e-3, weight_decay=0.1),
}


def u_net() -> Any:
    """Two levels, skips by concatenation, images of three channels; transposed convolutions on the way up."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras
    from keras import layers

    def block(x: Any, channels: int, name: str) -> Any:
        for part in "ab":
            x = layers.Conv2D(channels, 3, padding="same", activation="relu", name=f"{name}_{part}")(x)
        return x

    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3))
    first = block(image, 4, "first")
    second = block(layers.MaxPooling2D()(first), 6, "second")
    x = block(layers.MaxPooling2D()(second), 8, "bottom")
    for skip, name in ((second, "up_2"), (first, "up_1")):
        up = layers.Conv2DTranspose(skip.shape[-1], 2, strides=2, padding="same", name=f"{name}_transposed")(x)
        x = block(layers.Concatenate()([up, skip]), skip.shape[-1], name)
    return keras.Model(image, layers.Conv2D(CLASSES, 1, name="head")(x))


def joined() -> Any:
    """Concatenations, sums, a depthwise layer of two filters a channel, a grouped one, a layer that is used twice."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    image = keras.Input((6, 6, 4))
    x = layers.Conv2D(4, 3, padding="same", name="conv")(image)
    x = layers.Concatenate()([x, image, x])
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depthwise")(x)
    y = layers.Conv2D(8, 1, groups=2, name="grouped")(x)
    x = layers.Add()([y, layers.SeparableConv2D(8, 3, padding="same", name="separable")(x)])
    twice = layers.Dense(8, activation="tanh", name="twice")
    x = layers.Concatenate()([twice(twice(x)), x])
    return keras.Model(image, layers.Dense(CLASSES, name="head")(x))


def masked_by_hand(shape: tuple[int, ...], name: str, fraction: float) -> np.ndarray:
    """Ones where a kernel trains: the first input channels, to the nearest whole number."""
    axis = len(shape) - (1 if "transposed" in name else 2)  # Keras keeps transposed ones as [.., outputs, inputs]
    channels = shape[axis]
    trained = max(round(fraction * channels), 1)
    line = (np.arange(channels) < trained).astype(np.float32)
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def oracle(
    model: Any, masks: dict[str, np.ndarray], rule: optax.GradientTransformation, x: np.ndarray, y: np.ndarray
) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses of some steps, and the weights behind them."""
    of_keras = keras_frontend.to_jax_model(model)
    start, unflatten = flat(of_keras.params)

    def loss(weights: dict[str, Any]) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(of_keras.apply(unflatten(weights), x), y).mean()

    @jax.jit
    def step(weights: Any, slots: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights)
        gradients = {name: gradients[name] * masks[name] for name in gradients}
        updates, slots = rule.update(gradients, slots, weights)
        return value, {name: weights[name] + updates[name] * masks[name] for name in weights}, slots

    weights, losses = {name: jnp.asarray(array) for name, array in start.items()}, []
    slots = rule.init(weights)
    for _ in range(STEPS):
        value, weights, slots = step(weights, slots)
        losses.append(float(value))
    return losses, {name: np.asarray(array) for name, array in weights.items()}


@pytest.mark.parametrize(
    ("rule", "fraction"),
    [
        pytest.param("sgd", 0.5, marks=pytest.mark.slow),
        pytest.param("momentum", 0.3, marks=pytest.mark.slow),
        ("decay", 0.5),
    ],
)
@pytest.mark.parametrize("net", [u_net, joined], ids=lambda net: net.__name__)
def test_a_fraction_of_every_kernel_trains_as_masked_by_hand(
    net: Callable[[], Any], rule: str, fraction: float
) -> None:
    model = net()
    program = converter.build(model, optimizer=RULES[rule], update={"*": fraction}, batch=BATCH)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, *model.inputs[0].shape[1:])).astype(np.float32)
    y = rng.integers(0, CLASSES, (BATCH, *model.outputs[0].shape[1:-1])).astype(np.int32)
    whole = {row.parameter for row in program.table if row.fraction == 1}
    assert all("kernel" not in name or "grouped" in name or "twice" in name for name in whole)
    masks = {
        name: np.ones(array.shape) if name in whole else masked_by_hand(array.shape, name, fraction)
        for name, array in flat(keras_frontend.to_jax_model(model).params)[0].items()
    }
    losses, weights = oracle(model, masks, RULES[rule], x, y)
    found = stepped(program, [(x, y)] * STEPS)
    assert found.losses == pytest.approx(losses, rel=1e-5)
    for name, array in found.parameters.items():
        np.testing.assert_allclose(array, weights[name], rtol=0, atol=1e-4 * np.abs(weights[name]).max(), err_msg=name)


def test_the_table_says_how_many_channels() -> None:
    rows = {row.parameter: row for row in converter.build(u_net(), update={"*kernel": 0.5}).table}
    assert rows["first_a/kernel"].why == "rule *kernel = 0.5: 2 of 3 input channels"
    assert rows["up_2_transposed/kernel"].why == "rule *kernel = 0.5: 4 of 8 input channels"


@pytest.mark.parametrize(
    "apply",
    [lambda p, x: x @ (p["w"] @ p["w"]), lambda p, x: (x @ p["w"], p["w"])],
    ids=["a product with itself", "an output"],
)
def test_a_weight_that_is_read_otherwise_too_trains_whole(apply: Callable) -> None:
    struct = jax.ShapeDtypeStruct((1, 4), np.float32)
    graph = with_idioms(jax_frontend.trace(jax_frontend.Model(apply, {"w": np.eye(4, dtype=np.float32)}, [struct]), 1))
    (row,) = update_scheme({"w": 0.5}).resolve(graph)
    assert row.fraction == 1
    assert "cannot be cut" in row.why
    with pytest.raises(UnsupportedError, match="reads as it is"):
        select(graph, [SchemeRow("w", 0.5, "")])
