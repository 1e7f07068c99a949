"""Buffers behind the flatbuffer: in the stock interpreter, and for all who read files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.emit import emit
from converter.backend.emit.emit import Subgraph, draft
from converter.ir import INT4, Builder, Graph, TensorType
from converter.program.flatbuffer import buffers
from converter.program.flatbuffer import schema as written
from converter.program.flatbuffer.buffers import Buffers
from converter.program.flatbuffer.metadata import read_buffers
from converter.runtime import TrainingSession
from converter.support.collecting import room_on_disk
from converter.support.errors import UsageError
from converter.support.files import Mapped
from converter.support.litert import Interpreter
from examples import llama
from tests.backend.stock import run

ROWS, WIDTH = 64, 32
INTEGERS = np.random.default_rng(0).integers(-7, 8, (ROWS, WIDTH)).astype(INT4)
NUMBERS = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_LEAST_OUTSIDE", 128)


def whole_and_parts(stored: np.ndarray) -> Graph:
    """The matrix as float32, and its upper and its lower half."""
    b = Builder()
    x = b.input("x", TensorType((1,)))
    for name, array in {"upper": stored[:32], "whole": stored, "lower": stored[32:]}.items():
        b.graph.outputs[name] = b(tfl.Add(), b(tfl.CastWeight(), b.constant(array)), x)
    return b.graph


@pytest.mark.parametrize("stored", [INTEGERS, NUMBERS], ids=["int4", "float32"])
@pytest.mark.parametrize("xnnpack", [True, False])
def test_a_part_of_a_matrix_is_stored_with_it(stored: np.ndarray, xnnpack: bool) -> None:
    files = [
        draft([Subgraph("main", whole_and_parts(stored))], {}, "", shares=shares).file() for shares in (False, True)
    ]
    assert len(files[1]) < len(files[0]) - 0.7 * stored.size * (0.5 if stored.dtype == INT4 else 4)
    assert sorted(map(bytes, read_buffers(files[0]))) == sorted(map(bytes, read_buffers(files[1])))
    for data in files:
        found = run(data, {"x": np.ones(1, np.float32)}, xnnpack)
        np.testing.assert_array_equal(found["whole"], stored.astype(np.float32) + 1)
        np.testing.assert_array_equal(np.concatenate([found["upper"], found["lower"]]), found["whole"])


def test_what_begins_between_two_bytes_is_stored_apart() -> None:
    """So is what is not as aligned as the kernels want it."""
    for first, last in ((1, 33), (3, 64)):
        held = Buffers(shares=True)
        odd = INTEGERS.reshape(-1)[first * 15 : last * 15]
        numbers = [held.add(INTEGERS), held.add(odd)]
        builder = written.roomy_builder(held.nbytes)
        packed = written.table(builder, "Model", Buffers=written.offset_vector(builder, held.write(builder)))
        builder.Finish(packed, file_identifier=written.FILE_IDENTIFIER)
        data = held.file(builder)
        assert [bytes(read_buffers(data)[n]) for n in numbers] == [
            written.in_pairs(a.reshape(-1).view(np.uint8)).tobytes() for a in (INTEGERS, odd)
        ]
        assert len(data) > INTEGERS.size // 2 + odd.size // 2


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A program whose file is larger than a flatbuffer, as it were, and is made on the disk; the same in one piece."""
    model = llama.build(layers=1, width=64, heads=4, key_heads=2, length=8, vocabulary=131)
    options: Any = {"loss": "next_token", "update": "head", "optimizer": "adam", "batch": 2, "check": False}
    plain = converter.build(model, **options)
    monkeypatch.setattr(written, "LARGEST_FLATBUFFER", 1 << 12)
    monkeypatch.setattr(emit, "ON_DISK", 1 << 12)
    return plain, converter.build(model, **options)


def test_a_large_program_trains_alike(large: Any, tmp_path: Path) -> None:
    plain, outside = large
    assert isinstance(plain.data, bytes)
    assert isinstance(outside.data, Mapped)
    held = schema.Model.GetRootAs(outside.data, 0)
    assert sum(held.Buffers(i).Offset() > 0 for i in range(held.BuffersLength())) > 5
    outside.write(tmp_path / "large.tflite")
    x, y = llama.sample_batch(2, length=8, vocabulary=131)
    losses = []
    for program in (plain.data, outside.data, tmp_path / "large.tflite"):
        with TrainingSession(program) as session:
            losses.append([session.train(x, y) for _ in range(3)])
    outside.export_inference(tmp_path / "2.tflite")
    plain.export_inference(tmp_path / "1.tflite")
    assert losses[0] == losses[1] == losses[2]
    assert (tmp_path / "1.tflite").read_bytes() == (tmp_path / "2.tflite").read_bytes()


def test_metadata_lie_where_the_runtime_looks_for_them(large: Any) -> None:
    """In the flatbuffer: without the order of the operators it would unpack all matrices before the first product."""
    held = schema.Model.GetRootAs(large[1].data, 0)
    found = {(entry := held.Metadata(i)).Name(): held.Buffers(entry.Buffer()) for i in range(held.MetadataLength())}
    assert b"model_control_dependencies" in found
    assert all(buffer.DataLength() for buffer in found.values())
    kept = [operators(program.data) for program in large]
    assert kept[0] == kept[1]


def operators(data: Any) -> list[str]:
    """The names of the stock interpreter's operators, partitions of the delegate among them."""
    interpreter = Interpreter(model_content=bytes(data), num_threads=1)
    interpreter.allocate_tensors()
    return [details["op_name"] for details in interpreter._get_ops_details()]


def test_an_old_runtime_is_given_no_such_file(monkeypatch: pytest.MonkeyPatch) -> None:
    model = jax_frontend.Model(lambda p, x: x @ p["w"], {"w": np.ones((64, 64), np.float32)}, [TensorType((1, 64))])
    options: Any = {"loss": "mse", "update": "full", "check": False}
    monkeypatch.setattr(written, "LARGEST_FILE", 1 << 12)
    monkeypatch.setattr(written, "LARGEST_FLATBUFFER", 1 << 12)
    with pytest.raises(converter.UnsupportedError, match="ends at 2 GiB"):
        converter.build(model, target="tflite-2.16", **options)


@pytest.mark.quick
def test_a_full_disk_is_said(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageError, match=r"no room for 1.0 MiB.*TMPDIR"):
        room_on_disk(1 << 20)
    monkeypatch.setattr(Buffers, "file_on_disk", lambda *_: full(0, 0, 0))
    with pytest.raises(UsageError, match="No space left on device"):
        converter.build(llama.build(layers=1, width=64, heads=4, key_heads=2, length=8, vocabulary=131), check=False)
