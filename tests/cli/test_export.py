"""What is taken away from a program: LiteRT runs it alone, with the very results of the session."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from safetensors.numpy import load_file

import converter
from converter.driver.program import Program
from converter.program.file import read_program
from converter.program.flatbuffer.operators import OperatorFile
from converter.runtime import TrainingSession
from converter.runtime.export import export_inference
from converter.support.errors import UsageError
from jax_frontend import Model
from tests.cli.conftest import FACTORIES, Run
from tests.cli.factories import good
from tests.runtime.programs import BATCH, EXAMPLES, program

RESOLVERS = {True: OpResolverType.AUTO, False: OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES}


def results(file: Path, x: np.ndarray, xnnpack: bool = True) -> np.ndarray:
    """What a stock interpreter makes of a batch."""
    interpreter = Interpreter(str(file), experimental_op_resolver_type=RESOLVERS[xnnpack])
    (signature,) = interpreter.get_signature_list()
    (result,) = interpreter.get_signature_runner(signature)(x=x).values()
    return result


def trained(built: Program, name: str, path: Path) -> tuple[dict[str, np.ndarray], dict[bool, np.ndarray]]:
    """A state, also saved under `path`, and what sessions with and without XNNPACK infer with it."""
    x, y = EXAMPLES[name].data(BATCH)
    with TrainingSession(built.data) as session:
        for _ in range(3):
            session.train(x, y, 0.05)
        session.save(path)
        state = session.state()
    inferred = {}
    for xnnpack in (True, False):
        with TrainingSession(built.data, xnnpack=xnnpack) as session:
            session.restore(path)
            inferred[xnnpack] = session.infer(x)
    return state, inferred


def kinds(file: Path) -> set[str]:
    ((_, operators),) = OperatorFile(file.read_bytes()).subgraphs()
    return {operator.kind for operator in operators}


@pytest.mark.parametrize("update", ["full", "head", 0.5])
@pytest.mark.parametrize("state", ["variables", "stateless", "split"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_results_are_those_of_the_session(name: str, state: str, update: str | float, tmp_path: Path) -> None:
    built = program(name, state, "adam", update)
    tensors, inferred = trained(built, name, tmp_path / "mine.state")
    x, _ = EXAMPLES[name].data(BATCH)
    plain = [built.export_inference(tmp_path / "a.tflite", tensors)]
    plain += [built.export_inference(tmp_path / "b.tflite", tmp_path / "mine.state")]
    assert plain[0].read_bytes() == plain[1].read_bytes()
    assert not kinds(plain[0]) & {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"}
    for xnnpack in (True, False):
        np.testing.assert_array_equal(results(plain[0], x, xnnpack), inferred[xnnpack])
    fast = results(built.export_inference(tmp_path / "c.tflite", tensors, exact=False), x)
    np.testing.assert_allclose(fast, inferred[True], rtol=1e-5, atol=1e-6)
    assert np.abs(fast - results(built.export_inference(tmp_path / "d.tflite"), x)).max() > 1e-3  # that is untrained


def test_it_is_no_larger_than_the_weights_and_a_little(tmp_path: Path) -> None:
    built = program("cnn", optimizer="adam")
    weights = sum(array.nbytes for array in _leaves(EXAMPLES["cnn"].params))
    assert built.export_inference(tmp_path / "plain.tflite").stat().st_size < weights + 4096


def _leaves(tree: dict) -> Iterable[np.ndarray]:
    return (array for layer in tree.values() for array in layer.values())


def test_on_the_command_line(run: Run, tmp_path: Path) -> None:
    built = program("mlp", optimizer="adam")
    built.write(tmp_path / "m.tflite")
    _, inferred = trained(built, "mlp", tmp_path / "mine.state")
    assert run("export", "m.tflite", "mine.state", "--out", "plain.tflite").code == 0
    np.testing.assert_array_equal(results(tmp_path / "plain.tflite", EXAMPLES["mlp"].data(BATCH)[0]), inferred[True])
    assert run("export", "m.tflite", "mine.state", "--out", "mine.npz").code == 0
    with TrainingSession(tmp_path / "m.tflite") as session, np.load(tmp_path / "mine.npz") as weights:
        session.restore(tmp_path / "mine.state")
        expected = session.parameters()
        assert set(weights) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(weights[name], array)


def test_adapters_are_merged(run: Run, tmp_path: Path) -> None:
    rules = "'layers/0/w' = {lora = 2, alpha = 6, seed = 5}\n'layers/2/*' = 'all'"
    (tmp_path / "mine.toml").write_text(f"optimizer = 'adam'\nbatch = {BATCH}\n[update]\n{rules}")
    done = run("build", f"{FACTORIES}:good", "--recipe", "mine.toml", "--out", "m.tflite", "--json")
    table = {row["parameter"]: row["fraction"] for row in done.json["manifest"]["update"]["table"]}
    trained = ["layers/0/w/lora_a", "layers/0/w/lora_b", "layers/2/b", "layers/2/w"]
    assert sorted(name for name, fraction in table.items() if fraction) == trained
    x, y = np.random.default_rng(0).normal(size=(BATCH, 6)).astype("f"), np.arange(BATCH, dtype=np.int32) % 3
    with TrainingSession(tmp_path / "m.tflite") as session:
        for _ in range(5):
            session.train(x, y, 0.05)
        session.save(tmp_path / "mine.state")
        inferred, parameters = session.infer(x), session.parameters()
    assert run("export", "m.tflite", "mine.state", "--out", "plain.tflite").code == 0
    np.testing.assert_allclose(results(tmp_path / "plain.tflite", x), inferred, atol=1e-5)
    assert run("export", "m.tflite", "mine.state", "--out", "mine.npz").code == 0
    before = good().params["layers"][0]["w"]
    with np.load(tmp_path / "mine.npz") as weights:
        assert set(weights) == {"layers/0/w", "layers/2/b", "layers/2/w"}
        change = parameters["layers/0/w/lora_a"] @ parameters["layers/0/w/lora_b"]
        assert np.abs(change).max() > 0.01
        np.testing.assert_allclose(weights["layers/0/w"], before + 6 / 2 * change, atol=1e-6)


def test_what_cannot_be_exported(run: Run, tmp_path: Path) -> None:
    built = program("mlp", optimizer="adam")
    built.write(tmp_path / "m.tflite")
    with TrainingSession(program("cnn").data) as other:
        other.save(tmp_path / "other.state")
    assert "another program" in run("export", "m.tflite", "other.state", "--out", "p.tflite").err
    assert "no such state file" in run("export", "m.tflite", "none.state", "--out", "p.tflite").err
    assert "--out must end with" in run("export", "m.tflite", "--out", "p.bin").err
    tensors = {name: array.copy() for name, array in TrainingSession(built.data).state().items()}
    next(iter(tensors.values()))[...] = np.nan
    with pytest.raises(UsageError, match="NaN"):
        built.export_inference(tmp_path / "p.tflite", tensors)
    with pytest.raises(UsageError, match="not those of this program"):
        built.export_inference(tmp_path / "p.tflite", {})
    only = converter.build(EXAMPLES["mlp"].model(), batch=BATCH, signatures=("train",))
    with pytest.raises(UsageError, match="no signature 'infer'"):
        only.export_inference(tmp_path / "p.tflite")
    assert not (tmp_path / "p.tflite").exists()


def test_weights_as_safetensors(tmp_path: Path, run: Run) -> None:
    built = program("mlp", "variables", "sgd", "head")
    built.write(tmp_path / "m.tflite")
    for out in ("m.npz", "m.safetensors"):
        assert run("export", "m.tflite", "--out", out).code == 0
    written, expected = load_file(tmp_path / "m.safetensors"), np.load(tmp_path / "m.npz")
    assert set(written) == set(expected.files)
    assert all(np.array_equal(written[name], expected[name]) for name in written)


@pytest.mark.quick
def test_a_keras_model_with_the_trained_weights(tmp_path: Path, run: Run) -> None:
    layers = [keras.Input((4,)), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3)]
    keras.Sequential(layers).save(tmp_path / "m.keras")
    converter.build(tmp_path / "m.keras", update="head", batch=4).write(tmp_path / "m.tflite")
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    with TrainingSession(tmp_path / "m.tflite") as session:
        session.train(x, np.arange(4) % 3, 0.5)
        session.save(tmp_path / "mine.state")
        trained = session.infer(x)
    ran = run("export", "m.tflite", "mine.state", "--model", "m.keras", "--out", "mine.keras")
    assert ran.code == 0
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "mine.keras")(x), trained, rtol=1e-5, atol=1e-6)
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="another")]).save(tmp_path / "other.keras")
    refused = run("export", "m.tflite", "mine.state", "--model", "other.keras", "--out", "new.keras")
    assert (refused.code, "the program is of another model" in refused.err) == (2, True)
    refused = run("export", "m.tflite", "mine.state", "--out", "new.keras")
    assert (refused.code, "--model" in refused.err) == (2, True)


def wide(tmp_path: Path) -> np.ndarray:
    """A trained state of a net with a convolution and two dense layers, in files; what sessions infer with it."""
    layers = [
        keras.Input((8, 8, 8)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(40),
    ]
    keras.utils.set_random_seed(0)
    converter.build(keras.Sequential(layers), batch=4, check=False).write(tmp_path / "m.tflite")
    with TrainingSession(tmp_path / "m.tflite") as session:
        session.train(np.ones((4, 8, 8, 8), np.float32), np.arange(4), 0.1)
        session.save(tmp_path / "mine.state")
        return session.infer(np.random.default_rng(0).standard_normal((4, 8, 8, 8)).astype(np.float32))


def test_weights_in_fewer_bytes(run: Run, tmp_path: Path) -> None:
    exact = wide(tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 8, 8, 8)).astype(np.float32)
    assert run("export", "m.tflite", "mine.state", "--out", "whole.tflite").code == 0
    whole = (tmp_path / "whole.tflite").stat().st_size
    for quantize, share, error, kind in (("float16", 0.52, 1e-3, np.float16), ("dynamic", 0.3, 0.05, np.int8)):
        done = run("export", "m.tflite", "mine.state", "--out", "small.tflite", "--quantize", quantize)
        assert done.code == 0, done.err
        assert (tmp_path / "small.tflite").stat().st_size < share * whole
        for xnnpack in (True, False):
            difference = np.abs(results(tmp_path / "small.tflite", x, xnnpack) - exact).max()
            assert 0 < difference < error * np.abs(exact).max()
        tensors = Interpreter(str(tmp_path / "small.tflite")).get_tensor_details()
        large = [t for t in tensors if t["name"].endswith(("/float16", "/int8"))]
        assert len(large) == 3
        assert all(t["dtype"] is kind for t in large)
        printed = float(done.out.split("at most ")[1])
        assert 0 < printed < error * np.abs(exact).max() * 2
    assert "'float16' or 'dynamic'" in run("export", "m.tflite", "--out", "a.tflite", "--quantize", "int4").err
    assert "is for a .tflite" in run("export", "m.tflite", "--out", "a.npz", "--quantize", "dynamic").err


def test_a_keras_model_stays_compiled(tmp_path: Path, run: Run) -> None:
    """Keras itself reads loss, optimizer and metrics back, and a build trains as one of the first file does."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3)])
    rate = keras.optimizers.schedules.CosineDecay(0.02, 50)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile(keras.optimizers.AdamW(rate, weight_decay=0.01), loss, metrics=["mae"])
    x, y = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32), np.eye(3, dtype=np.float32)[[0, 1] * 4]
    model.fit(x, y, batch_size=4, epochs=3, verbose=0)
    model.save(tmp_path / "m.keras")
    built = converter.build(tmp_path / "m.keras", batch=4)
    built.write(tmp_path / "m.tflite")
    with TrainingSession(built.data) as session:
        session.fit(x, y, epochs=2, progress=False)
        session.save(tmp_path / "mine.state")
    ran = run("export", "m.tflite", "mine.state", "--model", "m.keras", "--out", "mine.keras")
    assert "compiled as before" in ran.out
    assert "without slots, at step 0" in ran.out
    with pytest.warns(UserWarning, match="has 9 variables whereas the saved optimizer has 0"):
        read = keras.saving.load_model(tmp_path / "mine.keras")
    assert read.get_compile_config() == model.get_compile_config()
    assert int(read.optimizer.iterations) == 0
    again = converter.build(tmp_path / "mine.keras", batch=4)
    assert (again.manifest.loss, again.manifest.optimizer) == (built.manifest.loss, built.manifest.optimizer)
    assert [note.status for note in again.notes if note.subject in ("loss", "optimizer")] == ["as compiled"] * 2
    read.fit(x[:4], y[:4], batch_size=4, epochs=1, verbose=0)
    with TrainingSession(again.data) as session:
        session.train(x[:4], y[:4])
        for name, array in session.parameters().items():
            (variable,) = (v for v in read.variables if v.path == name)
            np.testing.assert_allclose(array, variable, rtol=1e-4, atol=1e-6)


def test_a_default_is_said() -> None:
    model = EXAMPLES["mlp"].model()
    said = {(note.subject, note.status) for note in converter.build(model, batch=BATCH, check=False).notes}
    assert said >= {("loss", "a default"), ("optimizer", "a default")}
    named = converter.build(model, loss="sparse_categorical_crossentropy", optimizer="sgd", batch=BATCH, check=False)
    assert not [note for note in named.notes if note.subject in ("loss", "optimizer")]


def mixed(inputs: jax.Array) -> jax.Array:
    """Rows less the mean of the batch."""
    return inputs - inputs.mean(0, keepdims=True)


def nets() -> dict[str, keras.Model]:
    """Nets whose operators name the batch in different ways, each with rows of 4 that it is built for."""
    layers = keras.layers
    image = keras.Input((8, 8, 3))
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(image)
    second = layers.Conv2DTranspose(4, 2, strides=2)(layers.MaxPool2D()(first))
    words = keras.Input((6, 8))
    attended = layers.MultiHeadAttention(2, 4)(words, words) + words
    a, b = keras.Input((6,), name="a"), keras.Input((4, 5), name="b")
    both = layers.Concatenate()([layers.Dense(8, activation="relu")(a), layers.Flatten()(b)])
    return {
        "loops": keras.Sequential([keras.Input((40, 6)), layers.LSTM(5, return_sequences=True), layers.GRU(4)]),
        "both ways": keras.Sequential([keras.Input((7, 5)), layers.Bidirectional(layers.LSTM(4)), layers.Dense(3)]),
        "attention": keras.Model(words, layers.Dense(3)(layers.Flatten()(layers.LayerNormalization()(attended)))),
        "two": keras.Model([a, b], [layers.Dense(3, name="u")(both), layers.Dense(2, name="v")(both)]),
        "upsampled": keras.Model(image, layers.Concatenate()([first, second])),
    }


@pytest.mark.quick
@pytest.mark.parametrize("name", ["loops", "both ways", "attention", "two", "upsampled"])
def test_any_number_of_rows(name: str, tmp_path: Path) -> None:
    """One row as it is, more where the stock interpreter's inputs are resized, and what `batch` asks for."""
    keras.utils.set_random_seed(0)
    model = nets()[name]
    loss = {"u": "mse", "v": "mse"} if name == "two" else "mse"
    built = converter.build(model, loss=loss, optimizer="sgd", batch=4, signatures=("train", "infer"), check=False)
    rng = np.random.default_rng(0)
    x = {tensor.name: rng.standard_normal((7, *tensor.shape[1:]), np.float32) for tensor in model.inputs}
    with TrainingSession(built.data) as session:
        given = session.infer(x if len(x) > 1 else next(iter(x.values())))
    expected = given if isinstance(given, dict) else {"": given}
    exported = export_inference(read_program(built.data), tmp_path / "plain.tflite")
    assert (exported.rows, exported.is_resizable) == (1, True)

    def check(rows: int) -> None:
        runner = Interpreter(str(tmp_path / "plain.tflite")).get_signature_runner("infer")
        names = x if len(x) > 1 else runner.get_input_details()
        found = runner(**{key: array[:rows] for key, array in zip(names, x.values(), strict=True)})
        for (key, wanted), array in zip(expected.items(), found.values(), strict=True):
            np.testing.assert_allclose(found.get(key, array), wanted[:rows], rtol=1e-5, atol=1e-6)

    for rows in (1, 5, 7, 2):
        check(rows)
    for batch in (3, 7):
        exported = export_inference(read_program(built.data), tmp_path / "plain.tflite", batch=batch)
        assert exported.rows == batch
        check(batch)


def test_rows_that_influence_each_other_stay_together(run: Run, tmp_path: Path) -> None:
    built = converter.build(
        Model(lambda p, x: mixed(x) @ p, np.ones((4, 3), np.float32), [jax.ShapeDtypeStruct((1, 4), np.float32)]),
        loss="mse", optimizer="sgd", batch=4, check=False,
    )  # fmt: skip
    built.write(tmp_path / "m.tflite")
    assert "it takes 4 rows, and no other number" in run("export", "m.tflite", "--out", "p.tflite").out
    refused = run("export", "m.tflite", "--out", "p.tflite", "--batch", "2")
    assert refused.code == 2
    assert "takes 4 rows and no other number: rows influence each other" in " ".join(refused.err.split())
    assert run("export", "m.tflite", "--out", "w.npz", "--batch", "2").code == 2


def test_float16_leaves_what_stands_beside_int8(tmp_path: Path) -> None:
    """XNNPACK takes the bias of a convolution by int8 weights as a constant only."""
    layers, norm = keras.layers, keras.layers.BatchNormalization
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((16, 16, 3)), layers.Conv2D(32, 3, strides=2), norm(), layers.ReLU(), layers.Conv2D(64, 1), norm(),
        layers.ReLU(6.0), layers.Conv2D(1024, 1, use_bias=False), norm(), layers.ReLU(6.0),
        layers.GlobalAveragePooling2D(), layers.Dense(5),
    ])  # fmt: skip
    x = np.random.default_rng(0).standard_normal((8, 16, 16, 3)).astype(np.float32)
    built = converter.build(
        model, loss="mse", optimizer="sgd", update="bias-only", frozen="int8", calibration=x, batch=4, check=False
    )
    with TrainingSession(built.data) as session:
        expected = session.infer(x)
    exported = export_inference(read_program(built.data), tmp_path / "half.tflite", quantize="float16")
    assert exported.loss is not None
    runner = Interpreter(str(tmp_path / "half.tflite")).get_signature_runner("infer")
    (found,) = runner(**dict.fromkeys(runner.get_input_details(), x)).values()
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
