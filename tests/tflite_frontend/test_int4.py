"""Files whose layers train adapters in four bits: what is exported is the file's own, with the adapters merged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import jax_frontend
import pocketune

RNG = np.random.default_rng(0)
FIRST, SECOND, HEAD = (RNG.normal(0, 0.1, shape).astype(np.float32) for shape in ((96, 160), (160, 128), (128, 5)))
X, Y = RNG.normal(size=(1, 96)).astype(np.float32), np.array([2], np.int32)


def net(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(jax.nn.relu(x @ params["first"]) @ params["second"]) @ params["head"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The net as a plain file."""
    path = tmp_path_factory.mktemp("net") / "net.tflite"
    inputs = [jax.ShapeDtypeStruct((1, 96), np.float32)]
    model = jax_frontend.Model(net, {"first": FIRST, "second": SECOND, "head": HEAD}, inputs, name="net")
    pocketune.build(
        model, batch=1, update="full", optimizer="sgd", loss="sparse_categorical_crossentropy"
    ).export_inference(path)
    return path


def run(path: os.PathLike) -> np.ndarray:
    runtime = Interpreter(os.fspath(path))
    runtime.allocate_tensors()
    runtime.set_tensor(runtime.get_input_details()[0]["index"], X)
    runtime.invoke()
    return runtime.get_tensor(runtime.get_output_details()[0]["index"])


def test_adapters_are_merged_into_the_weights_of_the_file(file: Path, tmp_path: Path) -> None:
    options = {"batch": 1, "optimizer": "sgd", "loss": "sparse_categorical_crossentropy"}
    program = pocketune.build(file, update="lora-4", frozen="int4", **options)
    program.export_inference(tmp_path / "before.tflite")
    np.testing.assert_array_equal(run(tmp_path / "before.tflite"), run(file))
    with pocketune.TrainingSession(program.data) as session:
        for _ in range(5):
            session.train(X, Y, learning_rate=0.1)
        learned, there, state = session.parameters(), session.infer(X), session.state()
    program.export_inference(tmp_path / "after.tflite", state)
    merged = [w + 2 * learned[f"{name}/lora_a"] @ learned[f"{name}/lora_b"] for name, w in weights(program, learned)]
    (head,) = (w for w in learned.values() if w.shape in ((128, 5), (5, 128)))
    expected = np.asarray(
        net({"first": merged[0], "second": merged[1], "head": head if len(head) == 128 else head.T}, X)
    )
    found = run(tmp_path / "after.tflite")
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())
    assert 1e-3 < np.abs(found - there).max() / np.abs(there).max() < 0.2  # what the integers of four bits are off by
    assert any("the exported file keeps those of the file" in note.why for note in program.notes)


def weights(program: pocketune.Program, learned: dict[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Names of the two matrices in the program, in their order, with their numbers."""
    names = [name.removesuffix("/lora_a") for name in learned if name.endswith("/lora_a")]
    by_inputs = {len(learned[f"{name}/lora_a"]): name for name in names}
    return [(by_inputs[len(w)], w) for w in (FIRST, SECOND)]
