"""Small nets of phones and watches: trained on what others did, personalised on what one user does."""

from __future__ import annotations

import numpy as np
from tasks import Data, Task

from examples import imu, keyboard
from examples.data import motions, writings

LENGTH = 48
#: Of the windows of ten seconds of a recording, one every half second.
_EVERY = 5


def _worn_on_the_other_arm() -> Data:
    """Return windows of recordings that nobody has learned from; those of a recording stand together."""
    x, y = motions.windows(motions.load()[1], imu.LENGTH, _EVERY)
    # Turned about the arm by a quarter, and upside down.
    turn = np.array([[0, 1, 0], [1, 0, 0], [0, 0, -1]])
    return Data(motions.worn(x, turn), y)


def _tweets() -> Data:
    return Data(*writings.encode(writings.load("tweets"), LENGTH))


PERSONAL = (
    Task(
        name="imu",
        model="A convolutional net for accelerometer and gyroscope data, pretrained on 40 recordings of a watch",
        data="windows of 5 seconds from 40 other recordings, 4 activities, with the watch worn the other way round",
        build=lambda: imu.build(),
        load=_worn_on_the_other_arm,
        prepare=lambda x: x,
        of_each=20,
        batch=8,
        epochs=10,
        rates={"full": 1e-3, "sparse": 1e-3, "lora": 3e-3, "head": 1e-2},
        held_out=5 * 4 * 11,
        validation=2 * 4 * 11,
    ),
    Task(
        name="keyboard",
        model=f"two GRU layers over {LENGTH} characters, trained on sentences of reviews and editorials",
        data="the next character of tweets",
        build=lambda: keyboard.build(LENGTH),
        load=_tweets,
        prepare=lambda x: x,
        of_each=400,
        batch=8,
        epochs=5,
        rates={"full": 1e-3, "sparse": 1e-3, "lora": 3e-3, "head": 3e-3},
        loss="next_token",
        cached=False,  # the time comes before the rows in what the first GRU gives
    ),
)
