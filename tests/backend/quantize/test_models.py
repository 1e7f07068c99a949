"""Whole programs with int8 frozen layers, against float32 ones, in the stock interpreter."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ai_edge_litert import schema_py_generated as schema

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.lowering.state import with_variables
from converter.backend.schedule import plan
from converter.driver.quantization import QuantizationWarning
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from examples import EXAMPLES, encoder
from examples.data.digits import PEOPLE
from tests.backend.schedule.arena import interpreter_arena
from tests.models.execution import with_steps

HEAD = {"head": 1}


def net(params: Any, x: jax.Array) -> jax.Array:
    """Skip connections, a concatenation, a max pool, a gate: what int8 has to carry across."""

    def conv(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )

    x = jax.nn.relu(conv(x, params["stem"], 2) + params["stem_bias"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    x = x + jax.nn.relu6(conv(x, params["depth"], groups=x.shape[-1]))
    gate = jax.nn.sigmoid(x.mean((1, 2)) @ params["gate"])[:, None, None, :]
    x = jnp.concatenate([x * gate, jax.nn.relu(conv(x, params["point"]))], -1)
    x = jax.nn.relu(conv(x, params["late"]) + params["late_bias"])
    x = jax.nn.relu(conv(x, params["last"]))
    return x.mean((1, 2)) @ params["head"]


@cache
def trained() -> dict[str, np.ndarray]:
    """Weights that tell the patterns of `data` apart."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))).astype(np.float32)

    params = {
        "stem": weight(3, 3, 3, 16), "stem_bias": 0.1 * weight(16), "depth": weight(3, 3, 1, 16),
        "gate": weight(16, 16), "point": weight(1, 1, 16, 48), "late": weight(3, 3, 64, 64), "late_bias": weight(64),
        "last": weight(3, 3, 64, 64), "head": weight(64, 5),
    }  # fmt: skip
    rule = optax.adam(2e-3)

    @jax.jit
    def step(params: Any, slots: Any, x: jax.Array, y: jax.Array) -> Any:
        updates, slots = rule.update(jax.grad(cross_entropy)(params, x, y), slots)
        return optax.apply_updates(params, updates), slots

    slots = rule.init(params)
    for i in range(40):
        params, slots = step(params, slots, *data(32, seed=100 + i))
    return {name: np.asarray(value) for name, value in params.items()}


def cross_entropy(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(net(params, x)), y[:, None], 1))


def model() -> jax_frontend.Model:
    return jax_frontend.Model(net, trained(), [jax.ShapeDtypeStruct((1, 32, 32, 3), np.float32)])


def data(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 5, rows).astype(np.int32)
    coarse = np.random.default_rng(9).standard_normal((5, 4, 4, 3))
    patterns = coarse.repeat(8, axis=1).repeat(8, axis=2)
    return (patterns[y] + rng.standard_normal((rows, 32, 32, 3))).astype(np.float32), y


def pair(update: Any, **options: Any) -> tuple[converter.Program, converter.Program]:
    """The float32 and the int8 program."""
    x, y = data(48)
    options = {"update": update, "batch": 4, "target": "litert-2", "check": False} | options
    return converter.build(model(), **options), converter.build(model(), frozen="int8", calibration=(x, y), **options)


def forms(program: converter.Program) -> dict[str, int]:
    found: dict[str, int] = {}
    for layer in program.quantization.layers:
        found[layer.form] = found.get(layer.form, 0) + 1
    return found


@pytest.mark.parametrize("xnnpack", [True, False], ids=["xnnpack", "builtin"])
@pytest.mark.parametrize(
    ("update", "expected", "state"),
    [(HEAD, {"int8": 6}, "variables"), ({"late": 1, "head": 1}, {"int8": 4, "dynamic range": 1}, "split")],
    ids=["head", "sparse"],
)
def test_trains_like_float32(update: dict, expected: dict, state: str, xnnpack: bool) -> None:
    programs = pair(update, state=state)
    assert programs[1].manifest.frozen == "int8"
    assert forms(programs[1]) == expected
    losses, states, rate = [], [], 0.02 if update is HEAD else 0.002
    for program in programs:
        with TrainingSession(program.data, xnnpack=xnnpack) as session:
            x, y = data(64, seed=1)
            y = (y + 1) % 5  # other names for what it knows
            losses.append([session.train(x[i : i + 4], y[i : i + 4], rate) for i in range(0, 64, 4)])
            states.append(session.parameters())
            assert session.infer(x[:3]).dtype == np.float32
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05, atol=0.02)
    assert np.mean(losses[0][-4:]) < np.mean(losses[0][:4])
    initial = trained()
    for name, weight in states[0].items():
        moved = np.linalg.norm(weight - initial[name])
        assert np.linalg.norm(states[1][name] - weight) < 0.1 * moved, "the same way, within the gradient's rounding"


def test_all_signatures_share_the_int8_prefix() -> None:
    program = pair({"late": 1, "head": 1}, signatures=("train", "evaluate", "infer", "features"))[1]
    x, y = data(4, seed=2)
    y = (y + 1) % 5
    with TrainingSession(program.data) as session:
        infer, evaluated = session.infer(x), session.evaluate(x, y)
        logits = np.float64(infer)
        logits -= logits.max(-1, keepdims=True)
        expected = np.mean(np.log(np.exp(logits).sum(-1)) - logits[np.arange(4), y])
        assert evaluated["loss"] == pytest.approx(expected, rel=1e-5)
        assert session.train(x, y, 0.0) == pytest.approx(evaluated["loss"], rel=1e-5)
        before = session.evaluate(x, y)["loss"]
        history = session.fit(x, y, epochs=5, learning_rate=0.002, progress=False)  # on cached features
        assert history["loss"][0] == pytest.approx(before, rel=1e-5)
        assert history["loss"][-1] < before


@pytest.mark.parametrize("state", ["variables", "stateless"])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_features_are_kept_as_the_integers_that_they_are(state: str, micro_batch: int | None, tmp_path: Path) -> None:
    """A quarter of the memory, and to the last bit the training without them: packed weights in a file or not."""
    x, y = data(10, seed=2)
    x8, y8 = data(48)
    trained, losses = [], []
    for signatures in (("train",), ("train", "features")):
        program = converter.build(
            model(), update={"late": 1, "head": 1}, batch=4, micro_batch=micro_batch, target="litert-2", check=False,
            state=state, signatures=signatures, frozen="int8", calibration=(x8, y8),
        )  # fmt: skip
        for packed in (None, tmp_path) if "features" in signatures else (None,):
            with TrainingSession(program.data, weight_cache=packed) as session:
                if "features" in signatures:
                    features = session.features(x)
                    assert isinstance(features, np.ndarray)
                    assert features.dtype == np.int8
                losses.append(session.fit(x, y, epochs=2, learning_rate=0.01, progress=False, seed=0)["loss"])
                trained.append(session.parameters())
    for found, state_of in zip(losses[1:], trained[1:], strict=True):
        assert found == losses[0]
        for name, array in trained[0].items():
            np.testing.assert_array_equal(state_of[name], array, err_msg=name)


def test_int8_stays_inside_xnnpack_and_is_smaller() -> None:
    _, int8 = pair({"late": 1, "head": 1})
    step = with_variables(int8.signatures["train"])
    kinds = tfl.Int8 | tfl.DynamicRange | tfl.Quantize | tfl.Dequantize
    mine = [(node, s.delegated) for node, s in with_steps(step, int8.data) if isinstance(node.op, kinds)]
    assert len(mine) > 12
    assert all(inside for _, inside in mine), [n.op.name for n, inside in mine if not inside]
    codes = [n.op.code for n, _ in mine]
    assert codes.count("QUANTIZE") == 1, "the image"
    assert codes.count("DEQUANTIZE") == 1, "what the trained layer reads"
    plain, int8 = pair(HEAD)
    assert int8.costs["arena_bytes"] < plain.costs["arena_bytes"] / 3
    assert len(int8.data) < len(plain.data)


@pytest.mark.parametrize("update", [HEAD, {"late": 1, "head": 1}], ids=["head", "sparse"])
def test_predicted_arena_is_the_interpreters(update: dict) -> None:
    program = pair(update)[1]
    predicted, measured = plan(with_variables(program.signatures["train"])), interpreter_arena(program.data)
    # A temporary tensor that lies above all others, and shares its place with none, is not seen from outside.
    above = max(predicted.scratch, key=lambda piece: piece.offset + piece.size).size
    assert predicted.size in (pytest.approx(measured, rel=0.05), pytest.approx(measured + above, rel=0.001))


def test_operator_versions_are_those_of_old_runtimes() -> None:
    x, y = data(16)
    program = converter.build(model(), update=HEAD, batch=4, target="tflite-2.16", frozen="int8", calibration=(x, y))
    codes = schema.ModelT.InitFromObj(schema.Model.GetRootAs(program.data)).operatorCodes
    versions: dict[int, int] = {}
    for code in codes:
        versions[code.builtinCode] = max(code.version, versions.get(code.builtinCode, 1))
    known = schema.BuiltinOperator
    most = {known.CONV_2D: 3, known.DEPTHWISE_CONV_2D: 3, known.FULLY_CONNECTED: 6, known.ADD: 2, known.DEQUANTIZE: 2}
    assert all(versions.get(code, 1) <= limit for code, limit in most.items())


def test_gradients_through_int8_weights_are_those_of_the_numbers_they_stand_for() -> None:
    """One SGD step of the layer below frozen int8 layers, against jax.grad of the model with the rounded weights."""
    program = pair({"stem": 1, "head": 1})[1]
    assert forms(program)["dynamic range"] == 4 - 1, (
        "late, last and point; the gate is a product of one number a channel"
    )
    x, y = data(4, seed=3)
    y = (y + 1) % 5
    params = dict(trained())
    for node in program.signatures["infer"].nodes:
        if isinstance(node.op, tfl.DynamicRange) and node.op.code == "CONV_2D":
            weight = node.inputs[1]
            real = node.op.of[1].real(program.signatures["infer"].constants[weight]).astype(np.float32)
            (name,) = [n for n, p in params.items() if p.ndim == 4 and p.transpose(3, 0, 1, 2).shape == real.shape
                       and np.abs(p.transpose(3, 0, 1, 2) - real).max() < 0.02 * np.abs(p).max()]  # fmt: skip
            params[name] = real.transpose(1, 2, 3, 0)

    expected = jax.grad(cross_entropy)(params, x, y)
    with TrainingSession(program.data) as session:
        before = session.parameters()
        session.train(x, y, 1.0)
        after = session.parameters()
    for name in ("stem", "head"):
        found = before[name] - after[name]
        error = np.linalg.norm(found - expected[name]) / np.linalg.norm(expected[name])
        assert error < 0.1, (name, error)


def test_report_and_warning() -> None:
    x, y = data(32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", QuantizationWarning)
        program = converter.build(model(), update=HEAD, batch=4, check=False, frozen="int8", calibration=(x, y))
    report = program.quantization
    assert 0 < report.output_error < 0.05
    assert report.before.keys() == report.after.keys() == {"loss", "accuracy"}
    assert report.after["loss"] == pytest.approx(report.before["loss"], rel=0.05)
    odd = np.concatenate([x, 1e3 * x[:4]])  # a few samples claim all of the range
    with pytest.warns(QuantizationWarning, match=r"agreement on the calibration samples"):
        converter.build(model(), update=HEAD, batch=4, check=False, frozen="int8", calibration=odd)


def test_without_labels_the_answers_are_compared() -> None:
    report = converter.build(
        model(), update=HEAD, batch=4, check=False, frozen="int8", calibration=data(32)[0]
    ).quantization
    assert report.before == {"agreement": 1.0}
    assert report.after["agreement"] > 0.9


def test_what_stays_float32_within_a_loop_is_listed() -> None:
    params = {"loop": np.eye(3, dtype=np.float32), "head": np.eye(3, 2, dtype=np.float32)}

    def recurrent(p: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda s, _: (jnp.tanh(s @ p["loop"]), None), x, None, 400)[0] @ p["head"]

    made = jax_frontend.Model(recurrent, params, [jax.ShapeDtypeStruct((1, 3), jnp.float32)])
    with pytest.raises(UsageError, match=r"no frozen layer becomes int8 \(within a loop\)"):
        converter.build(made, update=HEAD, frozen="int8", calibration=np.ones((4, 3), np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frozen": "int8"}, "pass calibration=x"),
        ({"frozen": "int2"}, "float32 or int8 or int4"),
        ({"calibration": data(4)[0]}, "add frozen='int8'"),
        ({"frozen": "int8", "calibration": data(4)[0][:, :8]}, r"calibration: .*expected float32 \[rows, 32, 32, 3\]"),
        ({"frozen": "int8", "calibration": np.empty((0, 32, 32, 3), np.float32)}, "calibration: .*no rows"),
        ({"frozen": "int8", "calibration": (data(4)[0], data(3)[1])}, "calibration: .* 4 rows and y has 3"),
        ({"frozen": "int8", "calibration": data(4), "update": "full"}, "changes nothing"),
    ],
)
def test_bad_arguments(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converter.build(model(), **({"update": HEAD, "batch": 4} | options))


@pytest.fixture(scope="module")
def digits() -> Any:
    return EXAMPLES["digits-cnn"].build()


@pytest.mark.parametrize("scheme", ["head", pytest.param("sparse", marks=pytest.mark.slow)])
def test_digits_are_learned_as_well_as_in_float32(digits: Any, scheme: str) -> None:
    """People of the demo, with the demo's settings: within one point of accuracy."""
    update = dict(EXAMPLES["digits-cnn"].sparse) if scheme == "sparse" else scheme
    calibration = np.concatenate([person.samples(6)[0].x for person in PEOPLE])
    accuracy = {}
    for frozen, samples in (("float32", None), ("int8", calibration)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuantizationWarning)
            program = converter.build(
                digits, optimizer="adam", update=update, batch=8, frozen=frozen, calibration=samples, check=False
            )
        reached = []
        with TrainingSession(program.data) as session:
            for person in PEOPLE:
                session.reset()
                theirs, held_out = person.samples(6)
                session.fit(*theirs, epochs=25, learning_rate=2e-3, progress=False, seed=person.seed)
                reached.append(session.evaluate(*held_out)["accuracy"])
        accuracy[frozen] = np.mean(reached)
    assert accuracy["int8"] > accuracy["float32"] - 0.01, accuracy


@pytest.mark.quick
def test_text_is_learned_as_well_as_in_float32() -> None:
    """An encoder whose upper half trains: dynamic range below it, and in the way of its gradient."""
    text = encoder.build(layers=2, width=128, vocabulary=50)
    (x, y), (held_x, held_y) = (encoder.sample_batch(384, seed=seed, vocabulary=50) for seed in (1, 2))
    update = {"layers/1/*/w": 1, "layers/1/ffn/out/w": 0, "pooler/*": 1, "classifier/*": 1}
    accuracy = {}
    for frozen, samples in (("float32", None), ("int8", (x[:64], y[:64]))):
        program = converter.build(
            text, optimizer="adam", update=update, batch=16, frozen=frozen, calibration=samples, check=False
        )
        if frozen == "int8":
            assert forms(program) == {"dynamic range": 6 + 1}
        with TrainingSession(program.data) as session:
            session.fit(x, y, epochs=5, learning_rate=1e-3, progress=False)
            accuracy[frozen] = session.evaluate(held_x, held_y)["accuracy"]
    assert accuracy["float32"] > 0.9, "it learns"
    assert accuracy["int8"] > accuracy["float32"] - 0.01, accuracy
