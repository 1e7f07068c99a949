"""What classes are added to: nets with real weights, and rows of classes of which one comes later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from examples import digits_cnn, efficientnet_lite, minilm, resemblyzer
from examples.data import digits, micro_speech, mnist, writings
from examples.data.conversation import mel_spectrogram
from examples.data.spoken import say
from examples.wake_word import OTHER_WORDS

SIZE, LENGTH, FRAMES = 96, 32, 80
#: Classes of the speaker net, people who come later, and what each says.
_PEOPLE, _LATER, _SAID = 10, 12, 30


class Rows(NamedTuple):
    """Inputs and labels."""

    x: np.ndarray
    y: np.ndarray


class Case(NamedTuple):
    """The classes of a net, and one that comes later.

    Attributes:
        model: what ends in a layer of the own classes.
        own: the data's labels of its classes, in their order in the net.
        added: that of the class that comes.
    """

    model: Any
    own: list[int]
    added: int


@dataclass(frozen=True)
class Task:
    """A net, rows, and which classes come later.

    Attributes:
        name: for the command line.
        about: net and data, in words.
        load: rows to take samples from, and others to judge on.
        cases: the nets with their classes; cases of the same model follow each other.
        of_each: samples of each own class.
    """

    name: str
    about: str
    load: Callable[[], tuple[Rows, Rows]]
    cases: Callable[[], Iterator[Case]]
    of_each: int


def _each_left_out(classes: int, build: Callable[[list[int]], Any]) -> Iterator[Case]:
    for added in range(classes):
        own = [label for label in range(classes) if label != added]
        yield Case(build(own), own, added)


def _parted(x: np.ndarray, y: np.ndarray, held_out: int) -> tuple[Rows, Rows]:
    """Return rows in random order, the first ones to judge on, as samples and those."""
    return Rows(x[held_out:], y[held_out:]), Rows(x[:held_out], y[:held_out])


def _photographs() -> tuple[Rows, Rows]:
    images = mnist.load()
    x = efficientnet_lite.from_pixels(mnist.photographs(images.pixels[:3000], SIZE))
    return _parted(x, images.y[:3000], 1000)


def _voices() -> tuple[Rows, Rows]:
    """0.8 seconds of what 22 synthetic people say, two phrases at a time, each time a little different."""
    rng = np.random.default_rng(0)
    people = micro_speech.people("pretraining")[: _PEOPLE + _LATER]
    x, y = [], []
    for label, person in enumerate(people):
        for _ in range(_SAID):
            speed, pitch = person.speed + int(rng.integers(-15, 16)), person.pitch + int(rng.integers(-8, 9))
            sound = say(" ".join(rng.choice(OTHER_WORDS, 2)), person.voice, speed, pitch).astype(np.float64)
            sound = sound / np.abs(sound).max() * rng.uniform(0.2, 0.8) + rng.normal(0, 0.003, len(sound))
            frames = mel_spectrogram(sound)
            start = max(len(frames) - FRAMES, 0) // 2
            heard = frames[start : start + FRAMES]
            x.append(np.pad(heard, ((0, FRAMES - len(heard)), (0, 0))))
            y.append(label)
    order = rng.permutation(len(y))
    return _parted(np.stack(x)[order], np.array(y, np.int32)[order], len(y) // 2)


def _handwriting() -> tuple[Rows, Rows]:
    train, test = digits.load()
    return Rows(train.x, train.y), Rows(test.x, test.y)


def _texts() -> tuple[Rows, Rows]:
    found = [(text, kind) for kind, name in enumerate(writings.KINDS) for text in writings.load(name)[:1000]]
    order = np.random.default_rng(0).permutation(len(found))
    x = minilm.tokenizer().encode(tuple(found[i][0] for i in order), LENGTH)
    return _parted(x, np.array([found[i][1] for i in order], np.int32), 1000)


@cache
def _image_net(classes: int) -> Any:
    return efficientnet_lite.build(SIZE, classes)


@cache
def _text_net(classes: int) -> Any:
    return minilm.build(LENGTH, classes)


def _later_people() -> Iterator[Case]:
    model = resemblyzer.build(FRAMES, _PEOPLE)
    for added in range(_PEOPLE, _PEOPLE + _LATER):
        yield Case(model, list(range(_PEOPLE)), added)


TASKS = {
    task.name: task
    for task in (
        Task(
            "photographs",
            f"EfficientNet-Lite0 at {SIZE} x {SIZE} with its weights of ImageNet; digits of MNIST, nine and one more",
            _photographs,
            lambda: _each_left_out(10, lambda own: _image_net(len(own))),
            of_each=60,
        ),
        Task(
            "voices",
            f"Resemblyzer's voice encoder with its own weights; synthetic people, {_PEOPLE} and one more",
            _voices,
            _later_people,
            of_each=12,
        ),
        Task(
            "handwriting",
            "a convolutional net trained on nine of scikit-learn's digits; these and the tenth",
            _handwriting,
            lambda: _each_left_out(10, lambda own: digits_cnn.build(digits=own)),
            of_each=60,
        ),
        Task(
            "texts",
            f"MiniLM over {LENGTH} tokens with its own weights; tweets, sentences of film reviews, of editorials and "
            "of reviews of things sold, three and one more",
            _texts,
            lambda: _each_left_out(4, lambda own: _text_net(len(own))),
            of_each=60,
        ),
    )
}
