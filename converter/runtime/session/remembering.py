"""Experience replay in `fit`: which rows of a memory are mixed in, and whether the model forgot those kept aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from converter.runtime.data.examples import Examples
from converter.runtime.replay.memory import ReplayMemory, Visit
from converter.runtime.session.held_state import HeldState
from converter.runtime.session.loop import Drifted
from converter.support.errors import UsageError

#: The largest share of replayed rows, as on a phone and in a page.
_MOST_REPLAY = 0.95


class Replay(NamedTuple):
    """What is mixed into a training.

    Attributes:
        memory: rows of earlier ones.
        share: of them in an epoch.
        names: of the session's classes by label; None where it has none.
    """

    memory: ReplayMemory
    share: float
    names: Sequence[str] | None

    @staticmethod
    def checked(memory: Any, share: Any, names: Sequence[str] | None) -> Replay:
        """Return it. Raise UsageError for what is no memory or no share, or for rows of a class that is another now."""
        if not isinstance(memory, ReplayMemory):
            raise UsageError(
                f"memory is a ReplayMemory(path, session.manifest), not {type(memory).__name__}", page="replay-memories"
            )
        if isinstance(share, bool) or not isinstance(share, int | float | np.number) or not 0 <= share <= _MOST_REPLAY:
            raise UsageError(f"replay: a share from 0 to {_MOST_REPLAY}, not {share!r}", page="replay-memories")
        memory.check_classes(names)
        return Replay(memory, float(share), names)


class Drift:
    """By how much a training changes the loss on the rows that a memory keeps aside.

    Attributes:
        rows: those, of the trainings before; None without any.
        figures: what the history says of it.
    """

    def __init__(
        self,
        session: HeldState,
        memory: ReplayMemory | None,
        most: float | None,
        rows: Callable[..., Examples],
        judge: Callable[[Examples, None], dict[str, float]],
    ) -> None:
        """Looks at the loss before a training.

        Args:
            session: that trains.
            memory: what it remembers.
            most: by what share the loss may rise before the state goes back; None: it stays.
            rows: gives checked rows to evaluate on.
            judge: evaluates on them.

        Raises:
            UsageError: there is no memory for `roll_back`, or it is no share; the rows are not the program's.
        """
        if most is not None and (
            isinstance(most, bool) or not isinstance(most, int | float | np.number) or not most >= 0
        ):
            raise UsageError(f"roll_back: a share from 0 on, not {most!r}", page="replay-memories")
        if most is not None and memory is None:
            raise UsageError(
                "roll_back goes by the held-out rows of a memory: pass memory=ReplayMemory(path, session.manifest)",
                page="replay-memories",
            )
        self._session, self._most, self._judge = session, most, judge
        kept = None if memory is None else memory.held_out()
        self.rows = None if kept is None else _of_memory(lambda: rows(*kept))
        self._before = self._loss() if self.rows is not None else 0.0
        self._state: dict[str, np.ndarray] = {}
        self.figures: dict[str, list[float]] = {}

    def begin(self) -> None:
        """Keep the state that is gone back to: from here on it must have the classes that it will have then."""
        if self.rows is not None and self._most is not None:
            self._state = self._session.state()

    def settle(self) -> Drifted | None:
        """Return what is to be told after the training, and go back to the state before it where the loss rose."""
        if self.rows is None:
            return None
        after = self._loss()
        self.figures = {"drift": [after - self._before]}
        goes_back = bool(self._state) and after - self._before > (self._most or 0.0) * abs(self._before)
        if goes_back:
            self._session._back(self._state)
        return Drifted(self._before, after, goes_back) if after > self._before else None

    def _loss(self) -> float:
        assert self.rows is not None
        return self._judge(self.rows, None)["loss"]


def check_some_train(visit: Visit) -> None:
    """Raise UsageError where all rows of a training are to be kept aside."""
    if not np.any(visit.trains):
        raise UsageError(
            f"all rows, {len(visit.trains)}, are kept aside by the memory, and none is left to train on: pass more "
            "in a call, or add them with session.remember(memory, x, y)",
            page="replay-memories",
        )


def replayed(memory: ReplayMemory, on_features: Callable[[Any, Any, Any], tuple[str, Examples]]) -> Examples | None:
    """Return the rows of a memory as the step takes them; None of an empty one.

    Args:
        memory: what is replayed.
        on_features: gives rows as the step takes them.
    """
    if not memory.counts():
        return None
    if memory.keeps == "features":
        return memory.examples()
    return _of_memory(lambda: on_features(*memory.replayed())[1])


def _of_memory(check: Callable[[], Examples]) -> Examples:
    """Return checked rows of a memory; what is refused is said of it."""
    try:
        return check()
    except UsageError as error:
        raise UsageError(
            f"the memory: {error}. Rows of a class that was forgotten leave it with memory.forget(label)",
            page="replay-memories",
        ) from None
