"""What `export-c` writes: models that share constants, types of rows, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from typer.testing import CliRunner

import converter
from converter.backend.targets import target
from converter.cli.app import app
from converter.program.checksum import with_new_checksum
from converter.program.file import read_program
from converter.program.flatbuffer.schema import generated
from converter.runtime import TrainingSession
from converter.runtime.engines import engine
from converter.support.errors import UnsupportedError, UsageError
from converter.tools.micro import literals
from converter.tools.micro.body import add_of
from converter.tools.micro.entries import entries
from converter.tools.micro.export import export_c
from converter.tools.micro.joined import joined
from tests.runtime.engines.micro_nets import NETS, image, keyword_net

#: Of the resolver of TensorFlow Lite Micro, as its header has them.
ADDS = {
    "ADD": "AddAdd", "ADD_N": "AddAddN", "BATCH_MATMUL": "AddBatchMatMul", "CONV_2D": "AddConv2D",
    "CUMSUM": "AddCumSum", "DEPTHWISE_CONV_2D": "AddDepthwiseConv2D", "LOG_SOFTMAX": "AddLogSoftmax",
    "PADV2": "AddPadV2", "PAD": "AddPad", "RELU6": "AddRelu6", "REVERSE_V2": "AddReverseV2", "SELECT_V2": "AddSelectV2",
    "MAX_POOL_2D": "AddMaxPool2D", "SQUARED_DIFFERENCE": "AddSquaredDifference",
    "TRANSPOSE_CONV": "AddTransposeConv", "WHILE": "AddWhile",
}  # fmt: skip


def built(path: Path, net: str, **options: object) -> Path:
    settings = {"optimizer": "sgd", "update": "head", "batch": 1, "check": False, "target": "tflm", **options}
    converter.build(NETS[net]().model(), **settings).write(path)
    return path


def test_builtins_are_registered_by_the_names_of_the_resolver() -> None:
    assert {name: add_of(name) for name in ADDS} == ADDS


def test_models_share_what_is_constant(tmp_path: Path) -> None:
    program = read_program(built(tmp_path / "p.tflite", "keyword"))
    parts = entries(program)
    together, separate = joined(program, parts), [joined(program, [part]) for part in parts]
    assert len(together.data) < 0.75 * sum(len(one.data) for one in separate)
    for part, start in zip(parts, together.starts, strict=True):
        model = generated.ModelT.InitFromPackedBuf(together.data, start)
        assert [len(graph.operators) for graph in model.subgraphs] == [len(graph.operators) for graph in part.graphs]
        assert not any(tensor.name for graph in model.subgraphs for tensor in graph.tensors)


@pytest.mark.skipif(engine("tflm").missing() is not None, reason="tflm: no wheel")
@pytest.mark.parametrize("net", ["keyword", "recurrent"])  # the second has loops, whose bodies are graphs
def test_a_model_of_the_array_computes_what_the_program_does(net: str, tmp_path: Path) -> None:
    from tflite_micro.python.tflite_micro.runtime import Interpreter

    path = built(tmp_path / "p.tflite", net)
    program = read_program(path)
    (part,) = [part for part in entries(program) if part.name == "infer"]
    interpreter = Interpreter.from_bytes(joined(program, [part]).data, arena_size=1 << 20)
    rows = NETS[net]().rows(1, np.random.default_rng(0))
    with TrainingSession(path) as session:
        state, wanted = list(session.state().values()), session.infer(rows)
        for place, binding in enumerate(part.inputs):
            interpreter.set_input(rows if binding.role == "Value" else state[binding.index], place)
        interpreter.invoke()
        np.testing.assert_allclose(interpreter.get_output(0), wanted, atol=1e-6)


def test_a_folder_is_a_library_of_arduino_and_a_component_of_esp_idf(tmp_path: Path) -> None:
    made = export_c(built(tmp_path / "p.tflite", "keyword"), tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == set(made.files)
    listed = set(re.findall(r"src/\w+\.cc", (tmp_path / "out/CMakeLists.txt").read_text()))
    assert listed == {name for name in found if name.endswith(".cc")}
    properties = (tmp_path / "out/library.properties").read_text()
    assert {"name", "version", "sentence", "architectures", "includes"} <= set(
        re.findall(r"^\w+(?==)", properties, re.M)
    )
    assert f"kArenaBytes = {made.arena};" in (tmp_path / "out/src/pocketune_model.h").read_text()
    assert max(made.arenas.values()) < made.arena < 1.2 * max(made.arenas.values())


@pytest.mark.parametrize(
    ("net", "options", "has", "lacks"),
    [
        (
            "keyword",
            {},
            ["train_row(const float* x, int32_t y,", "infer(const float* x, float* output)"],
            ["gradients_"],
        ),
        ("keyword", {"batch": 4}, ["train(const Row* rows"], ["train_row(", "gradients_"]),
        ("keyword", {"batch": 4, "micro_batch": 1}, ["train_row(", "gradients_["], []),
        ("keyword", {"signatures": ["train"]}, ["train_row("], ["infer(", "evaluate(", "features"]),
        (
            "keyword",
            {"signatures": ["train", "features"]},
            ["features(const Input& row, void* to)", "train_features(const void* features, const Known& row"],
            ["infer("],
        ),
        ("autoencoder", {"loss": "mse"}, ["Row(const float* x, const float* y)"], ["int32_t y", "accuracy"]),
    ],
)
def test_a_session_has_the_functions_of_its_program(
    net: str, options: dict, has: list[str], lacks: list[str], tmp_path: Path
) -> None:
    export_c(built(tmp_path / "p.tflite", net, **options), tmp_path / "out")
    header = (tmp_path / "out/src/pocketune_model.h").read_text()
    assert [text for text in has if text not in header] == []
    assert [text for text in lacks if text in header] == []


def test_a_step_on_features_stands_for_the_whole_one(tmp_path: Path) -> None:
    """What is frozen in front and the step are set up one after the other, in the arena that inference needs."""
    net = keyword_net()
    rows = net.rows(8, np.random.default_rng(0))
    arenas = {}
    for signatures in (("train", "infer"), ("train", "features", "infer")):
        settings = {"update": "head", "optimizer": "sgd", "batch": 1, "frozen": "int8", "calibration": rows}
        program = converter.build(net.model(), target="tflm", check=False, signatures=signatures, **settings)
        made = export_c(program.data, tmp_path / "-".join(signatures))
        arenas[signatures] = max(made.arenas.values())
        assert made.left_out == ()
    assert made.arenas.keys() == {"features", "train_features", "infer"}
    # Priced is the step that is called, beside the state and the features of its rows.
    assert 0.95 < program.costs["arena_bytes"] / max(made.arenas["features"], made.arenas["train_features"]) < 1.05
    assert program.costs["state_bytes"] == made.state
    assert arenas["train", "features", "infer"] == made.arenas["infer"] < 24 * 1024 < arenas["train", "infer"]
    assert "kFeatureBytes = 64;" in (tmp_path / "train-features-infer/src/pocketune_model.h").read_text()


@pytest.mark.skipif(engine("tflm").missing() is not None, reason="tflm: no wheel")
def test_a_row_that_is_made_int8_first_is_taken_as_int8(tmp_path: Path) -> None:
    """An image is a quarter as large, of what computes in float32 in the rest as it is."""
    from tflite_micro.python.tflite_micro.runtime import Interpreter

    net = image()
    rows = net.rows(8, np.random.default_rng(0))
    settings = {"update": "head", "optimizer": "sgd", "batch": 1, "frozen": "int8", "calibration": rows}
    program = read_program(converter.build(net.model(), target="tflm", check=False, **settings).data)
    export_c(program.data, tmp_path / "out")
    header = (tmp_path / "out/src/pocketune_model.h").read_text()
    for text in ("Row(const int8_t* x, const int32_t* y)", "infer(const int8_t* x,", "infer(const float* x,"):
        assert text in header
    scale, zero = re.search(
        r"quantized_x\(float number\) \{ return quantized\(number, (\S+)f, (\S+)\)", header
    ).groups()
    (part,) = [part for part in entries(program) if part.name == "infer"]
    assert [b.nbytes for b in part.inputs if b.role == "Value"] == [16 * 16 * 3]
    # LiteRT rounds int8 in another way than the reference kernels: the judge is the graph as it is in the file.
    model = generated.Model.GetRootAs(program.data, 0)
    stored = next(
        s for s in map(model.SignatureDefs, range(model.SignatureDefsLength())) if s.SignatureKey() == b"infer"
    )
    whole = replace(part, graphs=(generated.SubGraphT.InitFromObj(model.Subgraphs(stored.SubgraphIndex())),))
    x = np.clip(np.round(rows[:1] / np.float32(scale)) + int(zero), -128, 127).astype(np.int8)
    with TrainingSession(program.data) as session:
        state, near = list(session.state().values()), session.infer(rows[:1])
    given = []
    for entry, row in ((part, x), (whole, rows[:1])):
        interpreter = Interpreter.from_bytes(joined(program, [entry]).data, arena_size=1 << 18)
        for place, binding in enumerate(entry.inputs):
            interpreter.set_input(row if binding.role == "Value" else state[binding.index], place)
        interpreter.invoke()
        given.append(interpreter.get_output(0))
    np.testing.assert_array_equal(*given)
    np.testing.assert_allclose(given[0], near, atol=5e-3)


def test_programs_of_other_targets_and_states_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"built for litert-2.* build it with target='tflm'"):
        export_c(built(tmp_path / "a.tflite", "keyword", target="litert-2"), tmp_path / "out")
    with pytest.raises(UsageError, match=r"'split'.* state='stateless'"):
        export_c(built(tmp_path / "b.tflite", "keyword", state="split"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph.operators.reverse(),
        lambda graph: graph.operators.pop(0),
        lambda graph: setattr(graph.operators[-1], "outputs", graph.inputs[:1]),
    ],
)
def test_operators_that_do_not_follow_each_other_are_refused(change: Callable[[Any], None], tmp_path: Path) -> None:
    """TensorFlow Lite Micro does not look: the board aborts, or reads what nothing wrote."""
    data = built(tmp_path / "p.tflite", "mlp-relu").read_bytes()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    change(model.subgraphs[0])
    builder = flatbuffers.Builder(len(data))
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    damaged = with_new_checksum(bytes(builder.Output()))
    with pytest.raises(UsageError, match="its tables are damaged"):
        export_c(damaged, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_what_no_session_calls_is_left_out_and_said(tmp_path: Path) -> None:
    path = built(tmp_path / "p.tflite", "keyword", signatures=["train", "infer", "infer_8"])
    said = CliRunner().invoke(app, ["export-c", str(path), "--out", str(tmp_path / "out")], obj={"debug": False})
    assert said.exit_code == 0
    assert "left out, as no sketch calls them: infer_8" in said.output.replace("\n", " ")


def test_names_and_numbers_are_those_of_c_plus_plus() -> None:
    assert literals.names(["x", "y/left", "y left", "class", "2nd", "ü"]) == [
        "x", "y_left", "y_left_", "class_", "_2nd", "value",
    ]  # fmt: skip
    assert [literals.number(n) for n in (1.0, 0.1, -2e-9, None)] == ["1.0f", "0.1f", "-2e-09f", "0.0f"]
    assert literals.string('a"?\\\n1é') == '    "a\\042\\077\\134\\0121\\303\\251"'


def test_a_role_that_a_session_does_not_know_is_refused_by_its_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from converter.tools.micro import entries as module

    monkeypatch.setattr(module, "_GIVEN", {"loss", "state", "output"})
    with pytest.raises(UnsupportedError, match=r"'evaluate' has 'correct' .*signatures=\['train', 'infer'\]"):
        export_c(built(tmp_path / "p.tflite", "keyword"), tmp_path / "out")


def test_every_builtin_of_the_target_has_a_name_there() -> None:
    builtins = {key.split(".")[0] for key in target("tflm").limits} - {"*"}
    assert all(re.fullmatch(r"Add([A-Z][a-z]*|\d|[A-Z]\d)+[A-Z]?", add_of(name)) for name in builtins)
