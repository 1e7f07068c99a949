"""Half a minute of a call between two people, cut where one of them speaks alone (the sample of pyannote.audio)."""

from __future__ import annotations

import wave
from functools import cache
from typing import NamedTuple

import numpy as np

from examples.weights.packages import resource

#: Bands of a spectrogram, and its frames in a second.
BANDS, FRAMES = 40, 100
_PACKAGE = "pyannote.audio==4.0.7"
_RATE, _WINDOW, _HOP = 16_000, 400, 160  # samples: in a second, of a frame, from one frame to the next
_LOUDNESS = 10 ** (-30 / 20)  # root mean square of full scale, at least


class Turn(NamedTuple):
    """Seconds in which somebody speaks."""

    start: float
    end: float
    person: str


class Speech(NamedTuple):
    """Windows of a spectrogram float32 [N, frames, 40], and who speaks, int32 [N]."""

    x: np.ndarray
    y: np.ndarray


@cache
def load(frames: int = 80, every: int = 5, until: float = 18.0) -> tuple[Speech, Speech]:
    """What is said until a second, to learn from, and what is said after it.

    Args:
        frames: of a window, 10 ms each.
        every: so many frames after the one before the next window of a turn begins.
        until: the second between the two parts; a turn that it cuts belongs to the second.

    Raises:
        UsageError: the recording is not here yet.
    """
    spectrogram, turns = mel_spectrogram(_recording()), _turns()
    people = sorted({turn.person for turn in turns})
    found: tuple[list[tuple[np.ndarray, int]], ...] = ([], [])
    for turn in alone(turns):
        starts = range(round(turn.start * FRAMES), round(turn.end * FRAMES) - frames + 1, every)
        windows = [(spectrogram[start : start + frames], people.index(turn.person)) for start in starts]
        found[turn.end > until].extend(windows)
    first, second = (Speech(np.stack([x for x, _ in p]), np.array([y for _, y in p], np.int32)) for p in found)
    return first, second


def alone(turns: list[Turn]) -> list[Turn]:
    """The parts of turns, which begin in order, in which nobody else speaks."""
    parts = []
    for turn in turns:
        others = [other for other in turns if other.person != turn.person]
        start = max([turn.start, *(other.end for other in others if other.start <= turn.start < other.end)])
        end = min([turn.end, *(other.start for other in others if start < other.start < turn.end)])
        if end > start:
            parts.append(Turn(start, end, turn.person))
    return parts


def mel_spectrogram(samples: np.ndarray) -> np.ndarray:
    """The power in 40 bands of the mel scale, as librosa's `melspectrogram` has it.

    Args:
        samples: float [N] in -1..1, 16,000 a second.

    Returns:
        float32 [1 + N // 160, 40].
    """
    samples = samples * max(_LOUDNESS / np.sqrt(np.mean(np.square(samples))), 1.0)
    padded = np.pad(samples, _WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    power = np.square(np.abs(np.fft.rfft(frames * hann, axis=1)))
    return (power @ _bands().T).astype(np.float32)


def _bands() -> np.ndarray:
    """Triangles over the frequencies of a frame, [40, 201], of the same area each (Slaney's Auditory Toolbox)."""
    edges = _frequency(np.linspace(0, _mel(_RATE / 2), BANDS + 2))
    away = edges[:, None] - np.fft.rfftfreq(_WINDOW, 1 / _RATE)
    wide = np.diff(edges)[:, None]
    triangles = np.maximum(0, np.minimum(-away[:-2] / wide[:-1], away[2:] / wide[1:]))
    return triangles * 2 / (edges[2:] - edges[:-2])[:, None]


def _mel(frequency: float) -> float:
    """Slaney's scale: linear to 1000 Hz, 15 mels, then logarithmic."""
    return 15 + 27 * float(np.log(frequency / 1000) / np.log(6.4)) if frequency >= 1000 else frequency * 3 / 200


def _frequency(mels: np.ndarray) -> np.ndarray:
    return np.where(mels >= 15, 1000 * 6.4 ** ((mels - 15) / 27), mels * 200 / 3)


def _recording() -> np.ndarray:
    with wave.open(str(resource(_PACKAGE, "pyannote/audio/sample/sample.wav"))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (_RATE, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


def _turns() -> list[Turn]:
    """Who speaks when, in order, from the lines `SPEAKER file channel start length - - person`."""
    lines = resource(_PACKAGE, "pyannote/audio/sample/sample.rttm").read_text().splitlines()
    fields = [line.split() for line in lines if line.startswith("SPEAKER")]
    return [Turn(float(f[3]), float(f[3]) + float(f[4]), f[7]) for f in fields]
