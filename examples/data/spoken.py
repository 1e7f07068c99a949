"""Words in a synthetic voice, eSpeak NG's, each said a little differently: for those without a recording.

What a process says is the same each time, in the order in which it says it: the voice draws random numbers on and on.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from examples.weights.packages import resource

#: Samples in a second of what is given.
RATE = 16_000
#: The function that takes what was said: as long as the library is here.
_KEPT: list[object] = []
_PACKAGE, _FOLDER = "espeakng-loader==0.2.4", "espeakng_loader"
_SYNCHRONOUS, _SPEED, _PITCH, _UTF8 = 2, 1, 3, 1  # of speak_lib.h


def say(text: str, voice: str, speed: int, pitch: int) -> np.ndarray:
    """Return what a voice makes of a text: int16 [N], 16,000 a second.

    Args:
        text: the words.
        voice: of eSpeak NG, with a variant: `en-us+f2`.
        speed: words in a minute.
        pitch: 0 to 99.

    Raises:
        UsageError: the package is not here yet.
    """
    library, spoken, rate = _library()
    spoken.clear()
    library.espeak_SetVoiceByName(voice.encode())
    library.espeak_SetParameter(_SPEED, speed, 0)
    library.espeak_SetParameter(_PITCH, pitch, 0)
    data = text.encode()
    library.espeak_Synth(data, len(data) + 1, 0, 1, 0, _UTF8, None, None)
    whole = np.concatenate(spoken).astype(np.float64)
    at = np.arange(0, len(whole) - 1, rate / RATE)
    return np.interp(at, np.arange(len(whole)), whole).astype(np.int16)


@cache
def _library() -> tuple[ctypes.CDLL, list[np.ndarray], int]:
    """Return the library, what it has said since that was cleared, and how many samples are a second of it."""
    path = resource(_PACKAGE, f"{_FOLDER}/libespeak-ng.so")
    library, spoken = ctypes.CDLL(str(path)), list[np.ndarray]()
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

    @kind
    def take(samples: ctypes._Pointer[ctypes.c_short], count: int, _: object) -> int:
        if count > 0:
            spoken.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, str(path.parent).encode(), 0)
    library.espeak_ng_SetRandSeed(ctypes.c_long(0))  # or it is the time
    library.espeak_SetSynthCallback(take)
    _KEPT.append(take)
    return library, spoken, rate
