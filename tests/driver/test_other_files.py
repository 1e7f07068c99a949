"""Files of other tools in the place of a model are refused by what they are, and what to build instead."""

from __future__ import annotations

from pathlib import Path

import pytest

import pocketune
from converter.support.errors import UsageError

KINDS = {
    "model.task": "a bundle of MediaPipe",
    "model.litertlm": "a bundle of LiteRT-LM",
    "model.onnx": "a model of ONNX",
    "model.pte": "a program of ExecuTorch",
    "model.pt": "a pickle of PyTorch",
    "model.safetensors": "weights without their model",
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_has_a_sentence_of_its_own(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"anything")
    for options in ({}, {"length": 8}):
        with pytest.raises(UsageError, match=KINDS[name]):
            pocketune.build(tmp_path / name, **options)
    with pytest.raises(UsageError, match=KINDS[name]):
        pocketune.compare_schemes(str(tmp_path / name), ["full"])


@pytest.mark.parametrize("name", ["net.gguf", "net.tflite", "net.keras", "net.task"])
def test_pointers_of_git_lfs_are_no_models(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(UsageError, match=r"a pointer of Git LFS.*git lfs pull"):
        pocketune.build(tmp_path / name, length=8)


def test_pointers_in_a_folder_are_none_either(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UsageError, match="a pointer of Git LFS"):
        pocketune.build(tmp_path, length=8)
