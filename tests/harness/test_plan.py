"""Plans and data that would measure something else than the user thinks are refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from converter.support.errors import UsageError
from scripts.harness.plan import read_plan
from tests.harness.conftest import build_program
from tests.harness.test_files import plan_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('programs = ["{tiny}"]\nbuilds = {{old = "a", new = "b"}}', "the same in every build"),
        ('programs = ["tiny.tflite"]\nbuilds = {{"a/b" = "."}}', "part of a file's name"),
    ],
)
def test_builds_that_would_measure_or_write_something_else(
    text: str, words: str, program: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        read_plan(plan_of(tmp_path, text.format(tiny=program)))


def test_only_programs_with_a_batch_in_their_name_are_multiplied(tmp_path: Path) -> None:
    for batch in (2, 4):
        build_program(tmp_path / f"net-{batch}.tflite", batch=batch)
    build_program(tmp_path / "other.tflite", batch=8)
    bench = read_plan(plan_of(tmp_path, 'programs = ["net-{batch}.tflite", "other.tflite"]\nbatch_sizes = [2, 4]'))
    assert [(s.variant.program, s.variant.batch) for s in bench.subjects] == [("net-2", 2), ("net-4", 4), ("other", 8)]


def not_an_archive(path: Path) -> None:
    path.write_bytes(b"")


def one_array(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.ones((16, 12), "float32"))


def cut_archive(path: Path) -> None:
    np.savez(path, x=np.ones((16, 12), "float32"), y=np.zeros(16, "int32"))
    path.write_bytes(path.read_bytes()[:-40])


def broken_archive(path: Path) -> None:
    np.savez(path, x=np.ones((16, 12), "float32"), y=np.zeros(16, "int32"))
    data = bytearray(path.read_bytes())
    data[200:210] = bytes(10)
    path.write_bytes(bytes(data))


def scalar(path: Path) -> None:
    np.savez(path, x=np.ones((16, 12), "float32"), y=np.int32(1))


def words(path: Path) -> None:
    np.savez(path, x=np.ones((16, 12), "float32"), y=np.array(["a"] * 16))


def halves(path: Path) -> None:
    np.savez(path, x=np.ones((16, 12), "float32"), y=np.full(16, 0.5))


def too_large(path: Path) -> None:
    np.savez(path, x=np.full((16, 12), 1e39), y=np.zeros(16, "int32"))


def nan(path: Path) -> None:
    np.savez(path, x=np.full((16, 12), np.nan, "float32"), y=np.zeros(16, "int32"))


@pytest.mark.parametrize(
    "make", [not_an_archive, one_array, cut_archive, broken_archive, scalar, words, halves, too_large, nan]
)
def test_data_that_is_none_is_refused_in_words(make: Callable[[Path], None], program: Path, tmp_path: Path) -> None:
    make(tmp_path / "data.npz")
    with pytest.raises(UsageError, match=r"data\.npz"):
        read_plan(plan_of(tmp_path, f'programs = ["{program}"]\ndata = "data.npz"'))
