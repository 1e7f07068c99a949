"""What is learned: a net with the weights of its first training, data that it has never seen, and how it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from examples import efficientnet_lite, minilm
from examples.data import mnist, sentiment


class Data(NamedTuple):
    """Inputs and labels."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Task:
    """A model and what it is to learn.

    Attributes:
        name: for the command line.
        model, data: what they are, for the document.
        build: the model.
        load: all data in random order, as inputs and labels.
        prepare: what the model sees of inputs of the data.
        of_each: training samples of each class; of all where a row has several labels.
        batch, epochs: of the training.
        loss: what is learned.
        cached: whether what frozen first layers give can be kept for each row.
        held_out, validation: rows to judge on and to choose learning rates with, the first ones of the data.
        rates: learning rates to begin the search for the best one with, by scheme.
        choices: of samples to learn from; each scheme is trained with all of them.
        compared: with how many of these its learning rates are compared.
        judged_separately: whether each choice has rows of its own to judge on; else they share them.
    """

    name: str
    model: str
    data: str
    build: Callable[[], Any]
    load: Callable[[], Data]
    prepare: Callable[[np.ndarray], np.ndarray]
    of_each: int
    batch: int
    epochs: int
    rates: Mapping[str, float]
    loss: str = "sparse_categorical_crossentropy"
    cached: bool = True
    held_out: int = 1000
    validation: int = 500
    choices: int = 3
    compared: int = 1
    judged_separately: bool = False

    def split(self) -> tuple[list[Data], Data, list[Data]]:
        """Yield for each choice rows to judge on, rows to choose learning rates with, and samples of the others."""
        x, y = self.load()
        classes = y if y.ndim == 1 else np.zeros(len(y))
        sets = self.choices if self.judged_separately else 1
        judged = [np.arange(self.held_out) + self.held_out * number for number in range(sets)]
        validation = self.held_out * sets + np.arange(self.validation)
        order = np.arange(validation[-1] + 1, len(y))
        trained = []
        for seed in range(self.choices):
            order = np.random.default_rng(seed).permutation(order)
            trained.append(
                np.concatenate([order[classes[order] == label][: self.of_each] for label in np.unique(classes)])
            )
        chosen, *others = (Data(self.prepare(x[rows]), y[rows]) for rows in (validation, *judged, *trained))
        return [others[min(number, sets - 1)] for number in range(self.choices)], chosen, others[sets:]


SIZE, LENGTH = 96, 32


def _digits() -> Data:
    images = mnist.load()
    return Data(images.pixels, images.y)


def _sentences() -> Data:
    texts = sentiment.load()
    return Data(minilm.tokenizer().encode(texts.texts, LENGTH), texts.y)


PRETRAINED = (
    Task(
        name="efficientnet-lite",
        model=f"EfficientNet-Lite0 at {SIZE}x{SIZE} with its weights of ImageNet and a new classifier",
        data="handwritten digits of MNIST, 10 classes",
        build=lambda: efficientnet_lite.build(SIZE),
        load=_digits,
        prepare=lambda pixels: efficientnet_lite.from_pixels(mnist.photographs(pixels, SIZE)),
        of_each=20,
        batch=8,
        epochs=10,
        rates={"full": 3e-4, "sparse": 1e-3, "lora": 3e-3, "skip-lora-8": 3e-3, "head": 1e-2},
    ),
    Task(
        name="minilm",
        model=f"MiniLM (all-MiniLM-L6-v2) over {LENGTH} tokens with its own weights and a new classifier",
        data="sentences of film reviews, friendly or unfriendly",
        build=lambda: minilm.build(LENGTH),
        load=_sentences,
        prepare=lambda ids: ids,
        of_each=80,
        batch=8,
        epochs=5,
        rates={"full": 3e-5, "sparse": 3e-4, "lora": 3e-4, "head": 1e-2},
        # What comes of so few sentences differs by more than what schemes do.
        choices=6,
        compared=4,
        judged_separately=True,
    ),
)
