"""Text generation with kept keys and values gives what the whole row gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketune
from converter.backend.prepare import hidden_in_parts
from converter.ir import INT4
from converter.support.errors import NumericError, UsageError
from pocketune import runtime
from tests.decoder_frontend import reference, written

LENGTH = 48


@pytest.fixture(scope="module", params=[pytest.param("qwen2", marks=pytest.mark.slow), "gemma3"])
def taught(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A session that has learned, and where its file is."""
    folder, architecture = tmp_path_factory.mktemp("generation"), request.param
    entries = written.metadata(architecture)
    arrays = written.write(folder / "net.gguf", architecture, entries)
    program = pocketune.build(
        folder / "net.gguf",
        length=LENGTH,
        update="lora-2:q_proj,v_proj",
        optimizer="adam",
        batch=1,
        signatures=("train", "infer", "generate"),
    )
    with pocketune.TrainingSession(program.data) as session:
        row = np.random.default_rng(2).integers(0, 96, (1, LENGTH)).astype(np.int32)
        before = list(runtime.generate(session, row[0, :5], most=4))
        assert before == by_reference(architecture, entries, arrays, row[0, :5].tolist(), 4)
        for _ in range(12):
            session.train(row, np.roll(row, -1, 1), 0.05)
        yield session


def by_reference(architecture: str, entries: Any, arrays: Any, ids: list[int], most: int) -> list[int]:
    """The likeliest tokens, by the logits of the whole text each time."""
    text = list(ids)
    for _ in range(most):
        logits = reference.logits(architecture, entries, arrays, np.array(text), np.zeros(len(text)))
        text.append(int(logits[-1].argmax()))
    return text[len(ids) :]


def likeliest(session: Any, ids: list[int], most: int) -> list[int]:
    """The same by `infer`."""
    text = list(ids)
    while len(text) < min(len(ids) + most, LENGTH + 1):
        row = np.zeros((1, LENGTH), np.int32)
        row[0, : len(text)] = text
        text.append(int(session.infer(row)[0, len(text) - 1].argmax()))
    return text[len(ids) :]


@pytest.mark.parametrize("tokens", [1, 31, 33, 48, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 32, 45))])
def test_what_is_written_is_what_the_whole_row_gives(taught: Any, tokens: int) -> None:
    ids = np.random.default_rng(tokens).integers(0, 96, tokens).tolist()
    assert list(runtime.generate(taught, ids, most=10)) == likeliest(taught, ids, 10)


def test_it_ends_where_it_is_told_to(taught: Any) -> None:
    ids = [1, 2, 3]
    written_on = list(runtime.generate(taught, ids, most=8))
    assert list(runtime.generate(taught, ids, most=3)) == written_on[:3]
    end = written_on[4]
    assert list(runtime.generate(taught, ids, most=8, stop=[end])) == written_on[: written_on.index(end)]
    assert list(runtime.generate(taught, ids, most=0)) == []


def test_draws_follow_the_probabilities(taught: Any) -> None:
    row = np.zeros((1, LENGTH), np.int32)
    row[0, :3] = [4, 5, 6]
    logits = taught.infer(row)[0, 2].astype(np.float64)
    shares = np.exp(logits / 0.7) / np.exp(logits / 0.7).sum()
    drawn = [next(runtime.generate(taught, [4, 5, 6], 1, (), 0.7, 96, 1.0, seed)) for seed in range(300)]
    found = np.bincount(drawn, minlength=96) / len(drawn)
    assert np.abs(found - shares).max() < 4 * np.sqrt(0.25 / len(drawn))
    few = {next(runtime.generate(taught, [4, 5, 6], 1, (), 5.0, 3, 1.0, seed)) for seed in range(60)}
    assert few == set(np.argsort(-logits)[:3])
    assert list(runtime.generate(taught, [4], 6, temperature=1, seed=1)) == list(
        runtime.generate(taught, [4], 6, temperature=1, seed=1)
    )


@pytest.mark.parametrize(
    ("ids", "options", "said"),
    [
        ([], {}, "one or more"),
        ([1.5], {}, "whole numbers"),
        ([1] * (LENGTH + 1), {}, "a row of this program holds 48"),
        ([96], {}, "the tokenizer is that of another model"),
        ([-1], {}, "the tokenizer is that of another model"),
        ([1], {"temperature": -1}, "temperature is 0 or more"),
        ([1], {"top_p": 0}, "top_p above 0"),
    ],
)
def test_what_cannot_be_written_on_is_refused(taught: Any, ids: Any, options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        runtime.generate(taught, ids, **options)


def test_logits_that_are_not_finite_give_no_token(taught: Any, tmp_path: Path) -> None:
    taught.save(tmp_path / "good.state")
    row = np.zeros((1, LENGTH), np.int32)
    taught.train(row, row, 1e30)
    for temperature in (0, 0.7):
        with pytest.raises(NumericError, match="not finite: the weights are too large"):
            next(runtime.generate(taught, [1, 2], temperature=temperature))
    taught.restore(tmp_path / "good.state")


def test_other_programs_do_not_generate(tmp_path: Path) -> None:
    model = pocketune.Model(lambda params, x: x @ params, np.eye(3, dtype=np.float32), [np.zeros((1, 3), np.float32)])
    with pytest.raises(UsageError, match="'generate' is of language models"):
        pocketune.build(model, loss="mse", signatures=("train", "generate"))
    program = pocketune.build(model, loss="mse", signatures=("train", "infer"))
    with pocketune.TrainingSession(program.data) as session, pytest.raises(UsageError, match="cannot generate"):
        runtime.generate(session, [1])


def test_matrices_that_a_step_meets_in_parts_are_so_in_all_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_in_parts, "OF_MATRIX", 1 << 12)
    hidden = 512
    written.write(tmp_path / "net.gguf", "qwen2", written.metadata("qwen2", feed_forward_length=hidden))
    options: dict[str, Any] = {
        "update": "lora-2:q_proj,v_proj",
        "frozen": "int4",
        "signatures": ("train", "infer", "generate"),
        "optimizer": "sgd",
    }
    texts = []
    for blocks in ("off", "on"):
        program = pocketune.build(tmp_path / "net.gguf", length=LENGTH, batch=1, blocks=blocks, check=False, **options)
        matrices = [v.shape for graph in program.signatures.values() for v in graph.constants if v.dtype == INT4]
        assert any(hidden in shape for shape in matrices) == (blocks == "off")
        with pocketune.TrainingSession(program.data) as session:
            texts.append(list(runtime.generate(session, [1, 2, 3], most=6)))
    assert texts[0] == texts[1]
