"""A wake word from a dozen takes, on openWakeWord's file."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

import pocketune
from examples import wake_word
from examples.weights import packages

FETCHED = [packages.FOLDER / name for name in ("pyopen-wakeword==1.1.0", "espeakng-loader==0.2.4")]


@pytest.mark.quick
@pytest.mark.skipif(not all(map(Path.is_dir, FETCHED)), reason="scripts/pretrained has not been run")
def test_a_wake_word_is_learned_from_a_dozen_takes() -> None:
    x, y = wake_word.synthetic(takes=12, seed=0)
    program = pocketune.build(wake_word.build(), update="head", optimizer="adam", batch=8)
    with pocketune.TrainingSession(program.data) as session:
        session.fit(x, y, epochs=5, learning_rate=0.005, seed=0, progress=False)
        assert session.evaluate(*wake_word.synthetic(takes=12, seed=1))["accuracy"] > 0.9


def test_takes_are_read_as_they_were_written(tmp_path: Path) -> None:
    samples = np.arange(-800, 800, dtype=np.int16)
    for name, rate in (("a.wav", 16_000), ("b.wav", 8_000)):
        with wave.open(str(tmp_path / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples.tobytes())
    with pytest.raises(ValueError, match=r"b\.wav: one channel"):
        wake_word.read_takes(tmp_path)
    (tmp_path / "b.wav").unlink()
    np.testing.assert_array_equal(wake_word.read_takes(tmp_path)[0], samples)
