"""What trains a task: Keras' `fit` in TensorFlow, and programs of ours by each method.

It needs NumPy and the side's own runtime alone: it runs in a process of its own, whose memory is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = np.ndarray


class Method(NamedTuple):
    """How a side of ours trains.

    Attributes:
        update: the scheme.
        means: whether the head is set to class means first.
        shrinkage: of the covariance that these are seen by; None: by distance alone.
        steps: whether steps follow, or are all.
    """

    update: str
    means: bool = False
    shrinkage: str | None = None
    steps: bool = True

    @property
    def file(self) -> str:
        """The program."""
        return f"{self.update}{'-means' * self.means}.tflite"


#: Frozen layers run once a sample in all but `full`.
OURS = {
    "full": Method("full"),
    "sparse": Method("sparse"),
    "head": Method("head"),
    "means": Method("head", means=True, steps=False),
    "means, then head": Method("head", means=True),
    "discriminant": Method("head", means=True, shrinkage="auto", steps=False),
}
#: All sides in order.
SIDES = ("keras", *OURS)


class Side(Protocol):
    """A net that is trained from its first weights on."""

    def begin(self) -> None:
        """Go back to the first weights; an optimizer begins anew."""

    def train(self, x: Array, y: Array, rate: float, epochs: int, judge: Callable[[], None]) -> None:
        """Train, and call `judge` behind class means and behind each half epoch of steps."""

    def right(self, x: Array, y: Array) -> float:
        """Return the share of right answers."""


class Keras:
    """`model.fit` of Keras on TensorFlow: all weights, Adam, as a tutorial has it."""

    def __init__(self, file: Path, batch: int) -> None:
        import keras
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self._keras, self._batch = keras, batch
        self._model = keras.models.load_model(file, compile=False)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model.compile(keras.optimizers.Adam(1e-3), loss)
        self._first = self._model.get_weights()

    def begin(self) -> None:
        self._keras.utils.set_random_seed(0)  # the order of rows
        self._model.set_weights(self._first)
        for variable in self._model.optimizer.variables:
            if not variable.path.endswith("learning_rate"):
                variable.assign(np.zeros(variable.shape, variable.dtype))

    def train(self, x: Array, y: Array, rate: float, epochs: int, judge: Callable[[], None]) -> None:
        self._model.optimizer.learning_rate = rate
        every = stretch(len(y), self._batch)

        def behind(step: int, logs: Any) -> None:
            if (step + 1) % every == 0:
                judge()

        watch = self._keras.callbacks.LambdaCallback(on_train_batch_end=behind)
        self._model.fit(x, y, batch_size=self._batch, epochs=epochs, verbose=0, callbacks=[watch])

    def right(self, x: Array, y: Array) -> float:
        given = [self._model.predict_on_batch(x[start : start + 50]) for start in range(0, len(y), 50)]
        return float((np.concatenate(given).argmax(1) == y).mean())


class Ours:
    """A program in the stock interpreter."""

    def __init__(self, folder: Path, method: Method, batch: int) -> None:
        from converter.runtime import TrainingSession

        self._session, self._method, self._batch = TrainingSession(folder / method.file), method, batch

    def begin(self) -> None:
        self._session.reset()

    def train(self, x: Array, y: Array, rate: float, epochs: int, judge: Callable[[], None]) -> None:
        if self._method.means:
            self._session.set_class_means(x, y, self._method.shrinkage)
            judge()
        if not self._method.steps:
            return
        every, done = stretch(len(y), self._batch), 0

        def listener(event: Any) -> None:
            nonlocal done
            if type(event).__name__ == "Step":
                done += 1
                if done % every == 0:
                    judge()

        self._session.fit(x, y, epochs=epochs, learning_rate=rate, progress=False, seed=0, listener=listener)

    def right(self, x: Array, y: Array) -> float:
        return float(self._session.evaluate(x, y)["accuracy"])


def stretch(rows: int, batch: int) -> int:
    """Return the steps of half an epoch."""
    return max(-(-rows // batch) // 2, 1)


def opened(side: str, folder: Path, batch: int) -> Side:
    """Return a side that is ready to train."""
    return Keras(folder / "model.keras", batch) if side == "keras" else Ours(folder, OURS[side], batch)
