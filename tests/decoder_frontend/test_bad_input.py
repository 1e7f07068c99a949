"""What is not of a language model, or has no room: refused by a sentence, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketune
from converter.support.errors import UsageError
from tests.cli.conftest import Run
from tests.decoder_frontend import written

IDS = np.arange(8, dtype=np.int32)[None]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pocketune.Program:
    path = tmp_path_factory.mktemp("net") / "net.gguf"
    written.write(path)
    return pocketune.build(path, length=8, update="lora-2", batch=1, optimizer="adam")


@pytest.mark.quick
@pytest.mark.parametrize("number", [96, -1])
def test_ids_of_another_tokenizer_are_refused(number: int, program: pocketune.Program) -> None:
    ids = IDS.copy()
    ids[0, 5] = number
    with pocketune.TrainingSession(program.data) as session:
        session.train(IDS, IDS)
        before = {name: array.copy() for name, array in session.state().items()}
        for call in (session.train, session.evaluate, lambda x, y: session.infer(x)):
            with pytest.raises(UsageError, match="an index in an input is out of range"):
                call(ids, IDS)
        for name, array in session.state().items():
            np.testing.assert_array_equal(array, before[name], strict=True)
    with pytest.raises(UsageError, match="labels go from 0 to 95"):
        pocketune.TrainingSession(program.data).train(IDS, np.full_like(IDS, 96))


def test_a_full_disk_leaves_what_was_there(
    program: pocketune.Program, full: Callable[[int], None], tmp_path: Path
) -> None:
    with pocketune.TrainingSession(program.data) as session:
        session.save(tmp_path / "net.state")
        (tmp_path / "net.tflite").write_bytes(b"an older program")
        kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
        session.train(IDS, IDS)
        full(0)
        writers: list[Callable[[], Any]] = [
            lambda: session.save(tmp_path / "net.state"),
            lambda: session.save(tmp_path / "other.state"),
            lambda: program.write(tmp_path / "net.tflite"),
            lambda: program.export_inference(tmp_path / "net.tflite"),
        ]
        for write in writers:
            with pytest.raises(UsageError, match=r"cannot write .*: No space left on device"):
                write()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept


@pytest.mark.slow
def test_a_state_of_another_base_is_refused(program: pocketune.Program, tmp_path: Path) -> None:
    arrays = written.weights("llama", written.metadata("llama"))
    written.write(tmp_path / "other.gguf", arrays={name: array * 1.01 for name, array in arrays.items()})
    other = pocketune.build(tmp_path / "other.gguf", length=8, update="lora-2", batch=1, optimizer="adam")
    with pocketune.TrainingSession(other.data) as session:
        session.save(tmp_path / "other.state")
    with (
        pocketune.TrainingSession(program.data) as session,
        pytest.raises(UsageError, match=r"other\.state: it belongs to another program: the frozen weights differ"),
    ):
        session.restore(tmp_path / "other.state")


def test_the_command_line_says_it_too(run: Run, full: Callable[[int], None], tmp_path: Path) -> None:
    written.write(tmp_path / "net.gguf")
    whole = (tmp_path / "net.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-1])
    (tmp_path / "net.tflite").write_bytes(b"an older program")
    how = ("--length", "8", "--update", "head", "--batch", "1", "--signatures", "train", "--no-check")
    for arguments, said in (
        (("cut.gguf",), "cut.gguf is damaged: the tensor"),
        (("none.gguf",), "cannot read none.gguf: No such file or directory"),
        (("net.gguf", "--length", "65"), "from 1 to the 64 that net.gguf was trained with, not 65"),
        (("net.gguf",), "cannot write net.tflite: No space left on device"),
    ):
        full(0)
        ran = run("build", *how, *arguments, "--out", "net.tflite")
        assert (ran.code, said in ran.err) == (UsageError.exit_code, True), ran.err


@pytest.mark.parametrize("rows", [pocketune.runtime.rows_of_texts, pocketune.runtime.packed_texts])
def test_texts_that_are_no_rows_are_refused(rows: Callable[..., Any]) -> None:
    for texts, length, said in (
        ([[1, 2], [1] * 10], 8, "text 1 has 10 tokens, and a row holds 8 and the one after them"),
        ([[1]], 8, "text 0: token ids are a list of two or more"),
        ([[1, -5, 3]], 8, "text 0: -5 to 3 are no token ids"),
        ([[1, 1 << 31]], 8, "are no token ids"),
        (["hello"], 8, "text 0: token ids are"),
        ([[1, 2]], 0, "length is the number of tokens of a row"),
        ([[1, 2]], "8", "length is the number of tokens of a row"),
    ):
        with pytest.raises(UsageError, match=said):
            rows(texts, length)
