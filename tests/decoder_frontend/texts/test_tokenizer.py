"""Tokenizers of GGUF files give the ids of the libraries that they were made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.support.errors import UsageError
from tests.decoder_frontend import written

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

TEXT = "It's 2026: Anna's lamp — the smörgåsbord of 1234 naïve 漢字!\n\n  def f(x):\n\treturn x  # 😀 done\r\n"
CHAT = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def trained() -> tuple[list[str], list[str]]:
    """Words and merges of a small byte-level vocabulary."""
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([TEXT, "the lamp of the def return"] * 8, vocab_size=330, show_progress=False)
    state = json.loads(made.to_str())["model"]
    words = sorted(state["vocab"], key=state["vocab"].get)
    return words, [" ".join(merge) for merge in state["merges"]]


def tokenizer(folder: Path, **changes: Any) -> Any:
    from converter.frontends.decoder import Tokenizer

    words, merges = trained()
    texts = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*words, *CONTROL],
        "tokenizer.ggml.token_type": [1] * len(words) + [3] * 3,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": len(words),
        "tokenizer.chat_template": CHAT,
        **changes,
    }
    texts = {key: value for key, value in texts.items() if value is not None}
    written.write(folder / "net.gguf", texts=texts)
    return Tokenizer(folder / "net.gguf")


def test_ids_are_those_of_the_library(tmp_path: Path) -> None:
    words, merges = trained()
    vocabulary = {word: i for i, word in enumerate(words)}
    plain = tokenizers.ByteLevelBPETokenizer(vocabulary, [tuple(m.split(" ")) for m in merges])
    ours = tokenizer(tmp_path)
    assert ours.encode(TEXT) == plain.encode(TEXT).ids
    assert ours.decode(ours.encode(TEXT)) == TEXT
    assert ours.size == len(words) + 3
    assert ours.ends == {len(words), len(words) + 2}


def test_answers_are_what_the_assistant_says(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "the lamp?"},
        {"role": "assistant", "content": "of Anna"},
        {"role": "user", "content": "def?"},
        {"role": "assistant", "content": "return"},
    ]
    made = ours.conversation(messages)
    end = ours.encode("<|im_end|>")
    said = np.split(made.ids, np.flatnonzero(np.diff(made.answers)) + 1)
    assert [ours.decode(part).strip() for part in said[1::2]] == ["of Anna", "return"]
    assert all(end[0] in part for part in said[1::2])
    assert ours.encode("<|im_start|>assistant\n") == said[0][-len(ours.encode("<|im_start|>assistant\n")) :].tolist()
    assert ours.prompt(messages[:2]) == said[0].tolist()


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    from converter.frontends.decoder import Tokenizer

    for changes, said in (
        ({"tokenizer.ggml.pre": "deepseek-llm"}, "splits texts by 'deepseek-llm'"),
        ({"tokenizer.ggml.tokens": None}, "has no tokenizer"),
        ({"tokenizer.ggml.model": "bert"}, "but 'bert'"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "of 2 kinds"),
        ({"tokenizer.ggml.merges": ["a"]}, "no pair"),
        ({"tokenizer.ggml.merges": ["a nothing"]}, "out of vocabulary"),
    ):
        with pytest.raises(UsageError, match=said):
            tokenizer(tmp_path, **changes)
    written.write(
        tmp_path / "other.gguf",
        arrays=written.weights("llama", written.metadata("llama")),
        texts={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.merges": ["a b"]},
    )
    with pytest.raises(UsageError, match="2 words, and its table of embeddings 96 rows"):
        Tokenizer(tmp_path / "other.gguf")
    talk = [{"role": "user", "content": "a"}]
    with pytest.raises(UsageError, match="no chat template"):
        tokenizer(tmp_path, **{"tokenizer.chat_template": None}).prompt(talk)
    with pytest.raises(UsageError, match="does not take"):
        tokenizer(tmp_path, **{"tokenizer.chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}).prompt(
            talk
        )
    with pytest.raises(UsageError, match="no message has the role"):
        tokenizer(tmp_path).conversation(talk)
    forgetful = "{{ messages[-1].content }}"
    with pytest.raises(UsageError, match="changes what was said before"):
        tokenizer(tmp_path, **{"tokenizer.chat_template": forgetful}).conversation(
            [
                {"role": r, "content": c}
                for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
            ]
        )


def test_pieces_are_merged_by_their_scores(tmp_path: Path) -> None:
    from converter.frontends.decoder import Tokenizer

    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    pieces = {"<unk>": 0.0, "▁": -9.0, "l": -9.1, "a": -9.2, "m": -9.3, "p": -9.4, "la": -2.0, "am": -1.0, "lamp": -3.0,
              "mp": -2.5, "▁la": -2.2, "▁lamp": -0.5, "▁l": -4.0}  # fmt: skip
    texts = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, *bytes_],
        "tokenizer.ggml.scores": [*pieces.values(), *[0.0] * 256],
        "tokenizer.ggml.token_type": [2, *[1] * (len(pieces) - 1), *[6] * 256],
        "tokenizer.ggml.unknown_token_id": 0,
    }
    written.write(tmp_path / "net.gguf", texts=texts)
    ours = Tokenizer(tmp_path / "net.gguf")
    names = [*pieces, *bytes_]
    # The best pair first: "am"; then nothing with it but "l" before and "p" behind, of which no piece is made.
    assert [names[i] for i in ours.encode("lamp é")] == ["▁l", "am", "p", "▁", "<0xC3>", "<0xA9>"]
    assert ours.decode(ours.encode("lamp é")) == "lamp é"


@pytest.mark.slow
def test_ids_of_a_real_file_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from converter.frontends.decoder import Tokenizer
    from converter.frontends.decoder.gguf_file import read_gguf
    from tests.tree import ROOT

    path = ROOT / ".models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    if not path.exists():
        pytest.skip("scripts/pretrained qwen2.5-coder-0.5b has not fetched it")
    metadata = read_gguf(path).metadata
    vocabulary = {word: i for i, word in enumerate(metadata["tokenizer.ggml.tokens"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(metadata["tokenizer.ggml.merges"]) + "\n")
    theirs = transformers.Qwen2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    ours = Tokenizer(path)
    texts = [
        TEXT,
        Path(__file__).read_text().replace("<|", "< |"),
        (ROOT / "README.md").read_text(),
        "e\u0301 ﬁ \u200b  x",
    ]
    for text in texts:
        assert ours.encode(text) == theirs(text)["input_ids"]
