"""GGUF files that are damaged, or hold something else, are refused by a sentence that says where."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind

import converter
from converter.frontends import decoder as decoder_frontend
from converter.support.errors import UsageError
from tests.decoder_frontend import written


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "net.gguf"
    entries = written.metadata("qwen2", block_count=1)
    texts = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    written.write(path, "qwen2", entries, kind=Kind.Q8_0, texts=texts)
    return path.read_bytes()


def refusal(data: bytes, path: Path) -> str:
    """What is said of a file."""
    path.write_bytes(data)
    with pytest.raises(UsageError) as refused:
        decoder_frontend.Model(path, length=8).parameters()
    assert str(path) in str(refused.value)
    return str(refused.value)


def suffix(data: bytes, name: str, skip: int) -> int:
    """The place so many bytes behind a name in a file."""
    return data.index(name.encode()) + len(name) + skip


def put(data: bytes, place: int, form: str, number: int) -> bytes:
    packed = struct.pack(form, number)
    return data[:place] + packed + data[place + len(packed) :]


#: What is done to the file, and what the refusal says. Behind the name of a matrix stand the number of its axes, these,
#: its type and its offset.
MATRIX = "blk.0.ffn_up.weight"
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another file": (lambda d: b"PK\3\4" + d[4:], "is no GGUF file"),
    "empty": (lambda d: b"", "is empty. Copy or download it again"),
    "version": (lambda d: put(d, 4, "<I", 9), "version 9"),
    "byte order": (lambda d: put(d, 4, ">I", 3), "other byte order"),
    "tensors": (lambda d: put(d, 8, "<Q", 1 << 40), "1,099,511,627,776 tensors"),
    "entries": (lambda d: put(d, 16, "<Q", 1 << 40), "entries of metadata"),
    "words": (lambda d: put(d, suffix(d, "tokenizer.ggml.tokens", 8), "<Q", 1 << 30), "texts in tokenizer.ggml.tokens"),
    "word": (lambda d: put(d, suffix(d, "tokenizer.ggml.tokens", 16), "<Q", 1 << 62), "ends in tokenizer.ggml.tokens"),
    "entry's type": (lambda d: put(d, suffix(d, "qwen2.block_count", 0), "<I", 77), "qwen2.block_count is of type 77"),
    "axes": (lambda d: put(d, suffix(d, MATRIX, 0), "<I", 7), f"{MATRIX} has 7 axes"),
    "shape": (lambda d: put(d, suffix(d, MATRIX, 12), "<Q", 0), f"{MATRIX} has the shape [0, 32]"),
    "other shape": (lambda d: put(d, suffix(d, MATRIX, 12), "<Q", 32), f"{MATRIX} has the shape [32, 32], and by"),
    "row": (lambda d: put(d, suffix(d, MATRIX, 4), "<Q", 33), f"{MATRIX} has rows of 33"),
    "type": (lambda d: put(d, suffix(d, MATRIX, 20), "<I", 999), f"{MATRIX} is stored in type 999"),
    "offset": (lambda d: put(d, suffix(d, MATRIX, 24), "<Q", 1 << 33), f"{MATRIX} ends at byte"),
    "odd offset": (lambda d: put(d, suffix(d, MATRIX, 24), "<Q", 5), f"{MATRIX} begins at 5"),
    "same place": (lambda d: put(d, suffix(d, MATRIX, 24), "<Q", 0), "lie in the same place"),
    "word too few": (lambda d: put(d, suffix(d, "token_embd.weight", 12), "<Q", 2), "3 words, and its table"),
    "end": (lambda d: d[:-40], "is cut off"),
    "missing": (lambda d: put(d, suffix(d, "qwen2.block_count", 4), "<I", 2), "lacks model.layers.1.self_attn.q_proj"),
    "other tensor": (lambda d: d.replace(MATRIX.encode(), b"blk.0.ffn_yp.weight"), "the tensor blk.0.ffn_yp.weight"),
    "twice": (lambda d: d.replace(MATRIX.encode(), b"blk.0.ffn_up.weighs").replace(b"blk.0.ffn_down.weight", b"x" * 21)
              .replace(b"output_norm.weight", b"token_embd.weight\0"), "token_embd.weight\0"),
    "architecture": (lambda d: d.replace(b"qwen2", b"mamba"), "architecture 'mamba'"),
    "number": (lambda d: put(d, suffix(d, "attention.head_count", 4), "<I", 0), "qwen2.attention.head_count is 0"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(what: str, whole: bytes, tmp_path: Path) -> None:
    change, said = DAMAGE[what]
    assert said in refusal(change(whole), tmp_path / "net.gguf")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.gguf")
    with pytest.raises(UsageError, match="is a FIFO"):
        decoder_frontend.Model(tmp_path / "net.gguf", length=8)


def test_a_file_may_end_anywhere(whole: bytes, tmp_path: Path) -> None:
    for length in [*range(1, 400, 3), *range(400, len(whole), 997)]:
        refusal(whole[:length], tmp_path / "net.gguf")


def test_any_byte_of_the_header_may_be_wrong(whole: bytes, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "net.gguf"
    header = whole.index(b"blk.0.ffn_up.weight") + 200
    refused = 0
    for place in rng.integers(4, header, 400):
        path.write_bytes(put(whole, int(place), "<B", int(rng.integers(0, 256))))
        try:
            model = decoder_frontend.Model(path, length=8)
            for tensor in model.parameters().values():
                tensor.rows(0, 1)
        except UsageError:
            refused += 1
    assert refused > 200


def test_what_a_net_of_another_kind_asks_for_is_refused(tmp_path: Path) -> None:
    for key, value, said in (
        ("expert_count", 8, "asks for llama.expert_count 8"),
        ("rope.scaling.type", "ntk", "stretched by 'ntk'"),
        ("rope.dimension_count", 4, "of which 4 rotate"),
    ):
        written.write(tmp_path / "net.gguf", "llama", written.metadata("llama", **{key: value}))
        with pytest.raises(UsageError, match=said):
            decoder_frontend.Model(tmp_path / "net.gguf", length=8)


def test_what_a_file_says_for_people_is_on_the_card(tmp_path: Path) -> None:
    said = {
        "general.name": "Small",
        "general.organization": "Example",
        "general.license": "apache-2.0",
        "general.base_model.0.repo_url": "https://example.org/base",
        "general.description": "",
    }
    written.write(tmp_path / "net.gguf", entries=written.metadata("llama", block_count=1), texts=said)
    options = {"update": "lora-1:q_proj", "batch": 1, "length": 4, "check": False}
    made = converter.build(tmp_path / "net.gguf", card={"license": "MIT"}, **options).manifest
    assert made.card == {
        "name": "Small",
        "author": "Example",
        "license": "MIT",
        "base_model": "https://example.org/base",
    }
