"""What trains a task: Keras' `fit` in TensorFlow, TensorFlow's graph, and programs of ours by each method.

It needs NumPy and the side's own runtime alone: it runs in a process of its own, whose memory is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
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
        frozen: in which the frozen layers compute, as `build` takes it.
        blocks: whether the last layer reads all blocks too.
    """

    update: str
    means: bool = False
    shrinkage: str | None = None
    steps: bool = True
    frozen: str = "float32"
    blocks: bool = False

    @property
    def file(self) -> str:
        """The program."""
        return f"{self.update}{'-means' * self.means}{'-blocks' * self.blocks}-{self.frozen}.tflite"

    def calls(self, evaluation: int, rows: int, batch: int) -> dict[str, int]:
        """Return how often which signature is called until an evaluation, by its number.

        Class means look at all rows once, and a training on features once more.
        """
        steps = (evaluation + 1 - self.means) * stretch(rows, batch) * self.steps
        if self.update == "full":
            return {"train": steps}
        passes = self.means + (steps > 0)
        return {"features": passes * ceil(rows / batch)} | ({"train_features": steps} if steps else {})


#: Frozen layers run once a sample in all but `full`.
OURS = {
    "full": Method("full"),
    "sparse": Method("sparse"),
    "head": Method("head"),
    "means": Method("head", means=True, steps=False),
    "means, then head": Method("head", means=True),
    "discriminant": Method("head", means=True, shrinkage="auto", steps=False),
    "sparse, int8": Method("sparse", frozen="int8"),
    "skip-lora, int8": Method("skip-lora-8", frozen="int8"),
    "discriminant, int8": Method("head", means=True, shrinkage="auto", steps=False, frozen="int8"),
    "of blocks, int8": Method("head", means=True, shrinkage="auto", steps=False, frozen="int8", blocks=True),
}
#: Others, which train all weights.
THEIRS = ("keras", "tensorflow", "torch")
#: All sides in order.
SIDES = (*THEIRS, *OURS)


class Side(Protocol):
    """A net that is trained from its first weights on."""

    def begin(self) -> None:
        """Go back to the first weights; an optimizer begins anew."""

    def train(self, x: Array, y: Array, rate: float, epochs: int, judge: Callable[[], None]) -> None:
        """Train, and call `judge` behind class means and behind each half epoch of steps."""

    def losses(self, x: Array, y: Array, rate: float, steps: int) -> list[float]:
        """Return the losses of steps over batches of rows in their order; the net keeps what they taught it."""

    def right(self, x: Array, y: Array) -> float:
        """Return the share of right answers."""


class Keras:
    """`model.fit` of Keras on TensorFlow: all weights, Adam, as a tutorial has it.

    Labels below 0 have no part in the loss where `masked` says that there are some.
    """

    def __init__(self, file: Path, batch: int, masked: bool) -> None:
        import keras
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self._keras, self._batch = keras, batch
        self._model = keras.models.load_model(file, compile=False)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1 if masked else None)
        self._rates = table = tf.Variable(np.zeros(4096, np.float32))

        class Table(keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step: Any) -> Any:
                return tf.gather(table, tf.cast(step, tf.int32))

        self._model.compile(keras.optimizers.Adam(Table()), loss)
        self._first = self._model.get_weights()

    def begin(self) -> None:
        self._keras.utils.set_random_seed(0)  # the order of rows
        self._model.set_weights(self._first)
        for variable in self._model.optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))

    def train(self, x: Array, y: Array, rate: float, epochs: int, judge: Callable[[], None]) -> None:
        rates = schedule(rate, epochs * ceil(len(y) / self._batch))
        self._rates[: len(rates)].assign(rates)
        every = stretch(len(y), self._batch)

        def behind(step: int, logs: Any) -> None:
            if (step + 1) % every == 0:
                judge()

        watch = self._keras.callbacks.LambdaCallback(on_train_batch_end=behind)
        self._model.fit(x, y, batch_size=self._batch, epochs=epochs, verbose=0, callbacks=[watch])

    def losses(self, x: Array, y: Array, rate: float, steps: int) -> list[float]:
        self._rates[:steps].assign(np.full(steps, rate, np.float32))
        found = []
        for part in parts(steps, self._batch):
            self._model.reset_metrics()  # which are means over all that they have seen
            found.append(float(self._model.train_on_batch(x[part], y[part])))
        return found

    def right(self, x: Array, y: Array) -> float:
        given = [self._model.predict_on_batch(x[start : start + 50]) for start in range(0, len(y), 50)]
        return share_of(np.concatenate(given).argmax(-1), y)


class Graph(Keras):
    """TensorFlow as well as it goes: half an epoch is one call of a graph, its loop and the fused Adam included."""

    def __init__(self, file: Path, batch: int, masked: bool) -> None:
        super().__init__(file, batch, masked)
        import tensorflow as tf

        model, self._tf, self._step = self._model, tf, tf.Variable(0.0)
        variables = model.trainable_variables
        self._slots = [[tf.Variable(tf.zeros(v.shape)) for v in variables] for _ in range(2)]

        @tf.function(autograph=False)
        def train(x: Any, y: Any, rates: Any) -> Any:
            def one(number: Any) -> Any:
                step(x[number], y[number], rates[number])
                return [number + 1]

            return tf.while_loop(lambda number: number < tf.size(rates), one, [0])

        def step(x: Any, y: Any, rate: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(y, 0) if masked else y, logits)
                loss = tf.reduce_mean(tf.boolean_mask(losses, y >= 0) if masked else losses)
            gradients = tape.gradient(loss, [v.value for v in variables])
            count = self._step.assign_add(1.0)
            for variable, m, v, gradient in zip(variables, *self._slots, gradients, strict=True):
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.value.handle,
                    m=m.handle,
                    v=v.handle,
                    beta1_power=0.9**count,
                    beta2_power=0.999**count,
                    lr=rate,
                    beta1=0.9,
                    beta2=0.999,
                    epsilon=1e-7,
                    grad=tf.convert_to_tensor(gradient),
                )
            return loss

        self._train, self._one = train, tf.function(step, autograph=False)

    def begin(self) -> None:
        super().begin()
        for variable in (self._step, *self._slots[0], *self._slots[1]):
            variable.assign(self._tf.zeros_like(variable))

    def train(self, x: Array, y: Array, rate: float, epochs: int, judge: Callable[[], None]) -> None:
        every, order = stretch(len(y), self._batch), np.random.default_rng(0)
        rates = schedule(rate, epochs * len(y) // self._batch)
        rows = np.concatenate([order.permutation(len(y)) for _ in range(epochs)]).reshape(len(rates), self._batch)
        for start in range(0, len(rows), every):
            some = slice(start, start + every)
            self._train(x[rows[some]], y[rows[some]], rates[some])
            judge()

    def losses(self, x: Array, y: Array, rate: float, steps: int) -> list[float]:
        given = self._tf.constant(rate)
        return [float(self._one(x[part], y[part], given)) for part in parts(steps, self._batch)]


class Ours:
    """A program in the stock interpreter."""

    def __init__(self, folder: Path, method: Method, batch: int) -> None:
        from converter.runtime import TrainingSession

        self._session, self._method, self._batch = TrainingSession(folder / method.file), method, batch
        self._judged: tuple[Array, tuple[Array, ...]] | None = None

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

        rates = schedule(rate, epochs * ceil(len(y) / self._batch)).tolist()
        self._session.fit(
            x, y, epochs=epochs, learning_rate=rates.__getitem__, progress=False, seed=0, listener=listener
        )

    def losses(self, x: Array, y: Array, rate: float, steps: int) -> list[float]:
        return [self._session.train(x[part], y[part], rate) for part in parts(steps, self._batch)]

    def right(self, x: Array, y: Array) -> float:
        if self._method.update == "full":
            return share_of(self._session.infer(x).argmax(-1), y)
        if self._judged is None or self._judged[0] is not x:  # else their features are known
            found = self._session.features(x)
            self._judged = x, found if isinstance(found, tuple) else (found,)
        names = [spec.name for spec in self._session.manifest.signatures["infer_features"].taking("input")]
        given = []
        for part in parts(ceil(len(y) / self._batch), self._batch):
            rows = np.arange(part.start, part.stop).clip(max=len(y) - 1)
            feed = {name: features[rows] for name, features in zip(names, self._judged[1], strict=True)}
            (logits,) = self._session.call("infer_features", feed).values()
            given.append(logits.argmax(-1))
        return share_of(np.concatenate(given)[: len(y)], y)


def share_of(given: Array, y: Array) -> float:
    """Return the share of right answers among the labels from 0 on."""
    return float((given == y)[y >= 0].mean())


def schedule(rate: float, steps: int) -> Array:
    """Return the learning rate of each step: it rises for a tenth of them, then falls to 0 along a cosine."""
    rising, step = max(steps // 10, 1), np.arange(steps)
    falling = (1 + np.cos(np.pi * (step - rising) / (steps - rising))) / 2
    return (rate * np.where(step < rising, (step + 1) / rising, falling)).astype(np.float32)


def stretch(rows: int, batch: int) -> int:
    """Return the steps of half an epoch."""
    return max(-(-rows // batch) // 2, 1)


def parts(steps: int, batch: int) -> list[slice]:
    """Return the rows of so many batches in order."""
    return [slice(start, start + batch) for start in range(0, steps * batch, batch)]


def opened(side: str, folder: Path, batch: int, masked: bool) -> Side:
    """Return a side that is ready to train."""
    if side == "torch":
        from pytorch import PyTorch

        return PyTorch(folder / "model.keras", batch)
    if side in THEIRS:
        return {"keras": Keras, "tensorflow": Graph}[side](folder / "model.keras", batch, masked)
    return Ours(folder, OURS[side], batch)
