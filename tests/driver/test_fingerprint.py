"""What a model computes, in digits that every way to build it agrees on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import converter
import jax_frontend
from converter.program.manifest import Identity
from converter.program.manifest.identity import FINGERPRINT

WIDTH, STEPS = 6, 3


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32) / 4


PARAMS = {
    "cell": {"w": drawn(2 * WIDTH, WIDTH)},
    "norm": {"scale": np.ones(WIDTH, np.float32)},
    "head": {"w": drawn(WIDTH, 3), "b": np.zeros(3, np.float32)},
}


def recurrent(steps: int) -> Callable[..., Any]:
    """An RNN of so many steps: a few are unrolled, many stay a loop; it begins with a constant of the batch's size."""

    def apply(params: Any, x: Any) -> Any:
        def step(hidden: Any, row: Any) -> tuple[Any, None]:
            return jnp.tanh(jnp.concatenate([hidden, row], 1) @ params["cell"]["w"]), None

        rows = jnp.broadcast_to(x, (steps, *x.shape))
        hidden, _ = jax.lax.scan(step, jnp.zeros(x.shape), rows)
        hidden = hidden / jnp.sqrt((hidden**2).mean(1, keepdims=True) + 1e-3) * params["norm"]["scale"]
        return hidden @ params["head"]["w"] + params["head"]["b"]

    return apply


def model(apply: Any, params: Any = None) -> jax_frontend.Model:
    inputs = [jax.ShapeDtypeStruct((1, WIDTH), jnp.float32)]
    return jax_frontend.Model(apply, PARAMS if params is None else params, inputs=inputs)


def identity(of: Any, **options: Any) -> Identity:
    options = {"optimizer": "adam", "update": {"head/*": 1}, "batch": 4, "check": False} | options
    found = converter.build(of, loss="sparse_categorical_crossentropy", **options).manifest.identity
    assert found is not None
    return found


@pytest.mark.quick
@pytest.mark.parametrize("steps", [3, 60])
def test_it_knows_no_batch_target_or_state(steps: int) -> None:
    found = identity(model(recurrent(steps)))
    for options in ({"batch": 1}, {"batch": 2}, {"batch": 6, "micro_batch": 3}, {"target": "gpu"}, {"state": "split"}):
        assert identity(model(recurrent(steps)), **options) == found
    assert identity(model(recurrent(steps + 1))).forward != found.forward


def test_it_knows_no_order() -> None:
    def sums(params: Any, x: Any) -> Any:
        a, b = jnp.tanh(x), jnp.exp(x)
        return (a * b) @ params["head"]["w"]

    def swapped(params: Any, x: Any) -> Any:
        b = jnp.exp(x)
        a = jnp.tanh(x)
        return (a * b) @ params["head"]["w"]

    def other(params: Any, x: Any) -> Any:
        a, b = jnp.tanh(x), jnp.exp(x)
        return (a - b) @ params["head"]["w"]

    found, same, differs = (identity(model(apply), update={"head/w": 1}) for apply in (sums, swapped, other))
    assert found == same
    assert found.forward != differs.forward


def test_a_constant_of_the_code_counts() -> None:
    def shifted(by: float) -> Any:
        return lambda params, x: (x + by) @ params["head"]["w"]

    found, other = (identity(model(shifted(by)), update={"head/w": 1}) for by in (1.0, 1.5))
    assert found.forward != other.forward


def test_adapters_count_with_their_scales() -> None:
    def of(lora: converter.LoRA) -> Identity:
        return identity(model(recurrent(3)), update={"cell/w": lora, "head/*": 1})

    found = of(converter.LoRA(2, 4))
    assert of(converter.LoRA(2, 4)) == found
    assert of(converter.LoRA(2, 8)).forward != found.forward
    assert [weight.name for weight in found.frozen if weight.name == "cell/w"]
    still = of(converter.LoRA(2, 4, train_a=False))
    assert {weight.name for weight in still.frozen} - {weight.name for weight in found.frozen} == {"cell/w/lora_a"}


def test_a_part_that_trains_is_no_part_of_the_frozen_weight() -> None:
    def with_element(place: tuple[int, int]) -> dict[str, Any]:
        head = PARAMS["head"]["w"].copy()
        head[place] += 1
        return {**PARAMS, "head": {**PARAMS["head"], "w": head}}

    def digest(params: Any) -> str:
        found = identity(model(recurrent(3), params), update={"head/w": 0.5})
        return next(weight.digest for weight in found.frozen if weight.name == "head/w")

    assert digest(with_element((0, 0))) == digest(PARAMS)  # its first input channels train
    assert digest(with_element((WIDTH - 1, 0))) != digest(PARAMS)


def keras_model(seed: int = 0) -> Any:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8, 8, 1))
    hidden = keras.layers.Conv2D(4, 3)(inputs)  # names itself by how many there were before
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.5)(keras.layers.ReLU()(hidden))
    return keras.Model(inputs, keras.layers.Dense(3, name="head")(keras.layers.Flatten()(hidden)))


def test_names_of_frozen_keras_layers_do_not_matter() -> None:
    first, second = keras_model(), keras_model()
    assert first.layers[1].name != second.layers[1].name
    found, again = (identity(of, update={"*head/*": 1}, batch=batch) for of, batch in ((first, 4), (second, 2)))
    assert [weight.name for weight in found.frozen] != [weight.name for weight in again.frozen]
    nameless = [replace(one, frozen=tuple(replace(weight, name="") for weight in one.frozen)) for one in (found, again)]
    assert nameless[0] == nameless[1]
    dropping = identity(second, update={"*head/*": 1}, dropout="train")
    assert (dropping.forward, dropping.frozen) == (again.forward, again.frozen)
    assert identity(keras_model(1), update={"*head/*": 1}).frozen != found.frozen


def test_int8_counts_with_its_ranges_and_not_with_the_batch() -> None:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16, 16, 3))
    hidden = keras.layers.Conv2D(32, 3, activation="relu")(keras.layers.Conv2D(16, 3, activation="relu")(inputs))
    small = keras.Model(inputs, keras.layers.Dense(5, name="head")(keras.layers.GlobalAveragePooling2D()(hidden)))
    rows = np.random.default_rng(0).random((100, 16, 16, 3), dtype=np.float32)
    options: dict[str, Any] = {"update": {"*head/*": 1}, "batch": 8}
    found = identity(small, **options, frozen="int8", calibration=rows)
    assert identity(small, **options | {"batch": 4, "state": "split"}, frozen="int8", calibration=rows) == found
    assert identity(small, **options, frozen="int8", calibration=2 * rows).int8 not in ("", found.int8)
    assert identity(small, **options) == replace(found, int8="")


def test_an_unchanged_model_keeps_its_fingerprint() -> None:
    """Phones hold states with these: where a change of the compiler changes them, FINGERPRINT is to be raised."""
    found = [identity(model(recurrent(steps)), optimizer=rule) for steps, rule in ((3, "adam"), (60, "momentum"))]
    assert (FINGERPRINT, [(one.update, one.forward) for one in found]) == (
        1,
        [("56397bf9c3b641b2", "9d5f752fe6e23f30"), ("d5b31cf6b53dd9b2", "91606fa05def8105")],
    )
