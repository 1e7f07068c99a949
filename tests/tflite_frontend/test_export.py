"""Exported files: the author's own, with what trained in it. The stock interpreter runs them as the app does."""

from __future__ import annotations

import itertools
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

import pocketune
from converter.cli import main
from converter.frontends import tflite as tflite_frontend
from converter.program.file import read_program
from converter.program.flatbuffer.operators import OperatorFile
from converter.runtime.export import trained_weights
from tests.tflite_frontend.quantised_nets import FORMS, quantised_nets
from tests.tflite_frontend.shipped import LABELS, shipped
from tests.tflite_frontend.test_quantised import edited

ROWS = 2
#: Of tables: a fresh head has other operators.
TABLES = 1 << 10


def by_signature(data: bytes, x: np.ndarray) -> dict[str, np.ndarray]:
    """What an app that calls the signature gets."""
    runner = Interpreter(model_content=data).get_signature_runner("serving")
    rows = [runner(image=row[None]) for row in x]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def by_index(data: bytes, x: np.ndarray) -> list[np.ndarray]:
    """What an app gets that counts inputs and outputs."""
    runtime = Interpreter(model_content=data)
    runtime.allocate_tensors()
    found = []
    for row in x:
        runtime.set_tensor(runtime.get_input_details()[0]["index"], row[None])
        runtime.invoke()
        found.append([runtime.get_tensor(details["index"]).copy() for details in runtime.get_output_details()])
    return [np.concatenate(arrays) for arrays in zip(*found, strict=True)]


def details(data: bytes) -> list[Any]:
    """What an app may look at: names, shapes, types and scales of inputs and outputs, and signatures."""
    runtime = Interpreter(model_content=data)
    ends = [*runtime.get_input_details(), *runtime.get_output_details()]
    return [
        [(d["name"], d["shape_signature"].tolist(), d["dtype"], d["quantization"]) for d in ends],
        runtime.get_signature_list(),
    ]


def metadata(data: bytes) -> dict[str, bytes]:
    model = schema.Model.GetRootAs(data, 0)
    entries = [model.Metadata(i) for i in range(model.MetadataLength())]
    return {entry.Name().decode(): model.Buffers(entry.Buffer()).DataAsNumpy().tobytes() for entry in entries}


def trained(program: Any, x: np.ndarray, y: np.ndarray, path: Path) -> np.ndarray:
    """What the session infers after three steps; the file is exported then."""
    with pocketune.TrainingSession(program.data) as session:
        for _ in range(3):
            session.train(x, y, learning_rate=0.1)
        program.export_inference(path, session.state())
        return np.asarray(session.infer(x))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shipped.tflite"
    path.write_bytes(shipped())
    return path


@pytest.mark.parametrize("update", ["last-2", "full", "sparse", {"*/kernel": 0.5}, "lora-2"])
def test_the_apps_own_code_runs_what_was_trained(update: Any, file: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((ROWS, 8, 8, 2), np.float32)
    model = tflite_frontend.Model(file, outputs=["kind"])
    options = {"loss": "sparse_categorical_crossentropy", "optimizer": "sgd", "batch": ROWS, "check": False}
    program = pocketune.build(model, update=update, **options)
    expected = trained(program, x, np.array([1, 2]), tmp_path / "new.tflite")
    original, new = file.read_bytes(), (tmp_path / "new.tflite").read_bytes()
    assert details(new) == details(original)
    assert metadata(new) == metadata(original)
    with zipfile.ZipFile(tmp_path / "new.tflite") as archive:
        assert archive.read("labels.txt") == LABELS
    found = by_signature(new, x)
    np.testing.assert_allclose(found["kind"], expected, rtol=1e-5, atol=1e-6)
    assert np.abs(found["kind"] - by_signature(original, x)["kind"]).max() > 1e-3
    presence, kind = by_index(new, x)
    np.testing.assert_array_equal(kind, found["kind"])
    np.testing.assert_array_equal(presence, found["presence"])
    assert len(new) <= len(original) + 4 * sum(array.size for array in weights_of(program).values())


def weights_of(program: Any) -> dict[str, np.ndarray]:
    return trained_weights(read_program(program.data))


def kinds(data: bytes) -> Counter[str]:
    return Counter(operator.kind for operator in OperatorFile(data).operators(0))


def test_what_did_not_train_is_the_files_to_the_bit(file: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((ROWS, 8, 8, 2), np.float32)
    model = tflite_frontend.Model(file, outputs=["kind"])
    program = pocketune.build(model, loss="mse", update="head", batch=ROWS, check=False)
    program.export_inference(tmp_path / "new.tflite")
    original, new = file.read_bytes(), (tmp_path / "new.tflite").read_bytes()
    for one, other in zip(by_index(original, x), by_index(new, x), strict=True):
        np.testing.assert_array_equal(one, other)
    # Of the layer that trains weights are float32 now.
    assert kinds(new) == kinds(original) - Counter(DEQUANTIZE=2)


def test_a_fresh_head_stands_where_the_old_one_did(file: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((ROWS, 8, 8, 2), np.float32)
    model = tflite_frontend.Model(file, outputs=["kind"], classes=3)
    program = pocketune.build(model, update="head", optimizer="sgd", batch=ROWS, check=False)
    expected = trained(program, x, np.array([1, 2]), tmp_path / "new.tflite")
    original, new = file.read_bytes(), (tmp_path / "new.tflite").read_bytes()
    (image, presence, kind), signatures = details(new)
    (was_image, was_presence, was_kind), were = details(original)
    assert (image, presence, signatures) == (was_image, was_presence, were)
    assert kind == (was_kind[0], [1, 3], *was_kind[2:])
    found = by_signature(new, x)
    np.testing.assert_allclose(found["kind"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["presence"], by_signature(original, x)["presence"])
    assert len(new) <= len(original) + 4 * 3 * 25 + TABLES
    runtime = Interpreter(model_content=new)  # the file took any number of rows, and so does this one
    runtime.resize_tensor_input(runtime.get_input_details()[0]["index"], [5, 8, 8, 2])
    runtime.allocate_tensors()
    assert [d["shape"].tolist() for d in runtime.get_output_details()] == [[5, 1], [5, 3]]


def test_labels_that_are_given_are_in_the_exported_file(file: Path, tmp_path: Path) -> None:
    """Of the file's own outputs and of a fresh head; in metadata that the file lacks, if it does."""
    options = {"loss": "sparse_categorical_crossentropy", "update": "head", "optimizer": "sgd", "check": False}
    bare = tmp_path / "bare.tflite"
    bare.write_bytes(edited(file.read_bytes(), lambda model: setattr(model, "metadata", None)))
    for path, classes in itertools.product((file, bare), (None, 3)):
        names = [f"pose {i}" for i in range(classes or 7)]
        model = tflite_frontend.Model(path, outputs=["kind"], classes=classes)
        program = pocketune.build(model, labels=names, **options)
        assert not any(note.subject == "labels" for note in program.notes)
        program.export_inference(tmp_path / "new.tflite")
        with zipfile.ZipFile(tmp_path / "new.tflite") as archive:
            assert archive.read("labels.txt").decode().splitlines() == names
        assert tflite_frontend.Model(tmp_path / "new.tflite", outputs=["kind"]).imported(1).words.labels == names
        x = np.random.default_rng(1).random((1, 8, 8, 2), np.float32)
        assert by_signature((tmp_path / "new.tflite").read_bytes(), x)["kind"].shape == (1, len(names))
    assert set(metadata((tmp_path / "new.tflite").read_bytes())) == {"TFLITE_METADATA"}


def test_labels_without_a_place_are_told(file: Path, tmp_path: Path) -> None:
    """The metadata speak of one output, another one is trained."""
    program = pocketune.build(
        tflite_frontend.Model(file, outputs=["presence"], classes=2), labels=["no", "yes"], optimizer="sgd", check=False
    )
    assert ("labels", "not in the exported file") in {(note.subject, note.status) for note in program.notes}


def test_outputs_that_move_with_what_trains_are_named(file: Path) -> None:
    said = {}
    for update in ("full", "head"):
        notes = pocketune.build(file, classes=3, outputs=["kind"], update=update, batch=2, check=False).notes
        said[update] = [note.subject for note in notes if note.status == "change too"]
    assert said == {"full": ["presence"], "head": []}


def test_the_command_line_keeps_names_in_smaller_files_too(file: Path, tmp_path: Path) -> None:
    program, out = tmp_path / "program.tflite", tmp_path / "new.tflite"

    def run(*words: object) -> None:
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in words])
        assert done.value.code in (0, None)

    model = tflite_frontend.Model(file, outputs=["kind"])
    pocketune.build(model, loss="mse", update="full", batch=ROWS, check=False).write(program)
    for words in ((), ("--quantize", "float16"), ("--quantize", "dynamic"), ("--batch", 3), ("--fast",)):
        run("export", program, "--out", out, *words)
        new = out.read_bytes()
        (image, *outputs), signatures = details(new)
        assert [end[0] for end in (image, *outputs)] == ["input:0", "presence:0", "kind:0"]
        assert signatures == details(file.read_bytes())[1]
        assert metadata(new) == metadata(file.read_bytes())
        with zipfile.ZipFile(out) as archive:
            assert archive.read("labels.txt") == LABELS


SLOW = [pytest.param(form, update, marks=pytest.mark.slow) for form in FORMS for update in ("head", "last-2")]


@pytest.mark.quick
@pytest.mark.parametrize(("form", "update"), [("int8", "last-2"), ("uint8_io", "head"), *SLOW])
def test_frozen_layers_of_quantised_files_keep_their_operators(form: str, update: str, tmp_path: Path) -> None:
    path, data = tmp_path / "net.tflite", quantised_nets()[form]
    path.write_bytes(data)
    rng, given = np.random.default_rng(3), Interpreter(model_content=data).get_input_details()[0]
    shape = (ROWS, *given["shape"][1:])
    x = rng.random(shape, np.float32)
    if given["dtype"] != np.float32:
        ends = np.iinfo(given["dtype"])
        x = rng.integers(ends.min, ends.max, shape).astype(given["dtype"])
    program = pocketune.build(
        path, loss="sparse_categorical_crossentropy", update=update, optimizer="sgd", batch=ROWS, check=False
    )
    expected = trained(program, x, np.array([1, 2]), tmp_path / "new.tflite")
    new = (tmp_path / "new.tflite").read_bytes()
    assert details(new) == details(data)
    (found,) = by_index(new, x)
    scale, zero = details(data)[0][1][3]
    real = found if not scale else (found.astype(np.float32) - zero) * scale
    # Of integers the nearest is the best that there is.
    np.testing.assert_allclose(real, expected, rtol=1e-5, atol=0.51 * scale + 1e-6)
    assert len(new) <= len(data) + 4 * sum(array.size for array in weights_of(program).values()) + TABLES
    assert frozen_convolutions(new) == frozen_convolutions(data)


def test_layers_that_round_behind_what_trains_are_told(tmp_path: Path) -> None:
    """Dynamic range: the session has float32 there, the exported file the kernel that the file has."""
    path = tmp_path / "net.tflite"
    path.write_bytes(quantised_nets()["dynamic"])
    options = {"loss": "mse", "optimizer": "sgd", "batch": ROWS, "check": False}
    said = {}
    for update in ("head", {"conv_2*/kernel": 1}):
        program = pocketune.build(path, update=update, **options)
        said[str(update)] = [note.subject for note in program.notes if note.status == "integers in the exported file"]
    assert said.pop("head") == []
    ((layers,),) = said.values()
    assert [name.rsplit("/", 1)[-1][:3] for name in layers.split(", ")] == ["hid"]
    with pocketune.TrainingSession(program.data) as session:
        x = np.random.default_rng(1).random((ROWS, 12, 12, 3), np.float32)
        program.export_inference(tmp_path / "new.tflite", session.state())
        (found,) = by_index((tmp_path / "new.tflite").read_bytes(), x)
        assert 1e-6 < np.abs(found - session.infer(x)).max() < 0.02


def frozen_convolutions(data: bytes) -> list[tuple[Any, ...]]:
    """Operands and results of the convolutions, by type, scale and the bytes of weights."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    graph, found = model.subgraphs[0], list[tuple[Any, ...]]()
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        if code.builtinCode in (schema.BuiltinOperator.CONV_2D, schema.BuiltinOperator.DEPTHWISE_CONV_2D):
            tensors = [graph.tensors[i] for i in (*operator.inputs, *operator.outputs)]
            scales = [None if t.quantization is None else np.ravel(t.quantization.scale).tolist() for t in tensors]
            stored = [model.buffers[t.buffer].data for t in tensors]
            held = [None if array is None else np.asarray(array).tobytes() for array in stored]
            found.append(([t.type for t in tensors], scales, held, code.version))
    return found


@pytest.mark.parametrize("classes", [1, 3])
def test_integers_of_other_numbers_than_shares_do_not_cut_off_a_fresh_head(classes: int, tmp_path: Path) -> None:
    """The file ends in a dense layer whose integers do not reach 1, and the head in a softmax or sigmoid."""

    def narrow(model: Any) -> None:
        graph = model.subgraphs[0]
        last = graph.operators.pop()  # the softmax
        model.signatureDefs[0].outputs[0].tensorIndex = last.inputs[0]
        graph.outputs = np.array([last.inputs[0]], np.int32)
        graph.tensors[last.inputs[0]].quantization.scale = np.array([1e-3], np.float32)

    path = tmp_path / "net.tflite"
    path.write_bytes(edited(quantised_nets()["int8"], narrow))
    model = tflite_frontend.Model(path, cut="hidden_1", classes=classes)
    loss = "sparse_categorical_crossentropy" if classes > 1 else "binary_crossentropy"
    program = pocketune.build(model, loss=loss, update="head", optimizer="sgd", batch=1, check=False)
    x = np.random.default_rng(0).integers(-128, 128, (1, 12, 12, 3)).astype(np.int8)
    with pocketune.TrainingSession(program.data) as session:
        expected = session.infer(x)
        program.export_inference(tmp_path / "mine.tflite", session.state())
    (found,) = by_index((tmp_path / "mine.tflite").read_bytes(), x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
