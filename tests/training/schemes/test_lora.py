"""Low-rank adapters against adapters written by hand in JAX, and the plain model that they are merged into."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import optax
import pytest
from ai_edge_litert.interpreter import Interpreter

import converter
import jax_frontend
from converter import LoRA
from converter.program.file import read_program
from converter.program.flatbuffer.operators import OperatorFile
from converter.program.merge import MERGE, read_merge
from converter.runtime import TrainingSession
from converter.runtime.export import export_weights
from converter.support.errors import UnsupportedError, UsageError
from tests.training.schemes.by_hand import BATCH, CASES, STEPS, ZEROS, by_hand, close, compiled, data, model, program


def infer(file: Path, x: np.ndarray) -> np.ndarray:
    interpreter = Interpreter(str(file))
    assert list(interpreter.get_signature_list()) == ["infer"]
    (result,) = interpreter.get_signature_runner("infer")(x=x).values()
    return result


def kinds(file: Path) -> Counter:
    ((_, operators),) = OperatorFile(file.read_bytes()).subgraphs()
    return Counter(operator.kind for operator in operators)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "state"),
    [
        *((name, "variables") for name in CASES if name != "transformer, DoRA"),
        ("tied", "stateless"),
        ("tied", "split"),
        pytest.param("transformer, DoRA", "variables", marks=pytest.mark.slow),
    ],
)
def test_ten_steps_equal_adapters_by_hand_and_are_merged(name: str, state: str, tmp_path: Path) -> None:
    losses, oracle = by_hand(name)
    built, (x, _) = program(name, state), data(name, 99)
    with TrainingSession(built.data) as session:
        before = session.infer(x)
        found = [session.train(*data(name, i), CASES[name].rate) for i in range(STEPS)]
        np.testing.assert_allclose(found, losses, rtol=1e-4)
        close(session.parameters(), oracle.trained)
        tensors, after = session.state(), session.infer(x)
    assert np.abs(after - before).max() > 0.05, "the test would pass without training"
    plain = built.export_inference(tmp_path / "plain.tflite", tensors)
    np.testing.assert_allclose(infer(plain, x), after, atol=1e-5)
    assert not {"VAR_HANDLE", "READ_VARIABLE"} & kinds(plain).keys()
    export_weights(read_program(built.data), tmp_path / "mine.npz", tensors)
    with np.load(tmp_path / "mine.npz") as weights:
        assert not any("lora" in key for key in weights)
        whole = oracle.weights(oracle.trained)
        close(dict(weights), {key: whole[key] for key in weights})
        assert CASES[name].changes.keys() <= set(weights)


@pytest.mark.parametrize("name", ["transformer", "convolutional"])
def test_the_plain_model_is_that_of_a_program_without_adapters(name: str, tmp_path: Path) -> None:
    rules = {pattern: rule for pattern, rule in CASES[name].rules.items() if not isinstance(rule, LoRA)}
    other = compiled(name, optimizer="sgd", update=rules, check=False).export_inference(tmp_path / "other.tflite")
    plain = program(name).export_inference(tmp_path / "plain.tflite")
    assert kinds(plain) <= kinds(other)
    assert plain.stat().st_size < other.stat().st_size + 512
    x, _ = data(name)
    np.testing.assert_allclose(infer(plain, x), infer(other, x), atol=1e-6)  # B is zero as it is built


@pytest.mark.parametrize(
    "options",
    [{"micro_batch": 2}, {"signatures": ("train", "infer", "features")}, {"optimizer": optax.adafactor(1.0)}],
    ids=["micro-batches", "features", "an optimizer of rows and columns"],
)
def test_other_kinds_of_programs_are_merged_as_well(options: dict[str, Any], tmp_path: Path) -> None:
    update = {"tied": LoRA(2), "left": LoRA(1), "head": 1}
    built = converter.build(model("tied"), batch=BATCH, **{"optimizer": "adam", "update": update, **options})
    x, y = data("tied")
    with TrainingSession(built.data) as session:
        session.fit(x, y, epochs=3, learning_rate=0.02)
        after, rows = session.infer(x), built.manifest.micro_batch
        plain = built.export_inference(tmp_path / "plain.tflite", session.state())
    assert np.abs(after - model("tied").apply(model("tied").params, x)).max() > 0.01
    np.testing.assert_allclose(infer(plain, x[:rows]), after[:rows], atol=1e-5)


def test_what_is_frozen_in_int8_stays_int8_when_adapters_are_merged(tmp_path: Path) -> None:
    x, _ = data("convolutional")
    update = {"rows/*": LoRA(2), "head/*": 1}
    built = compiled(
        "convolutional", optimizer="sgd", update=update, frozen="int8", calibration=np.tile(x, (4, 1, 1, 1))
    )
    assert [layer.form for layer in built.quantization.layers].count("int8") >= 2, built.quantization.layers
    with TrainingSession(built.data) as session:
        before = session.infer(x)
        for i in range(5):
            session.train(*data("convolutional", i), 0.05)
        after, state = session.infer(x), session.state()
    plain = built.export_inference(tmp_path / "plain.tflite", state)
    assert {"QUANTIZE", "DEQUANTIZE"} <= kinds(plain).keys()
    assert np.abs(after - before).max() > 0.2
    np.testing.assert_allclose(infer(plain, x), after, atol=0.02)  # the int8 weights of the adapted layer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": "head"}, "is not what is added to"),
        ({"b": "nobody"}, "is not what is added to"),
        ({"a_shape": [1 << 20, 1 << 20]}, "bad shape"),
        ({"stored": [12, 11]}, "is not what is added to"),
        ({"view": [["slice", 0, 0, 99]]}, "does not fit"),
        ({"product": [["transpose", [0, 2, 1]]]}, "is not what is added to"),
        ({"scale": "2"}, "expected a number"),
        ({"surprise": 1}, "unknown field"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    file = read_program(program("tied").data)
    entry = json.loads(bytes(file.metadata[MERGE]))
    entry["weights"][0] |= change
    damaged = replace(file, metadata={**file.metadata, MERGE: memoryview(json.dumps(entry).encode())})
    with pytest.raises(UsageError, match=message):
        read_merge(damaged)


def test_what_a_step_costs() -> None:
    """The narrow products instead of the weight's gradient and update."""
    full, adapted = (converter.build(_wide(), update=u, optimizer="adam", batch=16) for u in ("full", "lora-4"))
    assert adapted.costs["trained_parameters"] == 4 * (64 + 128) + 128 * 3
    assert adapted.costs["state_bytes"] < full.costs["state_bytes"] / 5
    narrow = 2 * 16 * 4 * (64 + 128)
    assert 0 <= adapted.costs["flops_forward"] - full.costs["flops_forward"] - narrow < 20_000


def _wide() -> jax_frontend.Model:
    rng = np.random.default_rng(0)
    params = {"hidden": rng.normal(size=(64, 128)).astype("f"), "head": rng.normal(size=(128, 3)).astype("f")}
    return jax_frontend.Model(
        lambda p, x: jax.nn.relu(x @ p["hidden"]) @ p["head"], params, [jax.ShapeDtypeStruct((1, 64), "float32")]
    )


def test_the_table_says_what_became_of_each() -> None:
    rows = {row.parameter: row for row in program("transformer").table}
    assert rows["up/kernel"].fraction == 0
    assert "its adapter trains" in rows["up/kernel"].why
    assert rows["up/kernel/lora_a"].fraction == rows["up/kernel/lora_b"].fraction == 1
    assert "stays frozen, a scale" in rows["norm/gamma"].why
    assert rows["up/bias"].fraction == 1, "another rule trains the biases"
    (frozen,) = [row for row in program("only b trains").table if row.parameter == "rows/kernel/lora_a"]
    assert (frozen.fraction, "stays as drawn" in frozen.why) == (0, True)


def test_schemes_with_a_name() -> None:
    rows = {row["scheme"]: row for row in converter.compare_schemes(_wide(), ["head", "lora-4", "full"])}
    assert (
        rows["head"]["trained_parameters"] < rows["lora-4"]["trained_parameters"] < rows["full"]["trained_parameters"]
    )
    with pytest.raises(UsageError, match=r"the largest rank here is \d+, lora-\d+"):
        converter.build(_wide(), update="lora-60")


def separable() -> keras.Model:
    x = inputs = keras.Input((8, 8, 4), name="x")
    x = keras.layers.DepthwiseConv2D(3, name="depthwise", depthwise_initializer="zeros")(x)
    x = keras.layers.Conv2D(4, 3, groups=2, name="groups", **ZEROS)(x)
    x = keras.layers.Conv2DTranspose(4, 2, name="transposed", **ZEROS)(x)
    return keras.Model(inputs, keras.layers.Dense(3, name="head", **ZEROS)(keras.layers.Flatten()(x)))


@pytest.mark.parametrize(
    ("update", "error", "message"),
    [
        ({"depthwise/*": LoRA(2)}, UnsupportedError, "depthwise/kernel .a depthwise convolution, whose channels"),
        ({"groups/*": LoRA(2)}, UnsupportedError, "groups/kernel .read in parts, as by a convolution in groups"),
        ({"transposed/kernel": LoRA(2)}, UsageError, "only transposed/kernel .read backwards, as by a transposed"),
        ({"*": LoRA(2)}, UnsupportedError, "depthwise/kernel .*groups/kernel .*add a later rule"),
        ({"*/bias": LoRA(2)}, UsageError, "adapts kernels, and it matches none, only depthwise/bias .a bias."),
        ({"haed/*": LoRA(2)}, UsageError, "matches no parameter of the model"),
    ],
)
def test_what_is_refused(update: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        converter.build(separable(), update=update, check=False)


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0},
        {"rank": 2.5},
        {"rank": True},
        {"alpha": 0},
        {"alpha": "8"},
        {"seed": -1},
        {"train_a": 1},
        {"dora": 1},
    ],
)
def test_adapters_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"LoRA: {next(iter(options))} must be"):
        LoRA(**options)
