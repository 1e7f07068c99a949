"""Quantised files: the stock interpreter on the file is the oracle of every bit in front of what trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

import pocketune
from converter.backend.targets import target
from converter.frontends import tflite as tflite_frontend
from converter.frontends.tflite.reading.file import File, FileTensor, read_file
from converter.ir import evaluate
from converter.support.errors import UnsupportedError, UsageError
from tests.tflite_frontend.quantised_nets import FORMS, quantised_nets
from tests.tflite_frontend.written import Operator, file_of

ROWS = 4
Y = np.arange(ROWS) % 5


@pytest.fixture
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    file, (form, _, change) = tmp_path / "net.tflite", request.param.partition(" as ")
    data = quantised_nets()[form]
    file.write_bytes(edited(data, CHANGES[change]) if change else data)
    return file


def edited(data: bytes, change: Any) -> bytes:
    """A file of which something was changed; `change` is given its tables."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    change(model)
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _to_int4(model: Any) -> None:
    """Of weights of convolutions and dense layers the upper four bits alone, two numbers to a byte."""
    graph, builtins = model.subgraphs[0], schema.BuiltinOperator
    for operator in graph.operators:
        tensor = graph.tensors[operator.inputs[min(1, len(operator.inputs) - 1)]]
        kind = model.operatorCodes[operator.opcodeIndex].builtinCode
        if kind not in (builtins.CONV_2D, builtins.FULLY_CONNECTED) or tensor.type != schema.TensorType.INT8:
            continue
        stored = model.buffers[tensor.buffer]
        numbers = np.array(stored.data, np.uint8).view(np.int8) >> 4
        halves = np.append(numbers, [0] * (numbers.size % 2)).astype(np.uint8) & 15
        stored.data = halves[::2] | halves[1::2] << 4
        tensor.type, tensor.quantization.scale = schema.TensorType.INT4, 16 * tensor.quantization.scale


def _to_uint8(model: Any) -> None:
    """As TensorFlow 1 quantised: all integers uint8, with a zero point of their own for weights."""
    for tensor in model.subgraphs[0].tensors:
        if tensor.type == schema.TensorType.INT8:
            tensor.type, tensor.quantization.zeroPoint = schema.TensorType.UINT8, tensor.quantization.zeroPoint + 128
            stored = model.buffers[tensor.buffer]
            if stored.data is not None:
                stored.data = np.array(stored.data, np.uint8) ^ 128
    for code in model.operatorCodes:
        code.version = 1


CHANGES = {"int4": _to_int4, "uint8": _to_uint8}
#: Forms that the converter has, and those made of them.
ALL = (*FORMS, "int8 as int4", "dynamic as int4", "per_tensor as uint8")


def original(path: Path, tensor: int, rows: np.ndarray) -> np.ndarray:
    """What the stock interpreter, row by row, makes of a tensor of the file."""

    def ends_there(model: Any) -> None:
        model.subgraphs[0].outputs = np.array([tensor], np.int32)
        model.signatureDefs = []

    runtime = Interpreter(model_content=edited(path.read_bytes(), ends_there))
    runtime.allocate_tensors()
    (given,), (made,) = runtime.get_input_details(), runtime.get_output_details()
    found = []
    for row in rows:
        runtime.set_tensor(given["index"], row[None])
        runtime.invoke()
        found.append(runtime.get_tensor(made["index"])[0].copy())
    return np.array(found)


def samples(file: File) -> np.ndarray:
    """Random rows of what the file takes."""
    (number,) = file.inputs.values()
    tensor, rng = file.tensors[number], np.random.default_rng(3)
    assert tensor.dtype is not None
    shape = (ROWS, *tensor.shape[1:])
    if tensor.dtype.kind == "f":
        return rng.standard_normal(shape).astype(np.float32)
    ends = np.iinfo(tensor.dtype)
    return rng.integers(ends.min, ends.max, shape, endpoint=True).astype(tensor.dtype)


def real(tensor: FileTensor, stored: np.ndarray) -> np.ndarray:
    """The numbers that integers of a tensor stand for."""
    if tensor.quantization is None:
        return stored
    scale, zero = tensor.quantization.scale, tensor.quantization.zero_point
    return (np.float32(scale) * (stored.astype(np.float32) - np.float32(zero))).astype(np.float32)


@pytest.mark.quick
@pytest.mark.parametrize("path", ALL, indirect=True)
def test_features_are_the_files_to_the_bit_and_a_fresh_head_learns_on_them(path: Path) -> None:
    model, file = tflite_frontend.Model(path, classes=5), read_file(path)
    options: dict[str, Any] = {"update": "head", "optimizer": "sgd", "batch": ROWS}
    program = pocketune.build(model, signatures=("train", "evaluate", "infer", "features"), **options)
    x, border = samples(file), model.place(file).features
    fed = [spec for spec in program.manifest.signatures["train"].inputs if spec.role == "input"]
    assert [spec.dtype for spec in fed] == [x.dtype.name]
    expected = original(path, border, x)
    (name,) = (spec.name for spec in program.manifest.signatures["features"].inputs)
    (found,) = Interpreter(model_content=program.data).get_signature_runner("features")(**{name: x}).values()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)

    features = jnp.asarray(real(file.tensors[border], expected).reshape(ROWS, -1))
    with pocketune.TrainingSession(program.data) as session:
        params = {key.split("/")[1]: jnp.asarray(array) for key, array in session.parameters().items()}
        losses = [session.train(x, Y, learning_rate=0.05) for _ in range(10)]

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        logits = features @ params["kernel"].T + params["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(Y)).mean()

    wanted = []
    for _ in range(10):
        value, gradient = jax.value_and_grad(loss)(params)
        wanted.append(float(value))
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)


@pytest.mark.parametrize("path", ["int8", "dynamic"], indirect=True)
def test_what_lies_in_front_of_deeper_trained_layers_is_the_files_to_the_bit(path: Path) -> None:
    model, file = tflite_frontend.Model(path, classes=5), read_file(path)
    update = {"*conv_2*": 1, "*hidden*": 1, "head/*": 1}
    program = pocketune.build(
        model, update=update, optimizer="sgd", batch=ROWS, signatures=("train", "infer", "features")
    )
    (first,) = (o for o in file.operators if o.kind == "CONV_2D" and file.tensors[o.outputs[0]].shape[-1] == 12)
    x = samples(file)
    expected = original(path, first.inputs[0], x)
    (name,) = (spec.name for spec in program.manifest.signatures["features"].inputs)
    (found,) = Interpreter(model_content=program.data).get_signature_runner("features")(**{name: x}).values()
    np.testing.assert_array_equal(found, expected)
    said = {row.parameter: row.why for row in program.manifest.update.table if row.fraction}
    assert all("float32 here" in said[name] for name in said if "hidden" in name and "kernel" in name)


@pytest.mark.parametrize("path", ["int8", "dynamic", "dynamic as int4", "per_tensor as uint8"], indirect=True)
def test_dequantised_layers_train_by_the_slopes_of_the_loss(path: Path) -> None:
    model, file = tflite_frontend.Model(path, classes=5), read_file(path)
    program = pocketune.build(model, update="full", optimizer="sgd", batch=ROWS, check=False)
    x, rate = samples(file), 2.0**12
    graph, _ = model.graph(ROWS)
    with pocketune.TrainingSession(program.data) as session:
        before = session.parameters()
        session.train(x, Y, learning_rate=rate)
        after = session.parameters()

    def loss(name: str, weight: np.ndarray) -> float:
        outputs, _ = evaluate(graph, [x], np.float64, **{name: weight})
        return float(-np.log(outputs["output"][np.arange(ROWS), Y]).mean())

    rng = np.random.default_rng(0)
    for name, weight in before.items():
        direction, width = rng.standard_normal(weight.shape), 1e-7
        around = [weight.astype(np.float64) + sign * width * direction for sign in (1, -1)]
        slope = (loss(name, around[0]) - loss(name, around[1])) / (2 * width)
        made = float(((weight.astype(np.float64) - after[name]) / rate * direction).sum())
        assert made == pytest.approx(slope, rel=2e-3, abs=1e-6), name


@pytest.mark.parametrize("path", ["int8"], indirect=True)
def test_numbers_beyond_the_files_ranges_are_cut_off_where_its_integers_end(path: Path) -> None:
    """Layers that became float32 clip as the integers did: on inputs far outside both are near each other."""
    file = read_file(path)
    x = np.where(np.random.default_rng(0).random((ROWS, 12, 12, 3)) < 0.5, -128, 127).astype(np.int8)
    program = pocketune.build(path, loss="mse", update="full", optimizer="sgd", batch=ROWS, check=False)
    (output,) = file.outputs.values()
    expected = real(file.tensors[output], original(path, output, x))
    with pocketune.TrainingSession(program.data) as session:
        found = session.infer(x)
    assert np.abs(found - expected).max() < 0.05


@pytest.mark.parametrize("path", ["int8", "uint8_io", "int16x8"], indirect=True)
def test_an_app_feeds_the_integers_that_it_feeds_the_file(path: Path) -> None:
    model, file = tflite_frontend.Model(path, classes=5), read_file(path)
    program = pocketune.build(model, update="head", optimizer="sgd", batch=ROWS, check=False)
    x, (number,) = samples(file), file.inputs.values()
    of = file.tensors[number].quantization
    assert of is not None
    (fed,) = (note.why for note in program.notes if note.status == f"fed as {x.dtype.name}")
    assert f"{of.scale:.9g}" in fed
    assert f"{of.zero_point:+d}" in fed
    with pocketune.TrainingSession(program.data) as session:
        expected = session.infer(x)
        np.testing.assert_array_equal(session.infer(x.astype(np.int64)), expected)
        for floats in (real(file.tensors[number], x), x.astype(np.float32)):
            with pytest.raises(UsageError, match=f"expected {x.dtype.name} .*got float32. Its integers stand for"):
                session.infer(floats)
            with pytest.raises(UsageError, match="Its integers stand for real numbers"):
                session.fit(floats, Y, epochs=1)
        with pytest.raises(UsageError, match=r"with numbers that u?int[0-9]+ cannot hold"):
            session.infer(np.full(x.shape, 1 << 20))


@pytest.mark.parametrize("path", ["int8_float_io", "dynamic"], indirect=True)
def test_engines_of_float32_take_the_numbers_that_the_integers_stand_for(path: Path) -> None:
    model = tflite_frontend.Model(path, classes=5)
    program = pocketune.build(model, update="head", optimizer="sgd", batch=ROWS, target="web", check=False)
    assert any(note.status == "in float32" and "not equal to the bit" in note.why for note in program.notes)


@pytest.mark.parametrize("path", ["int8"], indirect=True)
def test_engines_of_float32_refuse_to_be_fed_integers(path: Path) -> None:
    model = tflite_frontend.Model(path, classes=5)
    with pytest.raises(UnsupportedError, match="the file takes int8 as x, and gpu computes on float32 alone"):
        pocketune.build(model, update="head", batch=ROWS, target="gpu")


def test_inputs_of_64_bits_are_converted_in_front_of_what_is_carried_over(tmp_path: Path) -> None:
    path, made = tmp_path / "net.tflite", ((1, 3, 3), "int64")
    tensors = {"x": ((1, 3), "int64"), "made": made, "cast": ((1, 3, 3), "float32"), "y": ((1, 3, 2), "float32")}
    kernel = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    types = {"inDataType": schema.TensorType.INT64, "outDataType": schema.TensorType.FLOAT32}
    operators: list[Operator] = [
        ("MATRIX_DIAG", ("x",), ("made",), ("MatrixDiagOptions", {})),
        ("CAST", ("made",), ("cast",), ("CastOptions", types)),
        ("FULLY_CONNECTED", ("cast", "w", ""), ("y",), ("FullyConnectedOptions", {"keepNumDims": True})),
    ]
    path.write_bytes(file_of({**tensors, "w": kernel}, operators))
    program = pocketune.build(path, loss="mse", update="full", optimizer="sgd", batch=2, check=False)
    x = np.array([[1, 2, 3], [4, 5, 6]])
    with pocketune.TrainingSession(program.data) as session:
        found = session.infer(x)
    np.testing.assert_allclose(found, np.stack([np.diag(row) for row in x]) @ kernel.T, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": [0.0]}, "a scale that is no positive number"),
        ({"scale": [float("nan")]}, "a scale that is no positive number"),
        ({"scale": [float("inf")]}, "a scale that is no positive number"),
        ({"scale": [-1.0]}, "a scale that is no positive number"),
        ({"zeroPoint": [1000]}, "the zero point 1000 of int8"),
        ({"quantizedDimension": 7}, "scales along axis 7 of"),
        ({"scale": [1.0, 1.0], "zeroPoint": [0, 0]}, "2 scales along axis 0"),
    ],
)
def test_quantization_that_cannot_be_is_refused_with_the_tensor(change: dict, said: str, tmp_path: Path) -> None:
    def spoil(model: Any) -> None:
        tensor = model.subgraphs[0].tensors[model.subgraphs[0].operators[0].outputs[0]]
        for key, numbers in change.items():
            setattr(tensor.quantization, key, np.array(numbers, np.float32 if key == "scale" else np.int64))

    (tmp_path / "net.tflite").write_bytes(edited(quantised_nets()["int8"], spoil))
    with pytest.raises(UsageError, match=f"quantised tensor '.*' has {said}"):
        tflite_frontend.Model(tmp_path / "net.tflite").graph(1)


@pytest.fixture
def spectral(tmp_path: Path) -> Path:
    """A file with a Fourier transform, which only the runtime knows, in front of a dense layer."""
    file = tmp_path / "spectral.tflite"
    file.write_bytes(quantised_nets()["spectral"])
    return file


def test_what_only_the_runtime_knows_is_carried_over_in_front_of_what_trains(spectral: Path) -> None:
    model, file = tflite_frontend.Model(spectral, classes=5), read_file(spectral)
    program = pocketune.build(model, update="head", batch=ROWS, signatures=("train", "infer", "features"))
    assert "RFFT2D" in {operator.kind for operator in file.operators}
    x, border = samples(file), model.place(file).features
    (name,) = (spec.name for spec in program.manifest.signatures["features"].inputs)
    (found,) = Interpreter(model_content=program.data).get_signature_runner("features")(**{name: x}).values()
    np.testing.assert_array_equal(found, original(spectral, border, x))


def test_what_only_the_runtime_knows_is_refused_behind_what_trains(spectral: Path) -> None:
    with pytest.raises(UnsupportedError, match="only the runtime knows what these compute") as refused:
        pocketune.build(tflite_frontend.Model(spectral, classes=5), update="full", batch=ROWS)
    assert {site.primitive for site in refused.value.sites} >= {"RFFT2D"}


@pytest.mark.parametrize("form", ["int8", "uint8_io", "per_tensor", "int16x8", "dynamic"])
def test_layers_that_stay_integers_have_a_price(form: str, tmp_path: Path) -> None:
    """No less than products of int8 take by the target's table, which are cheapest."""
    path = tmp_path / "net.tflite"
    path.write_bytes(quantised_nets()[form])
    options: dict[str, Any] = {"classes": 3, "update": "head", "batch": 4, "target": "tflite-2.16", "check": False}
    costs = pocketune.build(path, **options).costs
    cheapest = min(target("tflite-2.16").per_mac[f"{kind}.int8"] for kind in ("conv", "fully_connected"))
    assert costs["product_cost"] > cheapest * costs["flops_forward"] / 2


def test_a_single_integer_stands_for_a_number_too(tmp_path: Path) -> None:
    def scaled(model: Any) -> None:
        for tensor, scale in zip(model.subgraphs[0].tensors, (0.1, 0.5, 0.2), strict=True):
            tensor.quantization = schema.QuantizationParametersT(scale=[scale], zeroPoint=[1])

    tensors = {"x": ((1, 4), "int8"), "factor": np.int8(5), "y": ((1, 4), "int8")}
    data = edited(file_of(tensors, [("MUL", ("x", "factor"), ("y",), ("MulOptions", {}))]), scaled)
    path, x = tmp_path / "net.tflite", np.array([[-9, 0, 11, 40]], np.int8)
    path.write_bytes(data)
    runtime = Interpreter(model_content=data)
    runtime.allocate_tensors()
    runtime.set_tensor(0, x)
    runtime.invoke()
    expected = 0.2 * (runtime.get_tensor(2).astype(np.float32) - 1)
    graph, _ = tflite_frontend.Model(path).graph(1)
    (found,) = evaluate(graph, [x])[0].values()
    np.testing.assert_allclose(found, expected, atol=0.1 + 1e-6)  # half a step of the file's result
