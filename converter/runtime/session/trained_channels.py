"""Channels of a session: weighed by Fisher information, chosen before a training, redrawn during it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from converter.runtime.data.examples import Examples
from converter.runtime.session.channels import choose, information, redraw
from converter.runtime.session.held_state import HeldState
from converter.runtime.session.redrawing import check_redrawn
from converter.support.errors import UsageError


class TrainedChannels(HeldState):
    """A session that chooses which input channels of weights train."""

    @abstractmethod
    def _examples(self, signature: str, x: Any, y: Any = None, weight: Any = None) -> Examples:
        """Return checked rows for a signature."""

    def fisher(self, x: Any, y: Any = None, weight: Any = None) -> dict[str, np.ndarray]:
        """Return the Fisher information of the input channels of weights that have chosen ones, on any rows.

        Of a channel it is 1 / 2N sum_n (sum_d a_nd g_nd)^2: a is what the weight is multiplied with, g the gradient of
        a row's loss (times its weight) by it, d its places, N the number of rows of weight above 0.

        Raises:
            UsageError: as `train`; the program was built without the signature `fisher`.
            NumericError: it is not finite.
        """
        with self._lock:
            examples = self._examples("fisher", x, y, weight)
            return information(self._open().ready("fisher"), examples, self.manifest.micro_batch)

    def choose_channels(self, x: Any, y: Any = None, weight: Any = None, reset: bool = False) -> dict[str, np.ndarray]:
        """Lets those channels train that have the most Fisher information on a user's first samples.

        Args:
            x: as for `evaluate`, and y and weight likewise.
            y: targets.
            weight: how much each row counts.
            reset: go back to what was built first; else a state that has trained is refused, whose changes belong to
                the channels that it was trained with.

        Returns:
            The channels by weight, in order; `save` keeps them with the state.

        Raises:
            UsageError: as `fisher`, or the state has trained.
            NumericError: the information is not finite.
        """
        with self._lock:
            examples = self._examples("fisher", x, y, weight)
            try:
                choose(self._open(), self._program, examples, reset)
            finally:  # it may have been reset before the information was not finite
                self._changed()
            return self.channels()

    def redraw_channels(
        self, x: Any = None, y: Any = None, weight: Any = None, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Lets other channels train: weights take up what was added to theirs, and the training goes on from there.

        What the optimizer keeps for the change (moments) begins anew. `fit(..., redraw=True)` does it each epoch.

        Args:
            x: rows, as for `evaluate`, and y and weight likewise: those channels train that have the most Fisher
                information on them, as for `choose_channels`. None: they are drawn at random.
            y: targets.
            weight: how much each row counts.
            seed: of the draw, a whole number from 0 on; the same draws the same, here, on a phone and in a page.

        Returns:
            The channels by weight, in order; `save` keeps them with the state.

        Raises:
            UsageError: neither rows nor a seed, or both; no weight of the program is state that takes up a change; as
                `fisher`.
            NumericError: the information is not finite.
        """
        check_redrawn(self.manifest)
        if (x is None) == (seed is None):
            raise UsageError("redraw_channels takes rows to weigh channels by, or a seed= to draw by", page="sessions")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise UsageError(f"seed must be a whole number from 0 on, got {seed!r}", page="sessions")
        with self._lock:
            self._redraw(None if x is None else self._examples("fisher", x, y, weight), seed or 0, 0)
            return self.channels()

    def _redraw(self, examples: Examples | None, seed: int, epoch: int) -> None:
        with self._lock:
            redraw(self._open(), self._program, examples, seed, epoch)
            self._changed()
