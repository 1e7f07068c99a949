"""A language model learns examples from the command line, and goes on where a killed run stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.tools.learn import Learned, learn
from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)
from tests.decoder_frontend import nets, written

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
LINES: list[dict[str, Any]] = [
    {"prompt": "ab", "answer": "cde"},
    {"messages": [{"role": "user", "content": "zo"}, {"role": "assistant", "content": "fgh"}]},
]


def prepare(folder: Path) -> None:
    """Write a small model and its examples, where they are not there."""
    if not (folder / "net.gguf").exists():
        written.write_small_model(folder / "net.gguf")
    if not (folder / "mine.jsonl").exists():
        (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, LINES)))


def taught(folder: Path, **options: Any) -> Learned:
    prepare(folder)
    usual = {"out": folder / "adapter", "epochs": 4, "learning_rate": 0.01, "update": "lora-4:all-linear", "every": 0.0}
    return learn(folder / "net.gguf", folder / "mine.jsonl", **(usual | options))


class Killed(Exception):
    """As if the process had ended there."""


def test_a_killed_training_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = taught(tmp_path / "whole", asks=("xy",))
    assert whole.perplexity[1] < 0.8 * whole.perplexity[0]
    assert [answer[:2] for answer in whole.answers] == [("ab", "cde"), ("zo", "fgh")]
    assert [question for question, _, _ in whole.others] == ["xy"]
    train, left = TrainingSession.train, [5]

    def some(session: TrainingSession, *given: Any, **options: Any) -> float:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return train(session, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingSession, "train", some)
        with pytest.raises(Killed):
            taught(tmp_path / "killed", asks=("xy",))
    assert not (tmp_path / "killed/adapter").exists()
    said = list[str]()
    again = taught(tmp_path / "killed", asks=("xy",), say=said.append)
    assert any(line.startswith("going on behind step 5 of") for line in said)
    assert (again.perplexity, again.answers, again.others) == (whole.perplexity, whole.answers, whole.others)
    tensors = [load_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("whole", "killed")]
    assert all(np.array_equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    with pytest.raises(UsageError, match="belongs to a training with another epochs: pass its first values"):
        taught(tmp_path / "killed", asks=("xy",), epochs=5)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: "),
        ('{"texts": "a"}', r"line 2: expected .*, and it has texts"),
        ('{"text": " "}', "line 2: text is a text that is not empty"),
        ('{"prompt": "a", "answer": " "}', "line 2: prompt and answer are texts"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 2: no message has the role assistant"),
        ('{"messages": "a"}', "line 2: messages is a list"),
    ],
)
def test_lines_that_are_no_examples_are_named(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(LINES[0])}\n{line}\n")
    with pytest.raises(UsageError, match=said):
        taught(tmp_path)
    assert not (tmp_path / "adapter.learning").exists()


def test_what_is_wrong_is_said_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.gguf").mkdir()
    for options, said in (
        ({"length": 4}, r"the example in line . has .* tokens and a row 4: --length"),
        ({"out": tmp_path / "file/adapter"}, "cannot write"),
        ({"out": tmp_path / "file"}, "a file is there, and the adapter is a folder"),
        ({"out": tmp_path / "folder.gguf"}, "a folder is there, and the adapter is a file"),
        ({"out": tmp_path / "adapter.bin"}, r"a folder for PEFT, or a \.gguf file for llama\.cpp"),
        (
            {"out": tmp_path / "adapter.gguf", "update": "dora-2"},
            r"dora-2 trains lengths of columns.* no place in a \.gguf",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            taught(tmp_path, **options)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".learning")]


@pytest.mark.quick
def test_the_command_says_what_was_learned(run: Run, tmp_path: Path) -> None:  # noqa: F811 (the fixture)
    prepare(tmp_path)
    (tmp_path / "mine.jsonl").write_text("\n".join([json.dumps(LINES[0]), json.dumps({"text": "fgh"})]))
    options = [
        "--epochs",
        "1",
        "--update",
        "lora-2:q_proj",
        "--no-rehearse",
        "--keep-base",
        "0.5",
        "--ask",
        "xy",
        "--out",
        "mine.gguf",
    ]
    done = run("learn", "net.gguf", "mine.jsonl", *options)
    assert done.code == 0, done.err
    assert "xy\n  not taught; " in done.out
    assert "perplexity of held-out answers" in done.out
    assert "wrote mine.gguf" in done.out
    assert "of 2, loss" in done.err
    with TrainingSession(tmp_path / "mine.gguf.learning/personal.tflite") as session:
        assert session.manifest.keep_base == 0.5
    assert gguf.GGUFReader(tmp_path / "mine.gguf").fields["adapter.type"].contents() == "lora"


def test_a_folder_without_a_template_learns_prompts_with_answers(tmp_path: Path) -> None:
    """Of transformers, as its tokenizer is saved; lines are taken as they are, and answers alone have a loss."""
    entries = written.metadata("qwen2", context_length=128, feed_forward_length=512)
    config = {
        "model_type": "qwen2",
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
    }
    nets.write_folder(tmp_path / "net", config, written.weights("qwen2", entries, 60))
    words = {chr(number): number - 65 for number in range(65, 123)} | {"<end>": 58, "<pad>": 59}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    made.add_special_tokens(["<end>"])
    made.save(str(tmp_path / "net/tokenizer.json"))
    (tmp_path / "net/tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    lines = [{"prompt": "ab", "completion": "cde"}, {"prompt": "xy", "completion": "fgh"}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = {"epochs": 12, "learning_rate": 0.01, "update": "lora-4:all-linear", "frozen": "float32"}
    found = learn(tmp_path / "net", tmp_path / "mine.jsonl", tmp_path / "adapter", **options)
    assert found.perplexity[1] < 0.5 * found.perplexity[0]
    assert [(wanted, now) for _, wanted, _, now in found.answers] == [("cde", "cde"), ("fgh", "fgh")]
    found_there = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert found_there["base_model_name_or_path"] == "net"
