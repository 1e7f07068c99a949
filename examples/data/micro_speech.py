"""What synthetic people say, as a microcontroller hears it: eSpeak's voices through the audio front end of TFLM.

An English text in a voice of another language is read by that language's rules: a strong accent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any, NamedTuple

import numpy as np

from examples.data.spoken import RATE, say
from examples.weights.packages import resource

#: Frames of 20 ms and channels of a row.
FRAMES, BANDS = 49, 40
#: Samples that make these frames: the front end gives one for 10 ms, from windows of 30 ms.
_ROW = 160 * (2 * FRAMES - 1) + 480
#: Half a second before, by which the front end has found out how loud the room is.
_BEFORE = RATE // 2
_PACKAGE = "pymicro-features==2.0.2"
#: Variants of eSpeak's voices: so many people.
_VARIANTS = (
    *("max", "Alicia", "david", "Denis", "f2", "klatt", "Henrique", "m6", "linda", "ed", "Hugo", "f5"),
    *("antonio", "pedro", "Storm", "norbert", "steph", "anika", "klatt3", "m1", "Nguyen", "belinda", "Mario"),
    *("Jacky", "f4", "rob", "caleb", "Andy", "michel", "Reed", "m3", "adam", "f3", "Marco", "ian", "sandro"),
    *("Alex", "aunty", "m7", "quincy", "Gene", "klatt2", "shelby", "benjamin", "Andrea", "miguel", "pablo"),
    *("Gene2", "m2", "Annie", "klatt4", "Mike", "m4", "victor", "edward", "f1", "paul", "Lee", "travis"),
    *("iven", "john", "Tweaky", "m5", "Michael", "boris", "Diogo", "gustave", "m8", "robert", "zac"),
)
#: Languages of each group, and which of the variants its people have; nobody is in two groups.
_GROUPS = {
    "pretraining": (["en-us", "en-gb", "en-us", "en-gb-scotland", "en-us", "en-029"], slice(36)),
    "validation": (["en-us", "en-gb"], slice(36, 42)),
    "validation owners": (["sv", "cs", "sl", "ca", "tr", "lt"], slice(42, 48)),
    "owners": (["de", "fr", "es", "it", "fi", "hu", "da", "ro", "nb", "el"], slice(48, 58)),
    "others": (["en-us", "en-gb"], slice(58, 70)),
}


class Rows(NamedTuple):
    """x float32 [N, 49, 40, 1], y int32 [N]: 1 for the word."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Speaker:
    """A synthetic person: a voice of eSpeak NG with a variant, how high she speaks (0 to 99), words a minute."""

    voice: str
    pitch: int
    speed: int


def people(group: str) -> list[Speaker]:
    """Return the people of a group: `pretraining`, `validation`, `validation owners`, `owners`, `others`."""
    languages, variants = _GROUPS[group]
    rng = np.random.default_rng(list(_GROUPS).index(group))
    return [
        Speaker(f"{languages[i % len(languages)]}+{variant}", int(rng.integers(35, 66)), int(rng.integers(140, 181)))
        for i, variant in enumerate(_VARIANTS[variants])
    ]


def utterance(speaker: Speaker, text: str, rng: np.random.Generator) -> np.ndarray:
    """Return a second of sound with a text about its middle, each time a little different, in some noise: int16 [N]."""
    speed, pitch = speaker.speed + int(rng.integers(-15, 16)), speaker.pitch + int(rng.integers(-8, 9))
    clean = say(text, speaker.voice, speed, pitch).astype(np.float64)
    power = clean**2
    middle = int((power * np.arange(len(power))).sum() / power.sum()) + int(rng.integers(-1600, 1601))
    clean *= rng.uniform(1500, 4000) / np.sqrt(power.mean())
    start, size = _ROW + middle - _ROW // 2, _BEFORE + _ROW
    heard = np.pad(clean, _BEFORE + _ROW)[start : start + size]
    return (heard + rng.normal(0, rng.uniform(50, 400), size)).clip(-32768, 32767).astype(np.int16)


def features(samples: np.ndarray) -> np.ndarray:
    """Return what the net reads of the last second of sound: int16 [N] -> float32 [49, 40, 1], about -0.5 to 2."""
    module, data, frames, at = _front_end(), samples.tobytes(), [], 0
    state = module.create_frontend()
    while at + 320 <= len(data):
        channels, read = module.process_samples(state, data[at : at + 320])
        at += 2 * read
        if channels:
            frames.append(channels)
    last = np.array(frames, np.float32)[-2 * FRAMES :]
    return (last.reshape(FRAMES, 2, BANDS).mean(1) / 10 - 0.5)[..., None]


def rows(speakers: Iterable[Speaker], texts: Sequence[str], word: str, seed: int) -> Rows:
    """Return what each of some people says, text after text."""
    rng, said = np.random.default_rng(seed), [(speaker, text) for speaker in speakers for text in texts]
    x = np.stack([features(utterance(speaker, text, rng)) for speaker, text in said])
    return Rows(x, np.array([text == word for _, text in said], np.int32))


@cache
def _front_end() -> Any:
    """Return TFLM's audio front end, from the file of its package.

    Raises:
        UsageError: the package is not here yet.
    """
    loader = ExtensionFileLoader("micro_features_cpp", str(resource(_PACKAGE, "micro_features_cpp.abi3.so")))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
