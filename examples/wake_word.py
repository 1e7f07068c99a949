"""A wake word of one person's own, taught to openWakeWord's embedding from the `.tflite` that apps ship.

The file reads three quarters of a second as 76 frames of 32 mel bands, which another file of the package makes of
sound; a fresh dense layer behind its 96 numbers learns the word. Takes are WAV files of the person, or a synthetic
voice's.
"""

from __future__ import annotations

import wave
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

import pocketune
from examples.data.spoken import RATE, say
from examples.weights.packages import resource

#: What the net reads at once, and how far apart windows begin, in frames of 10 ms.
FRAMES, BANDS, EVERY = 76, 32, 8
#: Samples of a frame.
_HOP = 160
_PACKAGE, _FOLDER = "pyopen-wakeword==1.1.0", "pyopen_wakeword/models"
OTHER_WORDS = (
    *(
        "good morning",
        "what time is it",
        "turn off the light",
        "play some music",
        "the weather today",
        "call my mother",
    ),
    *("pocket money", "open the pocket", "a new tune", "tune the radio", "thank you very much"),
    "seven eight nine",
)


def build(classes: int = 2) -> pocketune.TFLiteModel:
    """float32 [B, 76, 32, 1] -> other [B, 0] and the word [B, 1].

    Raises:
        UsageError: the package is not here yet.
    """
    return pocketune.TFLiteModel(embedding(), cut="conv2d_19", classes=classes)


def embedding() -> Path:
    """Return the file that makes 96 numbers of float32 [1, 76, 32, 1].

    Raises:
        UsageError: the package is not here yet.
    """
    return resource(_PACKAGE, f"{_FOLDER}/embedding_model.tflite")


def mel_spectrogram(samples: np.ndarray) -> np.ndarray:
    """Return what the net reads of sound, as openWakeWord makes it: int16 [N] -> float32 [frames, 32]."""
    runtime = _mel_runtime()
    details = runtime.get_input_details()[0]
    runtime.resize_tensor_input(details["index"], (1, len(samples)))
    runtime.allocate_tensors()
    runtime.set_tensor(details["index"], samples[None].astype(np.float32))
    runtime.invoke()
    made = runtime.get_tensor(runtime.get_output_details()[0]["index"])
    return made.reshape(-1, BANDS) / 10 + 2


@cache
def _mel_runtime() -> Any:
    return Interpreter(str(resource(_PACKAGE, f"{_FOLDER}/melspectrogram.tflite")), num_threads=1)


def windows(samples: np.ndarray, every: int = EVERY) -> np.ndarray:
    """Return all windows of a recording: float32 [N, 76, 32, 1]; silence is put around a short one."""
    short = max(0, (FRAMES + 4) * _HOP - len(samples))
    frames = mel_spectrogram(np.pad(samples, (short // 2, short - short // 2)))
    starts = range(0, len(frames) - FRAMES + 1, every)
    return np.stack([frames[start : start + FRAMES] for start in starts])[..., None]


def around_the_word(samples: np.ndarray, shifts: range = range(-8, 9, 4)) -> np.ndarray:
    """Return the windows of a take in whose middle its sound is, and some beside: float32 [len(shifts), 76, 32, 1]."""
    power = np.abs(samples.astype(np.float64))
    middle = int((power * np.arange(len(power))).sum() / power.sum())
    half = (FRAMES // 2 + 4 + max(shifts)) * _HOP
    frames = mel_spectrogram(np.pad(samples, half)[middle : middle + 2 * half])
    start = (len(frames) - FRAMES) // 2
    return np.stack([frames[start + shift :][:FRAMES] for shift in shifts])[..., None]


def read_takes(folder: Path) -> list[np.ndarray]:
    """Return the recordings of a folder: WAV files of one channel, 16 bits, 16,000 samples a second; int16 [N] each."""
    takes = []
    for path in sorted(folder.glob("*.wav")):
        with wave.open(str(path), "rb") as file:
            if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
                raise ValueError(f"{path}: one channel of 16 bits, 16,000 a second (arecord -r 16000 -f S16_LE -c 1)")
            takes.append(np.frombuffer(file.readframes(file.getnframes()), "<i2"))
    return takes


def synthetic_takes(word: str, count: int, seed: int, voice: str = "en-us+f2") -> list[np.ndarray]:
    """Return how a synthetic person says a word: faster and slower, higher and lower, louder and in some noise."""
    rng, takes = np.random.default_rng(seed), []
    for _ in range(count):
        clean = say(word, voice, int(rng.integers(140, 200)), int(rng.integers(35, 65)))
        padded = np.pad(clean * rng.uniform(0.3, 1.2), int(rng.integers(1600, 4800)))
        takes.append((padded + rng.normal(0, 60, len(padded))).clip(-32768, 32767).astype(np.int16))
    return takes


def rows(word: list[np.ndarray], other: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return what is learned from takes of the word and of other sounds: x float32 [N, 76, 32, 1], y int32 [N]."""
    of_word = np.concatenate([around_the_word(take) for take in word])
    of_other = np.concatenate([windows(take) for take in other])
    y = np.repeat(np.array([1, 0], np.int32), (len(of_word), len(of_other)))
    return np.concatenate([of_word, of_other]), y


def synthetic(
    word: str = "pocket tune", takes: int = 12, seed: int = 0, voice: str = "en-us+f2", of_others: int = 1
) -> Any:
    """Return rows of a synthetic person: takes of the word, and some of each other word of that voice; see `rows`."""
    others = [
        take for i, said in enumerate(OTHER_WORDS) for take in synthetic_takes(said, of_others, 100 * seed + i, voice)
    ]
    return rows(synthetic_takes(word, takes, seed, voice), others)
