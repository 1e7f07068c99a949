"""What is learned: Keras models, which every side takes, with real weights, and real data that they have not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from nets import LENGTH, SIZE, efficientnet, sentences, sounds
from sides import OURS

from examples import digits_cnn, efficientnet_lite, imu, keyboard, minilm, wake_word
from examples.data import clothes, digits, mnist, motions, sentiment, writings

import keras  # isort: skip  after examples, which choose its backend


class Rows(NamedTuple):
    """Inputs and labels."""

    x: np.ndarray
    y: np.ndarray


class Split(NamedTuple):
    """Rows of a task: to learn from by choice, to choose rates with, and to judge on."""

    samples: list[Rows]
    validation: Rows
    held_out: Rows


@dataclass(frozen=True)
class Task:
    """A model and what it is to learn.

    Attributes:
        name: for the command line.
        about: model and data, in words.
        build: the Keras model, whose batch norms keep their statistics.
        load: all rows in random order.
        of_each: samples of each class; texts in all, where each character has a label.
        held_out, validation: how many rows, the first ones of the data.
        rates: what learning rates are chosen among, by what trains: `full`, `sparse`, `skip-lora-8`, `head`.
        sides: of ours; class means and discriminants are of rows with one label.
        loss: of programs, as `build` takes it.
        blocks: what the last layer reads of them, where it does: of a text there is one mean.
        compared: with how many choices of samples.
        batch, epochs: of every training.
        rounds: how often each choice is learned for its time.
    """

    name: str
    about: str
    build: Callable[[], keras.Model]
    load: Callable[[], Rows]
    of_each: int
    held_out: int
    validation: int
    rates: Mapping[str, tuple[float, ...]]
    sides: tuple[str, ...] = tuple(OURS)
    loss: Any = "sparse_categorical_crossentropy"
    blocks: str = "blocks/2"
    compared: int = 3
    batch: int = 8
    epochs: int = 8
    rounds: int = 1

    def split(self, choices: int) -> Split:
        """Return the rows, with so many choices of samples."""
        x, y = self.load()
        first = self.held_out + self.validation
        order, samples = np.arange(first, len(y)), []
        for seed in range(choices):
            order = np.random.default_rng(seed).permutation(order)
            labels = y if y.ndim == 1 else np.zeros(len(y))
            chosen = np.concatenate([order[labels[order] == label][: self.of_each] for label in np.unique(labels)])
            samples.append(Rows(x[chosen], y[chosen]))
        held_out, validation = slice(self.held_out), slice(self.held_out, first)
        return Split(samples, Rows(x[validation], y[validation]), Rows(x[held_out], y[held_out]))


#: Of a text at the keyboard.
CHARACTERS = 48
_SKIP_LORA = {"skip-lora-8": (3e-3, 1e-2, 3e-2)}
_RATES = {"full": (3e-4, 1e-3, 3e-3), "sparse": (1e-3, 3e-3, 1e-2), "head": (1e-3, 3e-3, 1e-2), **_SKIP_LORA}


def _photographs(images: mnist.Images) -> Rows:
    return Rows(efficientnet_lite.from_pixels(mnist.photographs(images.pixels[:2500], SIZE)), images.y[:2500])


def _reviews() -> Rows:
    texts = sentiment.load()
    return Rows(minilm.tokenizer().encode(texts.texts, LENGTH), texts.y)


def _worn_on_the_other_arm() -> Rows:
    x, y = motions.windows(motions.load()[1], imu.LENGTH, 5)
    turn = np.array([[0, 1, 0], [1, 0, 0], [0, 0, -1]])
    return Rows(motions.worn(x, turn), y)


def _leaning_hand() -> Rows:
    images = digits.load()[1]
    return Rows(digits.PEOPLE[0].write(images.x), images.y)


def _tweets() -> Rows:
    return Rows(*writings.encode(writings.load("tweets"), CHARACTERS))


def _wake_word() -> Rows:
    """Judged by 300 windows of some takes, then 500 of others to learn from and choose rates with."""
    rng, parts = np.random.default_rng(0), []
    for seed, rows in ((1, 150), (2, 250)):
        x, y = wake_word.synthetic(takes=60, seed=seed, of_others=4)
        chosen = rng.permutation(
            np.concatenate([rng.choice(np.flatnonzero(y == label), rows, False) for label in (0, 1)])
        )
        parts.append((x[chosen], y[chosen]))
    return Rows(*map(np.concatenate, zip(*parts, strict=True)))


def _of_images(name: str, images: str, load: Callable[[], mnist.Images]) -> Task:
    """Return the task of images that a net of photographs learns."""
    return Task(
        name,
        f"EfficientNet-Lite0 at {SIZE} x {SIZE} with its weights of ImageNet; {images}",
        efficientnet,
        lambda: _photographs(load()),
        of_each=20,
        held_out=300,
        validation=200,
        rates={"full": (1e-4, 3e-4, 1e-3), "sparse": (3e-4, 1e-3, 3e-3), "head": (1e-3, 3e-3, 1e-2), **_SKIP_LORA},
        compared=1,
        epochs=10,
    )


TASKS = {
    task.name: task
    for task in (
        _of_images("photographs", "handwritten digits of MNIST", mnist.load),
        _of_images("clothes", "clothes of Fashion-MNIST", clothes.load),
        Task(
            "reviews",
            f"MiniLM over {LENGTH} tokens with its own weights; sentences of film reviews, friendly or unfriendly",
            sentences,
            _reviews,
            of_each=80,
            held_out=400,
            validation=200,
            rates={"full": (1e-5, 3e-5, 1e-4), "sparse": (1e-4, 3e-4, 1e-3), "head": (1e-3, 3e-3, 1e-2), **_SKIP_LORA},
            blocks="blocks",
            compared=1,
            epochs=5,
        ),
        Task(
            "wake word",
            "openWakeWord's embedding with its own weights; a new word of one synthetic voice, and what else it says",
            sounds,
            _wake_word,
            of_each=40,
            held_out=300,
            validation=100,
            rates=_RATES,
        ),
        Task(
            "activities",
            "a convolutional net of a watch trained on 40 recordings; 4 activities, the watch worn the other way round",
            imu.build,
            _worn_on_the_other_arm,
            of_each=20,
            held_out=220,
            validation=88,
            rates=_RATES,
            rounds=3,
        ),
        Task(
            "handwriting",
            "a convolutional net trained on scikit-learn's digits; the digits of one person, who writes otherwise",
            digits_cnn.build,
            _leaning_hand,
            of_each=8,
            held_out=300,
            validation=150,
            rates=_RATES,
            rounds=3,
        ),
        Task(
            "keyboard",
            f"two GRU layers over {CHARACTERS} characters trained on sentences of reviews and editorials; the next "
            "character of tweets",
            lambda: keyboard.build(CHARACTERS),
            _tweets,
            of_each=400,
            held_out=500,
            validation=250,
            rates={"full": (3e-3, 1e-2, 3e-2), "sparse": (1e-2, 3e-2, 1e-1), "head": (3e-2, 1e-1, 3e-1)},
            sides=("full", "sparse", "head", "sparse, int8"),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
            compared=1,
            epochs=5,
        ),
    )
}
