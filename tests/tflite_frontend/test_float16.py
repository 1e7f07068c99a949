"""Files of float16 weights: what is frozen of them stays float16, and computes what the file does, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

import pocketune
from converter.frontends import tflite as tflite_frontend
from converter.ir import FLOAT16, FLOAT32
from converter.program.file import read_program
from converter.program.flatbuffer.parts import tensor_name
from converter.program.layers import Layers
from converter.tools.measure.profile import profile
from tests.tflite_frontend.shipped import shipped
from tests.tflite_frontend.test_export import by_signature
from tests.tflite_frontend.test_quantised import edited

KERNEL = 24 * 3 * 3 * 16
X = np.random.default_rng(1).random((1, 8, 8, 2), np.float32)


def widened(model: Any) -> None:
    """The same net in float32: each DEQUANTIZE is done, and left out."""
    graph = model.subgraphs[0]
    for operator in [o for o in graph.operators if model.operatorCodes[o.opcodeIndex].builtinCode == 6]:
        half = np.asarray(model.buffers[graph.tensors[operator.inputs[0]].buffer].data, np.uint8).view(np.float16)
        model.buffers.append(schema.BufferT(data=half.astype(np.float32).view(np.uint8)))
        graph.tensors[operator.outputs[0]].buffer = len(model.buffers) - 1
        graph.operators.remove(operator)


def built(path: Path, data: bytes, **options: Any) -> Any:
    path.write_bytes(data)
    model = tflite_frontend.Model(path, outputs=["kind"])
    asked = {"loss": "sparse_categorical_crossentropy", "optimizer": "sgd", "batch": 1, "check": False}
    return pocketune.build(model, **{**asked, **options})


def sizes(program: Any, dtype: np.dtype) -> Sequence[int]:
    constants = (graph.constants.values() for graph in program.signatures.values())
    return [array.size for arrays in constants for array in arrays if array.dtype == dtype]


@pytest.mark.parametrize("update", ["head", {"conv_1/kernel": 1, "kind/*": 1}])
def test_frozen_weights_stay_float16_and_compute_the_same(update: Any, tmp_path: Path) -> None:
    """Behind what trains, too; losses and weights are those of the float32 file, bit for bit."""
    data = shipped()
    half = built(tmp_path / "half.tflite", data, update=update)
    whole = built(tmp_path / "whole.tflite", edited(data, widened), update=update)
    assert KERNEL in sizes(half, FLOAT16)
    assert KERNEL not in sizes(whole, FLOAT16)
    assert "frozen weights" in {note.subject for note in half.notes}
    assert len(half.data) < len(whole.data) - KERNEL
    with pocketune.TrainingSession(half.data) as one, pocketune.TrainingSession(whole.data) as other:
        np.testing.assert_array_equal(one.infer(X), other.infer(X))
        np.testing.assert_allclose(one.infer(X), by_signature(data, X)["kind"], rtol=1e-5)
        for _ in range(3):
            assert one.train(X, np.array([2]), learning_rate=0.1) == other.train(X, np.array([2]), learning_rate=0.1)
        for name, array in one.parameters().items():
            np.testing.assert_array_equal(array, other.parameters()[name])
        half.export_inference(tmp_path / "new.tflite", one.state())
        np.testing.assert_allclose(
            by_signature((tmp_path / "new.tflite").read_bytes(), X)["kind"], one.infer(X), rtol=1e-5, atol=1e-6
        )


def test_features_are_the_files(tmp_path: Path) -> None:
    """What enters the head, in the stock interpreter, is the same to the bit."""
    program = built(tmp_path / "half.tflite", shipped(), update="head", signatures=("train", "features"))
    runtime = Interpreter(model_content=shipped(), experimental_preserve_all_tensors=True)
    runtime.allocate_tensors()
    runtime.set_tensor(runtime.get_input_details()[0]["index"], X)
    runtime.invoke()
    (mean,) = [d["index"] for d in runtime.get_tensor_details() if d["name"] == "net/mean"]
    (name,) = (spec.name for spec in program.manifest.signatures["features"].inputs)
    (found,) = Interpreter(model_content=program.data).get_signature_runner("features")(**{name: X}).values()
    np.testing.assert_array_equal(found.reshape(-1), runtime.get_tensor(mean).reshape(-1))


def test_operators_are_run_alone_with_what_they_unpack(tmp_path: Path) -> None:
    """As a profile does, and who looks for a wrong operator: unpacked constants are constants there too."""
    program = built(tmp_path / "half.tflite", shipped(), update="head")
    rows = profile(program.data, steps=2).rows
    assert [row.alone for row in rows if row.operator == "DEQUANTIZE"] == [0.0]
    assert all(row.alone > 0 for row in rows if row.operator == "CONV_2D")
    entry = Layers(read_program(program.data)).entry("infer")
    kinds = [place.operator.kind for place in entry.places]
    number = kinds.index("DEQUANTIZE")
    assert kinds[number + 1] == "CONV_2D"
    (unpacked,), (made,) = (entry.places[n].operator.outputs for n in (number, number + 1))
    assert unpacked not in entry.made
    (given,) = entry.operands(number + 1)
    part, x = entry.part([number + 1], [made]), np.ones(entry.shape(given), np.float32)
    (found,) = Interpreter(model_content=part).get_signature_runner("part")(**{tensor_name(given): x}).values()
    whole = built(tmp_path / "whole.tflite", edited(shipped(), widened), update="head")
    entry = Layers(read_program(whole.data)).entry("infer")
    number = [place.operator.kind for place in entry.places].index("CONV_2D", number)
    (made,), (given,) = entry.places[number].operator.outputs, entry.operands(number)
    runner = Interpreter(model_content=entry.part([number], [made])).get_signature_runner("part")
    np.testing.assert_array_equal(found, *runner(**{tensor_name(given): x}).values())


def test_other_runtimes_hold_them_in_float32(tmp_path: Path) -> None:
    for target in ("tflite-2.16", "gpu"):
        program = built(tmp_path / "half.tflite", shipped(), update="head", target=target)
        assert not sizes(program, FLOAT16)
        assert KERNEL in sizes(program, FLOAT32)
