"""A language model learns examples from the command line, and goes on where a killed run stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.tools.learn import Plan, learn
from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)
from tests.decoder_frontend import written

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
LINES: list[dict[str, Any]] = [
    {"prompt": "ab", "answer": "cde"},
    {"messages": [{"role": "user", "content": "zo"}, {"role": "assistant", "content": "fgh"}]},
]


def plan(folder: Path, **options: Any) -> Plan:
    if not (folder / "net.gguf").exists():
        written.write_small_model(folder / "net.gguf")
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    usual = {"out": folder / "adapter", "epochs": 4, "learning_rate": 0.01, "update": "lora-4:all-linear", "every": 0.0}
    return Plan(folder / "net.gguf", folder / "mine.jsonl", **(usual | options))


class Killed(Exception):
    """As if the process had ended there."""


def test_a_killed_training_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = learn(plan(tmp_path / "whole"))
    assert whole.perplexity[1] < 0.8 * whole.perplexity[0]
    assert [answer[:2] for answer in whole.answers] == [("ab", "cde"), ("zo", "fgh")]
    train, left = TrainingSession.train, [5]

    def some(session: TrainingSession, *given: Any, **options: Any) -> float:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return train(session, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingSession, "train", some)
        with pytest.raises(Killed):
            learn(plan(tmp_path / "killed"))
    assert not (tmp_path / "killed/adapter").exists()
    said = list[str]()
    again = learn(plan(tmp_path / "killed"), said.append)
    assert any(line.startswith("going on behind step 5 of") for line in said)
    assert (again.perplexity, again.answers) == (whole.perplexity, whole.answers)
    tensors = [load_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("whole", "killed")]
    assert all(np.array_equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    with pytest.raises(UsageError, match="is of a training with another epochs: give what it was begun with"):
        learn(plan(tmp_path / "killed", epochs=5))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: "),
        ('{"text": "a"}', r"line 2: expected .*, and it has text"),
        ('{"prompt": "a", "answer": " "}', "line 2: prompt and answer are texts"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 2: no message has the role assistant"),
        ('{"messages": "a"}', "line 2: messages is a list"),
    ],
)
def test_lines_that_are_no_examples_are_named(line: str, said: str, tmp_path: Path) -> None:
    asked = plan(tmp_path)
    asked.examples.write_text(f"{json.dumps(LINES[0])}\n{line}\n")
    with pytest.raises(UsageError, match=said):
        learn(asked)
    assert not (tmp_path / "adapter.learning").exists()


def test_what_is_wrong_is_said_before_anything_is_built(tmp_path: Path) -> None:
    asked = plan(tmp_path, length=4)
    with pytest.raises(UsageError, match=r"the example in line . has .* tokens and a row 4: --length"):
        learn(asked)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        learn(plan(tmp_path, out=tmp_path / "file/adapter"))


def test_the_command_says_what_was_learned(run: Run, tmp_path: Path) -> None:  # noqa: F811 (the fixture)
    plan(tmp_path)
    done = run("learn", "net.gguf", "mine.jsonl", "--epochs", "1", "--update", "lora-2:q_proj", "--no-rehearse")
    assert done.code == 0, done.err
    assert "perplexity of held-out answers" in done.out
    assert "wrote adapter" in done.out
    assert "of 2, loss" in done.err
    assert (tmp_path / "adapter/adapter_config.json").exists()
