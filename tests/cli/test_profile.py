"""profile: what it says of a program is compared with the program; times only have to be times."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import converter
from converter.program import origins
from converter.program.file import ProgramFile, read_program
from converter.program.flatbuffer.operators import FileOperator, OperatorFile
from tests.cli.conftest import FACTORIES, Run
from tests.cli.factories import good

PLAIN = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
QUICK = ("--steps", "1", "--quiet")


def profiled(run: Run, *options: str) -> dict[str, Any]:
    assert run("build", f"{FACTORIES}:good", "--out", "p.tflite", "--no-check", "--quiet", *options).code == 0
    return run("profile", "p.tflite", "--json", *QUICK).json


def layers(result: dict[str, Any], phase: str) -> set[str]:
    return {row["layer"] for row in result["rows"] if row["phase"] == phase and row["alone"]}


def products(result: dict[str, Any]) -> Counter[tuple[str, str]]:
    """How many matrix products each layer has in each phase."""
    kinds = ("BATCH_MATMUL", "FULLY_CONNECTED")
    return Counter((row["layer"], row["phase"]) for row in result["rows"] if row["operator"] in kinds)


def test_every_operator_has_a_row_and_the_shares_are_of_the_whole(run: Run, tmp_path: Path) -> None:
    result = profiled(run)
    interpreter = Interpreter(str(tmp_path / "p.tflite"), experimental_op_resolver_type=PLAIN)
    assert [row["operator"] for row in result["rows"]] == [op["op_name"] for op in interpreter._get_ops_details()]
    assert sum(row["share"] for row in result["rows"]) == pytest.approx(1)
    assert sum(row["alone"] * row["calls"] for row in result["rows"]) == pytest.approx(result["alone_ms"])
    for groups in (result["layers"], result["operators"]):
        assert sum(sum(phases.values()) for phases in groups.values()) == pytest.approx(result["step_ms"])


def test_layers_and_phases_of_a_whole_update(run: Run) -> None:
    result = profiled(run)
    trained = {"layers/0", "layers/1", "layers/2"}
    assert layers(result, "forward") == layers(result, "backward") == trained | {"loss"}
    assert layers(result, "update") == trained
    first = {("layers/0", "forward"): 1, ("layers/0", "backward"): 1}  # nobody asks for the gradient of the input
    others = {(f"layers/{i}", phase): n for i in (1, 2) for phase, n in (("forward", 1), ("backward", 2))}
    assert products(result) == first | others


def test_below_the_head_nothing_is_differentiated(run: Run) -> None:
    result = profiled(run, "--update", "head")
    assert layers(result, "forward") == {"layers/0", "layers/1", "layers/2", "loss"}
    assert layers(result, "backward") == {"layers/2", "loss"}
    assert layers(result, "update") == {"layers/2"}
    assert products(result)["layers/2", "backward"] == 1


@pytest.mark.parametrize(
    ("state", "step"), [("variables", "accumulate"), ("stateless", "accumulate"), ("split", "gradients")]
)
def test_micro_batches_are_counted(run: Run, state: str, step: str) -> None:
    result = profiled(run, "--batch", "6", "--micro-batch", "2", "--optimizer", "adam", "--state", state)
    assert {(row["signature"], row["calls"]) for row in result["rows"]} == {(step, 3), ("apply", 1)}
    assert {row["phase"] for row in result["rows"] if row["signature"] == "apply"} == {"update"}
    assert sum(row["share"] for row in result["rows"]) == pytest.approx(1)


def test_a_person_reads_tables(run: Run) -> None:
    profiled(run)
    both = run("profile", "p.tflite", *QUICK).out
    for word in ("by layer", "by operator", "layers/1", "SOFTMAX", "backward", "100.0%", "of the step"):
        assert word in both
    layer = run("profile", "p.tflite", "--by", "layer", *QUICK).out
    assert "layers/1" in layer
    assert "SOFTMAX" not in layer


def step_of(data: bytes) -> Iterator[FileOperator]:
    return iter(dict(OperatorFile(data).subgraphs())["train"])


def test_an_operator_alone_computes_what_it_does_in_the_step() -> None:
    data = converter.build(good(), loss="mse", update="head", state="stateless", batch=4, check=False).data
    whole = Interpreter(model_content=data, experimental_op_resolver_type=PLAIN, experimental_preserve_all_tensors=True)
    whole.allocate_tensors()
    rng = np.random.default_rng(0)
    for tensor in whole.get_input_details():
        whole.set_tensor(tensor["index"], rng.uniform(0.5, 1.5, tensor["shape"]).astype(tensor["dtype"]))
    whole.invoke()
    names = {tensor["name"]: tensor["index"] for tensor in whole.get_tensor_details()}
    compared = 0
    for operator in step_of(data):
        alone = Interpreter(model_content=operator.program(), experimental_op_resolver_type=PLAIN)
        alone.allocate_tensors()
        for tensor in alone.get_input_details():
            alone.set_tensor(tensor["index"], whole.get_tensor(names[tensor["name"]]))
        alone.invoke()
        for tensor in alone.get_output_details():
            expected = whole.get_tensor(names[tensor["name"]])
            np.testing.assert_array_equal(alone.get_tensor(tensor["index"]), expected)
            compared += 1
    assert compared > 10


def test_only_equal_work_is_measured_once() -> None:
    data = converter.build(good(), loss="mse", state="stateless", batch=4, check=False).data
    keys = {operator.key: operator.kind for operator in step_of(data)}
    assert len(keys) < len([*step_of(data)])  # the updates of two biases of 8
    assert Counter(keys.values())["BATCH_MATMUL"] == 8  # no two of one shape and transposition


def test_what_cannot_be_profiled(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled(run)
    program = (tmp_path / "p.tflite").read_bytes()
    (tmp_path / "cut.tflite").write_bytes(program[:-100])
    (tmp_path / "other.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    for file, why in (("no.tflite", "no such file"), ("cut.tflite", "damaged"), ("other.tflite", "no Pocketune")):
        failed = run("profile", file, *QUICK)
        assert failed.code == 2
        assert why in failed.err
    assert run("profile", "p.tflite", "--steps", "0").code == 2
    assert run("profile", "p.tflite", "--by", "day").code == 2

    def changed(entry: bytes | None) -> ProgramFile:
        file = read_program(program)
        kept = {name: data for name, data in file.metadata.items() if name != origins.ENTRY}
        return replace(file, metadata=kept if entry is None else kept | {origins.ENTRY: memoryview(entry)})

    for entry in (None, b"{", b'{"layers":["a"],"signatures":{"train":[[3,0,0]]}}', b'{"layers":[],"signatures":3}'):
        monkeypatch.setattr("converter.tools.measure.profile.read_program", lambda path, entry=entry: changed(entry))
        failed = run("profile", "p.tflite", *QUICK)
        assert failed.code == 2
        assert "build it again" in failed.err
