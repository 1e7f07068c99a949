"""Recurrent layers over many steps, which stay loops: training, export, memory and profile."""

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from ai_edge_litert.interpreter import Interpreter
from flax import linen as nn
from keras import layers

import converter
import jax_frontend
from converter.backend.lowering.state import INITIAL, with_variables
from converter.backend.schedule import plan
from converter.cli.inspection import count_operators, read_contents
from converter.runtime import TrainingSession
from converter.tools.measure.profile import profile
from tests.backend.schedule.arena import interpreter_arena
from tests.models.oracle import Oracle

BATCH, STEPS, LEARNING_RATE = 4, 10, 0.2


def keras_model(kind: str, length: int = 100) -> Any:
    keras.utils.set_random_seed(0)
    recurrent = {
        "lstm": lambda: [layers.LSTM(8, name="memory")],
        "gru": lambda: [layers.GRU(6, go_backwards=True)],
        "masked": lambda: [layers.Masking(0.0), layers.Bidirectional(layers.LSTM(4))],
    }[kind]()
    return keras.Sequential([keras.Input((length, 6)), *recurrent, layers.Dense(3)])


class Reader(nn.Module):
    """Flax' own loop over its own cell."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3)(nn.RNN(nn.GRUCell(8))(x)[:, -1])


def flax_model() -> jax_frontend.Model:
    params = Reader().init(jax.random.key(0), jnp.zeros((1, 100, 6)))
    return jax_frontend.Model(Reader().apply, params, [jax.ShapeDtypeStruct((1, 100, 6), jnp.float32)])


def scanned(length: int = 512) -> jax_frontend.Model:
    """Plain JAX: a leaky unit."""

    def apply(params: Any, x: jax.Array) -> jax.Array:
        def step(c: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return 0.9 * c + 0.1 * jnp.tanh(c @ params["state"] + row @ params["input"]), None

        c, _ = jax.lax.scan(step, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1))
        return c @ params["head"]

    rng = np.random.default_rng(0)
    shapes = {"state": (8, 8), "input": (6, 8), "head": (8, 3)}
    params = {name: rng.normal(scale=0.4, size=shape).astype(np.float32) for name, shape in shapes.items()}
    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, length, 6), jnp.float32)])


def batch(length: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH, length, 6)).astype(np.float32)
    x[1, length // 2 :] = 0  # for the mask
    return x, rng.integers(0, 3, BATCH).astype(np.int32)


MODELS: dict[str, Any] = {
    "lstm": lambda: keras_model("lstm"),
    "gru": lambda: keras_model("gru"),
    "masked": lambda: keras_model("masked"),
    "flax": flax_model,
    "scan": scanned,
}


@cache
def model(name: str) -> Any:
    return MODELS[name]()


@cache
def built(name: str, update: str = "full") -> converter.Program:
    return converter.build(model(name), update=update, batch=BATCH, check=False)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "update"),
    [
        ("lstm", "full"),
        ("lstm", "head"),
        ("gru", "full"),
        pytest.param("masked", "full", marks=pytest.mark.slow),
        pytest.param("flax", "full", marks=pytest.mark.slow),
        ("scan", "full"),
    ],
)
def test_ten_steps_equal_jax(name: str, update: str) -> None:
    program = built(name, update)
    x, y = batch(512 if name == "scan" else 100)
    oracle = Oracle(model(name), {row.parameter: row.fraction for row in program.table}, optax.sgd(1.0))
    session = TrainingSession(program.data)
    for _ in range(STEPS):
        expected = oracle.train(x, y, LEARNING_RATE, np.ones(BATCH, np.float32))
        assert session.train(x, y, learning_rate=LEARNING_RATE) == pytest.approx(expected, abs=1e-5)
    found = session.parameters()
    for parameter, array in oracle.parameters().items():
        np.testing.assert_allclose(found[parameter], array, atol=1e-5, err_msg=parameter)


def test_file_and_operators_do_not_grow_with_the_length() -> None:
    short, long = (
        converter.build(keras_model("lstm", length), batch=BATCH, signatures=("train",), check=False)
        for length in (50, 500)
    )
    assert abs(len(long.data) - len(short.data)) < 0.02 * len(short.data)
    assert list(count_operators(long.data).values()) == list(count_operators(short.data).values())
    assert long.costs["flops_backward"] > 9 * short.costs["flops_backward"]


def test_the_arena_is_the_interpreters() -> None:
    for update in ("full", "head"):
        program = built("lstm", update)
        assert plan(with_variables(program.signatures["train"])).size == interpreter_arena(program.data)


def test_the_export_gives_what_the_session_gives(tmp_path: Path) -> None:
    program, (x, y) = built("gru"), batch(100)
    session = TrainingSession(program.data)
    session.train(x, y, learning_rate=LEARNING_RATE)
    session.save(tmp_path / "state")
    program.export_inference(tmp_path / "plain.tflite", tmp_path / "state")
    runner = Interpreter(str(tmp_path / "plain.tflite"), num_threads=1).get_signature_runner("infer")
    np.testing.assert_array_equal(runner(x=x)["output"], session.infer(x))


def test_a_profile_says_which_layer_a_loop_is_of() -> None:
    rows = profile(built("lstm").data, steps=1).rows
    found = {(row.layer, row.phase) for row in rows if row.operator == "WHILE"}
    assert found == {("memory", "forward"), ("memory", "backward")}


def test_operators_of_bodies_are_counted_with_their_signature(tmp_path: Path) -> None:
    program = built("lstm")
    program.write(tmp_path / "lstm.tflite")
    counted = read_contents(tmp_path / "lstm.tflite").operators
    assert {name for name in counted if name != INITIAL} == set(program.manifest.signatures)
    assert counted["infer"]["WHILE"] == 1
    assert counted["infer"]["LOGISTIC"] == 3
