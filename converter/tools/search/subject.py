"""Search problem: a model with its rows, and the evaluation of its schemes. Made once, sent to every worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from converter.driver.options import Options
from converter.support.errors import NumericError, PocketuneError, UsageError
from converter.tools.search.interleaving import REFERENCE, in_turns
from converter.tools.search.rate_schedule import RateSchedule
from converter.tools.search.space import Update
from converter.tools.search.splits import Split, take

#: A plan or a program.
_Made = TypeVar("_Made")
#: Nothing in int8.
_FLOAT: Mapping[str, Any] = {"frozen": "float32", "calibration": None}
#: Samples of this many trainings are looked at for the figures that cost no training.
_PROBED = 3


@dataclass(frozen=True)
class Trial:
    """One training of a scheme: on which side of the split, the seed, the highest learning rate."""

    on: Literal["selection", "held_out"]
    seed: int
    rate: float


@dataclass(frozen=True)
class Evaluation:
    """What a worker is asked for: trainings of a scheme, or without any, what it costs; of no scheme, the proxies.

    Or `timed`: what its step takes there.
    """

    update: Update | None
    trials: tuple[Trial, ...] = ()
    timed: bool = False


@dataclass(frozen=True)
class Subject:
    """A model and its data.

    Attributes:
        source: the imported model.
        options: of `pocketune.build`, except `update`.
        x, y: all rows.
        split: the trainings.
        epochs: of a training.
        course: of its learning rate.
    """

    source: Any = field(repr=False)
    options: Options
    x: Any = field(repr=False)
    y: Any = field(repr=False)
    split: Split = field(repr=False)
    epochs: int
    course: RateSchedule

    def __call__(self, job: Evaluation) -> dict[str, Any]:
        """Return what came out, as JSON: `scores` of trials, `costs`, `times`, the proxies, or `error`, the reason."""
        try:
            if job.update is None:
                return {"information": self._information(), "gradients": self._gradients()}
            if job.timed:
                return {"times": self._times(job.update)}
            return {"scores": self._train(job.update, job.trials)} if job.trials else {"costs": self._costs(job.update)}
        except PocketuneError as error:
            return {"error": str(error)}

    def check(self) -> None:
        """Raises UsageError for rows that no program of the model takes, before anything is compared."""
        with self._session("head", "evaluate", "infer") as session:  # `infer` says how many labels there are
            session.evaluate(self.x, self.y)

    def _costs(self, update: Update) -> dict[str, int]:
        from converter.driver.build import plan

        return dict(self._made(plan, update, self.options)[0].costs)

    def frozen(self, update: Update) -> str:
        """What its frozen layers are, as for `pocketune.build`: `float32` where none of them would become int8."""
        from converter.driver.build import plan

        return self._made(plan, update, self.options)[1]

    def _made(self, make: Callable[[Any, Options], _Made], update: Update, options: Options) -> tuple[_Made, str]:
        """Return what `build` or `plan` makes of a scheme, and what its frozen layers are there.

        int8 is for the schemes that leave something to it; the accuracy of all is measured, so nobody is warned.
        """
        from converter.driver.quantization import NothingToQuantizeError, QuantizationWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuantizationWarning)
            try:
                return make(self.source, replace(options, update=update)), options.frozen
            except NothingToQuantizeError:
                return make(self.source, replace(options, update=update, **_FLOAT)), "float32"

    def _times(self, update: Update) -> list[float]:
        """Return nanoseconds of a step of the scheme, and of the reference, in turns; weights stay as they are."""
        from converter.runtime import RateWarning

        with self._session(update) as one, self._session(REFERENCE) as other:
            rows = self._rows(self.split.selection[0].learned[: one.manifest.batch])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RateWarning)
                return in_turns(*(partial(session.train, *rows, rate_scale=0.0) for session in (one, other)))

    def _session(self, update: Update, *signatures: str, **changed: Any) -> Any:
        from converter.driver.build import make_program
        from converter.runtime import TrainingSession

        options = replace(self.options, signatures=("train", *signatures), check=False, **changed)
        return TrainingSession(self._made(make_program, update, options)[0].data)

    def _train(self, update: Update, trials: Sequence[Trial]) -> list[float | None]:
        """Return for each training the accuracy, or less its loss where nothing is counted; None where it diverged."""
        scores: list[float | None] = []
        with self._quickest(update) as session:
            for trial in trials:
                episode = getattr(self.split, trial.on)[trial.seed]
                steps = self.epochs * -(-len(episode.learned) // session.manifest.batch)
                rates = self.course.rates(trial.rate, steps)
                session.reset()
                try:
                    session.fit(
                        *self._rows(episode.learned),
                        epochs=self.epochs,
                        learning_rate=rates.__getitem__,
                        progress=False,
                        seed=trial.seed,
                    )
                    found = session.evaluate(*self._rows(episode.judged))
                    scores.append(found.get("accuracy", -found["loss"]))
                except NumericError:
                    scores.append(None)
        return scores

    def _quickest(self, update: Update) -> Any:
        """Return a session that runs frozen first layers once a row, not once a row and epoch, where that can be."""
        try:
            return self._session(update, "evaluate", "infer", "features")
        except UsageError:  # the first layer trains, or what is kept of a row would not be the same in each epoch
            return self._session(update, "evaluate", "infer")

    def _rows(self, rows: np.ndarray) -> tuple[Any, Any]:
        return take(self.x, rows), take(self.y, rows)

    def _information(self) -> dict[str, list[float]]:
        """The Fisher information of each input channel of the weights that can have it, before anything is learned."""
        try:
            session = self._session("channels-100", "fisher", **_FLOAT)
        except PocketuneError:  # no weight of this model can
            return {}
        with session:
            found = [session.fisher(*self._rows(e.learned)) for e in self.split.selection[:_PROBED]]
        return {name: np.mean([f[name] for f in found], 0).tolist() for name in found[0]}

    def _gradients(self) -> dict[str, float]:
        """Return the squared norm of each parameter's gradient, the mean over batches, before anything is learned."""
        squares: dict[str, list[float]] = {}
        with self._session("full", optimizer="sgd") as session:
            before, batch = session.parameters(), session.manifest.batch
            for episode in self.split.selection[:_PROBED]:
                for start in range(0, len(episode.learned) - batch + 1, batch):
                    session.reset()
                    session.train(*self._rows(episode.learned[start : start + batch]), learning_rate=1.0)
                    for name, value in session.parameters().items():
                        squares.setdefault(name, []).append(float(np.sum(np.square(value - before[name], dtype=float))))
        return {name: float(np.mean(each)) for name, each in squares.items()}
