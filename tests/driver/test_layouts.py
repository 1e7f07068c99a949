"""Models with channels first train as JAX trains them, and weights keep the layout and the names of the model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import converter
from converter.training.schemes import Channels, LoRA
from tests.pictures import NETS, Params, written

ROWS, STEPS, RATE = 4, 3, 0.02
#: Whose output is a picture.
PICTURES = ("unet", "shuffling")
QUICK = ("flattened",)
ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NETS]


@pytest.mark.quick
@pytest.mark.parametrize("name", ALL)
def test_steps_equal_jax(name: str, tmp_path: Path) -> None:
    model = written(NETS[name], last=False)
    apply, params = model.apply, model.params
    loss = "mse" if name in PICTURES else "sparse_categorical_crossentropy"
    x, y = batches(apply, params, name)
    program = converter.build(model, loss=loss, optimizer="sgd", batch=ROWS, signatures=("train", "infer", "infer_1"))
    step = jax.jit(jax.value_and_grad(lambda p, x, y: scored(apply(p, x), y)))
    with converter.runtime.TrainingSession(program.data) as session:
        for feed, target in zip(x, y, strict=True):
            expected, gradients = step(params, feed, target)
            params = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
            np.testing.assert_allclose(session.train(feed, target, RATE), expected, rtol=1e-4)
        found = session.parameters()
        session.save(tmp_path / "state")
        answer = session.infer(x[0])
    for path, array in jax.tree_util.tree_leaves_with_path(params):
        key = "/".join(str(part.key) for part in path)
        assert found[key].shape == array.shape
        np.testing.assert_allclose(found[key], array, rtol=1e-4, atol=1e-5, err_msg=key)
    np.testing.assert_allclose(answer, apply(params, x[0]), rtol=1e-3, atol=1e-4)
    with converter.runtime.TrainingSession(program.data) as again:
        again.restore(tmp_path / "state")
        np.testing.assert_array_equal(again.infer(x[0]), answer)


def batches(apply: Any, params: Params, name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((ROWS, 3, 16, 16)).astype(np.float32) for _ in range(STEPS)]
    shape = np.shape(jax.eval_shape(apply, params, x[0]))
    if name in PICTURES:
        return x, [rng.standard_normal(shape).astype(np.float32) for _ in x]
    return x, [rng.integers(0, shape[1], ROWS).astype(np.int32) for _ in x]


def scored(output: Any, y: Any) -> Any:
    """Return the loss as it is defined: the mean of the rows."""
    if y.dtype == np.int32:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(output), y[:, None], 1))
    return jnp.mean((output - y) ** 2)


@pytest.mark.parametrize(
    "target", ["litert-2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpu", "hexagon", "web"))]
)
def test_a_step_has_the_operators_of_the_net_with_channels_last(target: str) -> None:
    """With one TRANSPOSE more, that of the input; without the pass it has dozens, and batch norms unfolded."""
    first, last = (
        converter.build(written(NETS["mobile"], last), loss="mse", batch=ROWS, target=target, signatures=("train",))
        for last in (False, True)
    )
    steps = [next(iter(program.signatures.values())) for program in (first, last)]
    assert len(steps[0].nodes) == len(steps[1].nodes) + 1
    assert first.costs["step_cost"] < 1.03 * last.costs["step_cost"]


@pytest.mark.parametrize("rule", [LoRA(2, 4), Channels(0.25)], ids=lambda rule: type(rule).__name__)
def test_adapters_are_of_the_rows_that_the_model_has(rule: Any) -> None:
    """Behind a flattening in the order C, H, W, which a layout of the weight would hide."""
    model, name = written(NETS["flattened"], last=False), "dense_002/weight"
    x = np.random.default_rng(1).standard_normal((ROWS, 3, 16, 16)).astype(np.float32)
    update = {name: rule, "dense_003/*": 1}
    program = converter.build(model, loss="sparse_categorical_crossentropy", update=update, batch=ROWS)
    with converter.runtime.TrainingSession(program.data) as session:
        for _ in range(STEPS):
            session.train(x, np.arange(ROWS), 0.1)
        found, answer, channels = session.parameters(), session.infer(x), session.channels()
    weight = np.array(model.params["dense_002"]["weight"])
    if channels:
        weight[channels[name]] += found[f"{name}/change"]
    else:
        weight += 2 * found[f"{name}/lora_a"] @ found[f"{name}/lora_b"]
    head = {key: found[f"dense_003/{key}"] for key in ("weight", "bias")}
    params = {**model.params, "dense_002": {**model.params["dense_002"], "weight": weight}, "dense_003": head}
    assert np.abs(weight - model.params["dense_002"]["weight"]).max() > 1e-3
    np.testing.assert_allclose(answer, model.apply(params, x), rtol=1e-4, atol=1e-4)


def test_statistics_of_the_batch_are_those_of_channels() -> None:
    """Where pixels became channels and become pixels again, which would be moved least with the channels in parts."""
    keras.utils.set_random_seed(0)
    inputs, first = keras.Input((3, 8, 8)), {"data_format": "channels_first"}
    x = keras.layers.Conv2D(2, 3, padding="same", **first)(inputs)
    x = keras.layers.Permute((1, 3, 5, 2, 4))(keras.layers.Reshape((2, 4, 2, 4, 2))(x))
    x = keras.layers.BatchNormalization(axis=1, name="norm")(keras.layers.Reshape((8, 4, 4))(x))
    x = keras.layers.Reshape((2, 2, 2, 4, 4))(keras.layers.Activation("tanh")(x))
    x = keras.layers.Reshape((2, 8, 8))(keras.layers.Permute((1, 4, 2, 5, 3))(x))
    x = keras.layers.GlobalAveragePooling2D(**first)(keras.layers.Conv2D(4, 3, **first)(x))
    model = keras.Model(inputs, keras.layers.Dense(5)(x))
    x = np.random.default_rng(0).standard_normal((ROWS, 3, 8, 8)).astype(np.float32)
    trained, kept = ([v.value for v in each] for each in (model.trainable_variables, model.non_trainable_variables))
    out, moved = jax.jit(partial(model.stateless_call, training=True))(trained, kept, x)
    program = converter.build(
        model, loss="sparse_categorical_crossentropy", optimizer="sgd", batch=ROWS, batch_norm="train"
    )
    with converter.runtime.TrainingSession(program.data) as session:
        loss = session.train(x, np.arange(ROWS), 0.1)
        found = session.parameters()
    np.testing.assert_allclose(loss, scored(out, np.arange(ROWS, dtype=np.int32)), rtol=1e-5)
    for variable, value in zip(model.non_trainable_variables, moved, strict=True):
        if variable.path in found:
            np.testing.assert_allclose(found[variable.path], value, rtol=1e-4, atol=1e-6, err_msg=variable.path)
    assert "norm/moving_mean" in found
