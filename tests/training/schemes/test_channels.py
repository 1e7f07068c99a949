"""Chosen input channels against jax.grad of weights whose other rows are held, and Fisher information against JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter import Channels
from converter.program.file import read_program
from converter.program.manifest import manifest_of_json
from converter.runtime import TrainingSession
from converter.runtime.export import trained_weights
from converter.runtime.state.interchange import StateSpec
from converter.runtime.state.saved import save_state
from converter.support.errors import UnsupportedError, UsageError
from tests.models.oracle import flat, jax_model
from tests.training.schemes.by_hand import ADAM, ZEROS, convolutional, drawn, scaled_model
from tests.training.schemes.test_lora import infer, kinds

BATCH, STEPS, ROWS = 4, 10, 7


def attention() -> keras.Model:
    x = keras.Input((6, 8), name="x")
    attended = keras.layers.MultiHeadAttention(2, 6, name="attention", **ZEROS)(x, x)
    return keras.Model(x, keras.layers.Dense(3, name="head", **ZEROS)(keras.layers.Flatten()(attended)))


def mixer(params: Any, x: Any) -> Any:
    """A weight met twice, one from the left, and one matrix for each of two heads."""
    hidden = jnp.tanh(jnp.tanh(x @ params["twice"]) @ params["twice"])
    mixed = jnp.einsum("ij,bjk->bik", params["left"], hidden.reshape(-1, 6, 2))
    each = jnp.einsum("bih,hio->bho", mixed, params["heads"])
    return each.reshape(-1, 8) @ params["head"]


def mixer_model() -> jax_frontend.Model:
    rng = np.random.default_rng(3)
    shapes = {"twice": (12, 12), "left": (5, 6), "heads": (2, 5, 4), "head": (8, 3)}
    params = {name: rng.normal(size=shape).astype("f") / 2 for name, shape in shapes.items()}
    return jax_frontend.Model(mixer, params, [jax.ShapeDtypeStruct((1, 12), "float32")])


@dataclass(frozen=True)
class Case:
    """A model; of each weight with chosen channels the shape [..., inputs, outputs] that it is multiplied in."""

    model: Callable[[], Any]
    shape: tuple[int, ...]
    products: dict[str, tuple[int, ...]]
    rules: dict[str, Any]
    optimizer: optax.GradientTransformation
    rate: float


CASES = {
    "attention": Case(
        attention,
        (6, 8),
        {"attention/query/kernel": (8, 12), "attention/key/kernel": (8, 12), "attention/value/kernel": (8, 12)}
        | {"attention/attention_output/kernel": (12, 8)},
        # The gradient of a key's bias is zero but for rounding, which Adam would make large.
        {"*": Channels(0.3), "*/bias": "bias", "*/key/bias": 0, "head/*": 1},
        ADAM,
        0.02,
    ),
    "convolutional": Case(
        convolutional,
        (9, 8, 3),
        {"first/kernel": (3, 3, 3, 8), "pointwise/kernel": (1, 1, 8, 12), "rows/kernel": (3, 12, 6)},
        {"*/kernel": Channels(0.4), "head/*": 1},
        optax.sgd(1.0),
        0.05,
    ),
    "mixer": Case(
        mixer_model,
        (12,),
        {"twice": (12, 12), "left": (6, 5), "heads": (2, 5, 4), "head": (8, 3)},
        {"*": Channels(), "head": 1},
        ADAM,
        0.02,
    ),
    "scaled": Case(
        scaled_model,
        (12,),
        {"outputs": (12, 10), "inputs": (10, 16), "number": (2, 6), "left": (8, 5), "left_inputs": (5, 4)},
        {"*": Channels(0.5), "gain": 1, "head": 0},
        ADAM,
        0.02,
    ),
}


@cache
def model(name: str) -> Any:
    made = CASES[name].model()
    rng = np.random.default_rng(0)
    for layer in made.layers if isinstance(made, keras.Model) else ():
        layer.set_weights([drawn(rng, w) for w in layer.get_weights()])
    return made


@cache
def program(name: str, state: str = "variables") -> converter.Program:
    return built_with(name, state=state)


def built_with(name: str, **options: Any) -> converter.Program:
    case = CASES[name]
    given = {"optimizer": case.optimizer, "update": case.rules, "signatures": ("train", "infer", "fisher"), **options}
    return converter.build(model(name), batch=BATCH, check=False, **given)


def data(name: str, seed: int = 0, rows: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, *CASES[name].shape)).astype("f"), rng.integers(0, 3, rows).astype(np.int32)


def rows_of(name: str, weight: str, whole: np.ndarray) -> np.ndarray:
    """A weight as [..., inputs, outputs]."""
    shape = CASES[name].products[weight]
    return (whole.T if weight.startswith("left") else whole).reshape(shape)


class ByJax:
    """The whole weights in JAX and optax."""

    def __init__(self, name: str) -> None:
        self.name, self.case, made = name, CASES[name], jax_model(model(name))
        self.apply = made.apply
        self.weights, self.unflatten = flat(made.params)

    def loss(self, weights: Any, x: Any, y: Any) -> Any:
        logits = self.apply(self.unflatten(weights), x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def fisher(self, weights: Iterable[str], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """A factor of an input channel has the derivative sum_d a_d g_d, which is that of its rows times the rows."""
        each = jax.jit(jax.vmap(jax.grad(self.loss), (None, 0, 0)))(self.weights, x[:, None], y[:, None])
        found = {}
        for weight in weights:
            effects = [rows_of(self.name, weight, self.weights[weight] * np.asarray(g)) for g in each[weight]]
            of_channel = np.array([np.moveaxis(e, -2, 0).reshape(e.shape[-2], -1).sum(1) for e in effects])
            found[weight] = (of_channel.astype(np.float64) ** 2).sum(0) / (2 * len(x))
        return found

    def train(self, channels: dict[str, np.ndarray], trained: set[str]) -> tuple[list[float], dict[str, np.ndarray]]:
        """Trains whole weights, and of others only the rows of some channels."""
        masks = {name: np.full(w.shape, float(name in trained), np.float32) for name, w in self.weights.items()}
        for weight, indices in channels.items():
            rows = np.zeros(self.case.products[weight], np.float32)
            rows[..., indices, :] = 1
            masks[weight] = rows.T if weight.startswith("left") else rows.reshape(masks[weight].shape)

        @jax.jit
        def step(weights: Any, slots: Any, x: Any, y: Any) -> Any:
            value, gradients = jax.value_and_grad(self.loss)(weights, x, y)
            gradients = {k: g * masks[k] for k, g in gradients.items()}
            updates, slots = self.case.optimizer.update(gradients, slots, weights)
            return value, {k: w + self.case.rate * updates[k] for k, w in weights.items()}, slots

        weights, losses = self.weights, []
        slots = jax.jit(self.case.optimizer.init)(weights)
        for i in range(STEPS):
            value, weights, slots = step(weights, slots, *data(self.name, i))
            losses.append(float(value))
        return losses, {k: np.asarray(w) for k, w in weights.items()}


@pytest.mark.quick
@pytest.mark.parametrize(("name", "state"), [(n, "stateless" if n == "mixer" else "variables") for n in CASES])
def test_ten_steps_train_the_chosen_rows_alone(name: str, state: str, tmp_path: Path) -> None:
    built, oracle = program(name, state), ByJax(name)
    samples = data(name, 77, ROWS)
    weight = np.ones(ROWS, np.float32)
    weight[2] = 0
    with TrainingSession(built.data) as session:
        first = session.channels()
        information = session.fisher(*samples, weight)
        for key, wanted in oracle.fisher(first, *(np.delete(a, 2, 0) for a in samples)).items():
            np.testing.assert_allclose(information[key], wanted, atol=1e-5 * wanted.max(), err_msg=key)
        chosen = session.choose_channels(*samples, weight)
        assert {k: len(v) for k, v in chosen.items()} == {k: len(v) for k, v in first.items()}
        assert any((chosen[k] != first[k]).any() for k in first), "the test would pass without a choice"
        for key, indices in chosen.items():
            best = np.sort(np.argsort(-information[key])[: len(indices)])
            np.testing.assert_array_equal(indices, best)
        x, _ = data(name, 99)
        before = session.infer(x)
        found = [session.train(*data(name, i), CASES[name].rate) for i in range(STEPS)]
        after, tensors = session.infer(x), session.state()
    whole = {spec.name for spec in built.manifest.parameters if not spec.name.endswith("/change")}
    losses, weights = oracle.train(chosen, whole)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    merged = trained_weights(read_program(built.data), tensors)
    assert merged.keys() == whole | chosen.keys()
    # Adam makes steps as large of a gradient's last bits where it is next to zero: on AVX2, whose kernels sum in
    # another order, one number of 144 is off by 1.4e-5 (from float64, too). Together they are as near as without.
    atol = 2e-5 if CASES[name].optimizer is ADAM else 1e-5
    for key, array in merged.items():
        np.testing.assert_allclose(array, weights[key], atol=atol * np.abs(array).max(), err_msg=key)
        assert np.linalg.norm(array - weights[key]) <= 1e-5 * np.linalg.norm(array), key
    assert np.abs(after - before).max() > 0.05, "the test would pass without training"
    plain = built.export_inference(tmp_path / "plain.tflite", tensors)
    np.testing.assert_allclose(infer(plain, x), after, atol=1e-5)
    assert not {"VAR_HANDLE", "READ_VARIABLE", "GATHER"} & kinds(plain).keys()


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": 2},
        {"micro_batch": 1, "state": "stateless"},
        {"micro_batch": 1, "state": "split"},
        {"signatures": ("train", "infer", "fisher", "features"), "update": {"head": Channels(0.5)}},
        {"optimizer": optax.adafactor(1.0)},
    ],
    ids=["micro-batches", "stateless micro-batches", "split micro-batches", "features", "rows and columns"],
)
def test_other_kinds_of_programs_choose_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    update = {"twice": 0, "left": Channels(0.5), "heads": Channels(0.4), "head": 1}
    built, (x, y) = built_with("mixer", **{"update": update, **options}), data("mixer", 5, ROWS)
    with TrainingSession(built.data) as session:
        information = ByJax("mixer").fisher(session.channels(), x, y)
        chosen = session.choose_channels(x, y)
        for weight, indices in chosen.items():
            np.testing.assert_array_equal(indices, np.sort(np.argsort(-information[weight])[: len(indices)]))
        session.fit(x, y, epochs=3, learning_rate=0.02)
        after, state = session.infer(x), session.state()
        plain, rows = built.export_inference(tmp_path / "plain.tflite", state), built.manifest.micro_batch
        np.testing.assert_allclose(infer(plain, x[:rows]), after[:rows], atol=1e-5)
        session.reset()
        assert np.abs(session.infer(x) - after).max() > 0.01
        assert all((v == np.arange(len(v))).all() for v in session.channels().values())


def test_frozen_layers_in_int8_weigh_channels_as_well(tmp_path: Path) -> None:
    x, y = data("convolutional", 3, 16)
    update = {"rows/kernel": Channels(0.5), "head/*": 1}
    built = built_with("convolutional", update=update, frozen="int8", calibration=x)
    assert [layer.form for layer in built.quantization.layers].count("int8") >= 2, built.quantization.layers
    wanted = ByJax("convolutional").fisher(["rows/kernel"], x, y)["rows/kernel"]
    with TrainingSession(built.data) as session:
        np.testing.assert_allclose(session.fisher(x, y)["rows/kernel"], wanted, atol=0.05 * wanted.max())
        session.choose_channels(x, y)
        session.fit(x, y, epochs=3, learning_rate=0.05)
        after, state = session.infer(x), session.state()
    plain = built.export_inference(tmp_path / "plain.tflite", state)
    np.testing.assert_allclose(infer(plain, x[:BATCH]), after[:BATCH], atol=0.02)  # the int8 weights of that layer


@pytest.mark.parametrize("state", ["variables", "stateless", "split"])
@pytest.mark.parametrize("indices", [[0, 1, 12], [0, 1, -1], [0, 1, 1], [0, 1, 1 << 30]])
def test_channels_that_there_are_not_never_reach_a_kernel(state: str, indices: list[int], tmp_path: Path) -> None:
    built = program("mixer", state)
    with TrainingSession(built.data) as session:
        good = session.state()
        bad = good | {"twice/channels": np.array(indices, np.int32)}
        save_state(tmp_path / "bad.state", StateSpec.of(read_program(built.data)), bad)
        with pytest.raises(UsageError, match="twice/channels are not different channels of the 12 of twice"):
            session.restore(tmp_path / "bad.state")
        assert all(np.array_equal(session.state()[name], array) for name, array in good.items())
    with pytest.raises(UsageError, match="twice/channels are not different channels"):
        built.export_inference(tmp_path / "plain.tflite", bad)


def test_channels_are_kept_with_the_state_and_not_changed_under_a_training(tmp_path: Path) -> None:
    x, y = data("mixer", 1, ROWS)
    with TrainingSession(program("mixer").data) as session:
        chosen = session.choose_channels(x, y)
        session.choose_channels(x, y)  # nothing has trained yet
        session.fit(x, y, epochs=2, learning_rate=0.02, seed=1)
        session.save(tmp_path / "mine.state")
        trained = session.infer(x)
        with pytest.raises(UsageError, match="the training has begun with other channels"):
            session.choose_channels(x, y)
        np.testing.assert_array_equal(session.infer(x), trained)
        again = session.choose_channels(x, y, reset=True)
        assert all((again[name] == chosen[name]).all() for name in chosen)
        session.restore(tmp_path / "mine.state")
        np.testing.assert_array_equal(session.infer(x), trained)
        with pytest.raises(UsageError, match="nothing to weigh"):
            session.fisher(x, y, np.zeros(ROWS))


def mean_of_batch(params: Any, x: Any) -> Any:
    hidden = x @ params["w"]
    return (hidden - hidden.mean(0)) @ params["head"]


def both_ways(params: Any, x: Any) -> Any:
    return x @ params["w"] @ params["head"] @ params["w"].T


def of_no_sample(params: Any, x: Any) -> Any:
    return x @ (params["head"] @ params["w"])


@pytest.mark.parametrize(
    ("apply", "options", "error", "message"),
    [
        (
            of_no_sample,
            {"update": {"w": Channels(), "head": 0}},
            UsageError,
            "w: what it is multiplied with is the same",
        ),
        (
            of_no_sample,
            {"update": {"w": Channels(), "head": 1}},
            UsageError,
            "w: what it is multiplied with is the same",
        ),
        (mean_of_batch, {"update": {"w": Channels()}}, UsageError, "rows of a batch influence each other"),
        (both_ways, {"update": {"w": Channels()}}, UnsupportedError, "w (used both ways round"),
        (mixer, {"update": {"head": 1}}, UsageError, "the signature 'fisher' weighs the channels of weights"),
    ],
)
def test_what_cannot_be_chosen_is_refused(apply: Any, options: Any, error: type, message: str) -> None:
    params = {"w": np.eye(4, dtype="f"), "head": np.ones((4, 4), "f")}
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 4), "float32")])
    if apply is mixer:
        model = mixer_model()
    with pytest.raises(error) as refused:
        converter.build(model, batch=BATCH, signatures=("train", "infer", "fisher"), **options)
    assert message in str(refused.value)


def test_a_program_without_the_signature_trains_the_first_channels() -> None:
    built = built_with("mixer", signatures=("train", "infer"))
    x, y = data("mixer")
    with TrainingSession(built.data) as session:
        assert [list(v) for v in session.channels().values()] == [[0, 1, 2], [0, 1], [0]]
        with pytest.raises(UsageError, match="no signature 'fisher'"):
            session.choose_channels(x, y)
    gathers = [node.op.name for node in built.signatures["train"].nodes if node.op.name == "Gather"]
    assert len(gathers) >= 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": "head"}, "no list of channels"),
        ({"channels": 2}, "3 of 2 channels"),
        ({"channels": 13}, "not one number for each channel"),
        ({"change": "nobody"}, "is not in parameters"),
        ({"weight": "left"}, "stands there twice"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    entry = program("mixer").manifest.to_json()
    entry["choices"][0] |= change
    with pytest.raises(UsageError, match=message):
        manifest_of_json(entry)


@pytest.mark.parametrize("ratio", [0, 1.5, True, "half", float("nan")])
def test_a_ratio_is_a_share(ratio: Any) -> None:
    with pytest.raises(UsageError, match="ratio must be a number above 0"):
        Channels(ratio)
