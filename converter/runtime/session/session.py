"""`TrainingSession`: a training program at work."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from converter.program.file import Readable, read_program
from converter.program.manifest import FEATURES, ON_FEATURES, gathered
from converter.runtime.data.examples import Examples
from converter.runtime.data.keywords import check_keywords
from converter.runtime.data.metrics import Metrics, measured, measures
from converter.runtime.interpreters.choice import open_engine
from converter.runtime.interpreters.entry import Report
from converter.runtime.replay.memory import ReplayMemory
from converter.runtime.session.batches import Order, all_rows, arguments_of, is_stream
from converter.runtime.session.evaluation import every_output, figures, inferred, kept_on_features, outputs
from converter.runtime.session.feeding import (
    check_one_step,
    check_resumable,
    check_validation,
    examples_for,
    feed_of,
)
from converter.runtime.session.known_classes import KnownClasses
from converter.runtime.session.loop import Listener, Loop, check_arguments
from converter.runtime.session.rates import Rate, rate_of_steps
from converter.runtime.session.redrawing import check_redrawn
from converter.runtime.session.remembering import Drift, Replay
from converter.runtime.session.running import Taken
from converter.runtime.session.skipping import SkipLearned, check_skip
from converter.runtime.session.trained_channels import TrainedChannels
from converter.support.errors import UsageError


class TrainingSession(KnownClasses, TrainedChannels):
    """Trains and uses a program of `pocketune.build` in the stock interpreter.

        with TrainingSession("model.tflite") as session:
            session.fit(x, y, epochs=5, learning_rate=0.01)
            session.save("mine.state")

    The state starts as it was built and lives in memory; `save` and `restore` move it to and from a file. Any thread
    may call any method: one step runs at a time. All raise UsageError for what the user can put right, and after
    `close`, and DeviceError when LiteRT fails. `report` says what runs the program.

    A step whose loss is not finite, or that would make a weight or slot NaN or infinite, is refused (NumericError), and
    the state stays that from before it. Where the program keeps its state in variables and nothing in it can be
    infinite at finite numbers, no copy is made for that: the weights in memory are then not to be trusted, nor used or
    saved until `restore` or `reset`. What is on disk is never touched by them.
    """

    def __init__(
        self,
        path: Readable,
        threads: int = 1,
        xnnpack: bool = True,
        weight_cache: str | os.PathLike | None = None,
        accelerator: str = "cpu",
        head: str | None = None,
    ) -> None:
        """Opens a program.

        Args:
            path: the `.tflite`, or its bytes. A file is mapped, not read: another may be renamed over it while the
                session is open (`Program.write` does that), but nobody may write into it.
            threads: how many processor cores a step may use. With `weight_cache` XNNPACK alone uses more than one:
                LiteRT runs its own kernels (depthwise convolutions whose filters train) on one there.
            xnnpack: run on XNNPACK's fast kernels; False runs the interpreter's own.
            weight_cache: a folder for the frozen weights as XNNPACK packs them, once for all signatures, sessions and
                processes, in a file that the system may drop from memory. Without it each signature of the program
                packs its own into memory. May be deleted while no session uses it.
            accelerator: `cpu`, or `gpu` for programs whose state is `stateless`, or `split`, whose updates stay on the
                CPU; or for these `hexagon` (`hexagon:SM8650`), Qualcomm's emulation of it; or as `gpu` `web`, LiteRT.js
                on WebGPU in headless Chromium, and `web:wasm`, in WebAssembly there. `report` says what it took.
            head: which, of a file of several.

        Raises:
            UsageError: the file is missing, damaged, or no Pocketune program; the folder or accelerator cannot be used.
            DeviceError: LiteRT does not take it.
        """
        threads = _threads(threads)
        program = read_program(path, head)
        engine = open_engine(program, threads, xnnpack, weight_cache, accelerator)
        super().__init__(program, engine)
        self.report: Report = engine.report
        self._epochs = 0  # of trainings without a seed

    def train(
        self, x: Any, y: Any = None, learning_rate: float | None = None, weight: Any = None, rate_scale: float = 1.0
    ) -> float:
        """Run one step on at most a batch of rows; a shorter batch is padded with rows of weight 0.

        Args:
            x: float32 [rows, ...] as the model takes it; a sequence or dict of arrays when it has several inputs.
            y: targets [rows, ...]: labels, one-hot rows or values, as the loss takes them; also several, or None.
            learning_rate: None is the one that the optimizer was built with, a schedule for example.
            weight: [rows], how much each row counts; None counts all the same.
            rate_scale: multiplies the learning rate.

        Returns:
            The loss before the step: sum(weight * loss) / sum(weight). Keras divides by the number of rows instead.

        Raises:
            UsageError: wrong shape, dtype, label or number of rows, or a learning rate beside one that runs in the
                program; the state stays as it was.
            NumericError: the loss is not finite, or something that the step writes.
        """
        with self._lock:
            examples = self._examples(self.manifest.step, x, y, weight)
            check_one_step(examples, self.manifest)
            rate = rate_of_steps(learning_rate, rate_scale, self.manifest)(0)
            return self._step(examples, rate, self.manifest.step).loss

    def evaluate(self, x: Any, y: Any = None, weight: Any = None, metrics: Metrics = None) -> dict[str, float]:
        """Return the mean loss over any number of rows, and for a classifier the accuracy; the state stays as it is.

        Args:
            x: as for `train`, or all batches (x, y) or (x, y, weight), as for `fit`.
            y: as for `train`, and weight likewise.
            weight: [rows].
            metrics: what else to compute from the outputs, a name (`accuracy`, `top_5`, `mae`, `mse`, `auc`, ...), a
                function `(y, output)` of all rows to a number a row (or a row and place) or one for all, or a list of
                these; for a model of several outputs a dict of them by output. Under a mask they are of the places
                that count, as in Keras; `auc`, and a function that gives no number a place, see all. Those with a name
                are of the classes that there are, where others may come.

        Returns:
            {"loss": ..., "accuracy": ...}; `accuracy`, the share of right answers, only where the program counts them.
            Where outputs have losses of their own, the sum of these by their weights is `loss`, and each is
            `<output>_loss`, its share of right answers `<output>_accuracy`. Metrics by their names, `<output>_<name>`.

        Raises:
            UsageError: as `train`.
            NumericError: the loss is not finite.
        """
        return self._judge(self._rows(x, y, weight), metrics)

    def _rows(self, x: Any, y: Any = None, weight: Any = None) -> Examples:
        """Return rows to evaluate on: arrays, or all batches of a stream."""
        check = partial(self._examples, "evaluate")
        return all_rows(x, check) if y is None and weight is None and is_stream(x) else check(x, y, weight)

    def _held_out(self, kept: str, x: Any, y: Any = None, weight: Any = None) -> Examples:
        """Return rows that a training is judged by, as `evaluate` takes them, or `evaluate_features` where `kept`."""
        rows = self._rows(x, y, weight)
        if not kept:
            return rows
        with self._lock:
            return kept_on_features(self.manifest, self._open().ready(FEATURES), rows)

    def _judge(self, examples: Examples, metrics: Metrics, kept: str = "") -> dict[str, float]:
        with self._lock:
            wanted = measures(metrics, self.manifest, examples, self._kept_names())
            found, masks = figures(self.manifest, self._open().ready, examples, f"evaluate{kept}")
            if wanted:
                given = outputs(self._open().ready(f"infer{kept}"), examples)
                found = measured(wanted, found, given, examples, masks)
            return found

    def infer(self, x: Any) -> Any:
        """Return the model's output for any number of rows, float32 [rows, ...].

        Several are a dict by name in their order (keys of a dict, layers of a Keras model), without names a tuple.
        """
        with self._lock:
            return gathered(inferred(self.manifest, self._open().ready, self._examples("infer", x)))

    def call(self, signature: str, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what a signature that leaves the state as it is gives, for all its inputs but the state's."""
        with self._lock:
            return self._open().call(signature, feed)

    def features(self, x: Any) -> Any:
        """Return what the frozen first layers make of any number of rows: they give the same in every epoch.

        Returns:
            [rows, ...], or a tuple of them; `fit` trains on it where the program offers that. float32, or where first
            layers in int8 end, the int8 that they give.

        Raises:
            UsageError: as `train`; the program was built without the signature `features`.
        """
        with self._lock:
            examples = self._examples("features", x)
            return gathered(every_output(self._open().ready("features"), examples))

    def fit(
        self,
        x: Any,
        y: Any = None,
        epochs: int = 3,
        learning_rate: Rate = None,
        progress: bool = True,
        seed: int | None = None,
        weight: Any = None,
        validation: Any = None,
        class_weight: Mapping[int, float] | None = None,
        patience: int | None = None,
        listener: Listener | None = None,
        metrics: Metrics = None,
        initial_epoch: int = 0,
        rate_scale: float = 1.0,
        shuffle: bool = True,
        memory: ReplayMemory | None = None,
        replay: float = 0.5,
        roll_back: float | None = None,
        skip: SkipLearned | None = None,
        redraw: bool = False,
        **others: Any,
    ) -> dict[str, list[float]]:
        """Trains on all rows, in a new order each epoch.

        A program with the signature `features` runs its frozen first layers once a row, not once a row and epoch; with
        `evaluate_features` (and `infer_features` for metrics) those of held-out rows too.

        Args:
            x: as for `train`, any number of rows. Or, without y and weight, what can be iterated for batches (x, y) or
                (x, y, weight) of any size: a list, a tf.data.Dataset, a torch DataLoader; once an epoch, in its order.
            y: as for `train`.
            epochs: how often each row is seen.
            learning_rate: as for `train`, or a function of the number of the step (0, 1, ...).
            progress: show a progress bar on stderr, if that is a terminal.
            seed: of the order; the same seed gives the same training, here, on a phone and in a page. None goes on from
                the call before: the epochs of all calls are numbered through, with the seed 0.
            weight: [rows]; rows of weight 0 are left out.
            validation: (x, y), (x, y, weight) or batches of these to evaluate on after each epoch.
            class_weight: how much the rows of a label count, {label: weight}, beside `weight`; 1 for labels not named.
            patience: it ends after as many epochs in a row in which the loss (of `validation`, if given) was not lower
                than ever before, and the state is that of the best epoch.
            listener: told of each `Event`: Started, Step, Evaluated (an epoch is done), Finished. When it returns False
                the training ends there.
            metrics: as for `evaluate`, of the validation rows: `validation_<name>`.
            initial_epoch: so many of the epochs are done: a training that was stopped, its state restored, goes on with
                the rows and rates that it would have had.
            rate_scale: multiplies the learning rate.
            shuffle: whether rows in memory come in a new order each epoch, or always in their own.
            memory: rows of earlier trainings. Some are mixed in; of those of this one a share is kept aside, and all
                enter it when the training is done. Its held-out rows are `validation` where none is given.
            replay: share of an epoch's rows that come from the memory, 0 to 0.95, drawn anew each epoch.
            roll_back: by what share the loss on the memory's held-out rows may rise over the training; where it rose by
                more, the state is that from before it. None: it stays. `Drifted` tells of each rise.
            skip: which rows do not come in most epochs, as they lost little when they came last: SkipLearned(0.03). The
                program has to give the loss of each row (`build(..., row_losses="on")`). Numbers of steps are as though
                all came, and `loss` counts the others with their last loss. `skipped` is how many did not come.
            redraw: whether each epoch but the first begins with other channels, drawn by the seed and the number of the
                epoch, for programs with `Channels(..., redrawn=True)`; as `redraw_channels`.
            **others: there are none; those of Keras are refused with the word for them here.

        Returns:
            One number for each completed epoch: `loss` (mean over the epoch, while it trains), `seconds`, and with
            validation `validation_loss` and, for a classifier, `validation_accuracy`. With held-out rows of a memory
            also `drift`, one number: by how much the loss on them rose over the training, before any `roll_back`.

        Raises:
            UsageError: as `train`; rows in memory are checked before the first step, those of batches when they come.
            NumericError: the loss is not finite, or something that a step writes; of the last step it may be found at
                the end alone.
        """
        check_keywords(others, inspect.signature(self.fit).parameters, self.manifest.batch)
        check_arguments(epochs, initial_epoch, patience, seed, listener)
        if skip is not None:
            check_skip(skip, self.manifest, initial_epoch)
        if redraw is not False:
            check_redrawn(self.manifest, redraw)
        mixed = None if memory is None else Replay.checked(memory, replay, self._names_in_memory())
        kept = self._kept_for(metrics)
        judge = partial(self._judge, kept=kept)
        drift = Drift(self, memory, roll_back, partial(self._held_out, kept), judge)
        judged = drift.rows if validation is None else self._held_out(kept, *arguments_of(validation))
        check_validation(judged, metrics, self.manifest, self._kept_names())
        order = Order(seed or 0, self._epochs if seed is None else 0, epochs - initial_epoch, epochs - 1, shuffle)
        feed = feed_of((x, y, weight), self.manifest, self._examples, self.features, class_weight, order, mixed, skip)
        check_resumable(feed, initial_epoch, learning_rate)
        best: dict[str, np.ndarray] = {}
        loop = Loop(
            batches=feed.batches,
            epochs=epochs,
            first=initial_epoch,
            begin=partial(self._begin_epoch, order=order, redraw=redraw, counts=seed is None),
            step=partial(self._step, signature=feed.signature),
            rate=rate_of_steps(learning_rate, rate_scale, self.manifest),
            validate=None if judged is None else partial(judge, judged, metrics),
            best=lambda: best.update(self.state()),
            back=lambda: self._back(best),
            settle=drift.settle,
            patience=patience,
            listener=listener,
            progress=progress,
        )
        history = self._ran(loop, drift, goes_back=patience is not None or roll_back is not None)
        feed.enter()
        return history | drift.figures

    def _ran(self, loop: Loop, drift: Drift, goes_back: bool) -> dict[str, list[float]]:
        """Return the history of a training that runs to its end.

        Args:
            loop: the training.
            drift: what is measured over it.
            goes_back: whether it may end with the state of an earlier epoch.
        """
        self._goes_back = goes_back
        try:
            drift.begin()
            history = loop.run()
        finally:
            self._goes_back = False
        with self._lock:
            self._open().check_finite()
        return history

    def _begin_epoch(self, epoch: int, order: Order, redraw: bool, counts: bool) -> None:
        """Draw the channels of an epoch, where others train in each; the first one has those that it finds.

        Args:
            epoch: from 0.
            order: of the rows and epochs.
            redraw: whether others train in each.
            counts: whether the next training goes on from the epochs that this one begins.
        """
        number = order.first + epoch
        if counts:
            self._epochs = number + 1
        if redraw and number:
            self._redraw(None, order.seed, number)

    def _kept_for(self, metrics: Metrics) -> str:
        """Return what the signatures are called behind their names that judge held-out rows by their features."""
        wanted = {f"evaluate{ON_FEATURES}"} | ({f"infer{ON_FEATURES}"} if metrics is not None else set())
        return ON_FEATURES if wanted <= self.manifest.signatures.keys() else ""

    def remember(self, memory: ReplayMemory, x: Any, y: Any = None, weight: Any = None) -> None:
        """Adds rows to a memory without a training.

        Args:
            memory: where to.
            x: as for `evaluate`, and y and weight likewise.
            y: targets.
            weight: how much each row counts; rows of weight 0 do not enter.

        Raises:
            UsageError: as `evaluate`, or the memory cannot be written.
        """
        names = self._names_in_memory()
        memory.check_classes(names)
        visit = memory.visit(self._examples(self.manifest.step, x, y, weight), names)
        if memory.keeps == "features":
            visit.enter(self._examples(self.manifest.step_on_features, self.features(x), y, weight))
        else:
            visit.enter(self._examples(self.manifest.step, x, y, weight))

    def __repr__(self) -> str:
        state = "closed" if self._running is None else f"batch {self.manifest.batch}, {self.manifest.state}"
        return f"TrainingSession({self.manifest.name}, {state})"

    def _examples(self, signature: str, x: Any, y: Any = None, weight: Any = None) -> Examples:
        self._open()
        examples = examples_for(signature, self.manifest, x, y, weight)
        self._check_labels(examples)
        return examples

    def _step(self, examples: Examples, learning_rate: float, signature: str) -> Taken:
        with self._lock:
            self._rate_watch.step()
            return self._open().step(examples, learning_rate, signature)


def _threads(given: Any) -> int:
    """Return how many threads there are to be. Raises UsageError."""
    if isinstance(given, bool) or not isinstance(given, Integral) or given < 1:
        raise UsageError(f"threads must be a whole number from 1 on, got {given!r}", page="sessions")
    return int(given)
