"""A client's part in a round: arrays and a config come in, arrays and metrics go out; no network, nothing of Flower.

A client in another language does the same, in the same order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from converter.federated.arrays import Exchange, RefusedRound
from converter.federated.plan import Bounds, Plan
from converter.program.file import Readable, read_program
from converter.runtime import Evaluated, Event, Step, TrainingSession
from converter.runtime.session.batches import arguments_of

Arrays = Mapping[str, np.ndarray]
#: Of a reply, by name: `num-examples` is what a strategy weighs by, the others are averaged by it.
Figures = dict[str, float]
_NOTHING: Arrays = MappingProxyType({})


class Participant:
    """A program with a session of its own, which holds nothing from one call to the next but what was built.

    Whatever a server sends, the worst that comes of it is a round that ends with a sentence.

    Attributes:
        exchange: what travels.
    """

    def __init__(
        self,
        program: Readable,
        bounds: Bounds | None = None,
        threads: int = 1,
        personal: Iterable[str] = (),
        own: str | Path | None = None,
    ) -> None:
        """Opens a program.

        Args:
            program: the `.tflite`, or its bytes.
            bounds: of the owner.
            threads: processor cores of a step.
            personal: patterns of what stays here (`Exchange`).
            own: a state file of the whole model as it was last trained here, from which what is personal begins; made
                where it is not there.

        Raises:
            UsageError: it is none, or cannot be trained by several, or the file is of another program.
        """
        self.bounds = bounds or Bounds()
        self.exchange = Exchange(read_program(program), self.bounds.norm, personal)
        self._session = TrainingSession(program, threads)
        self._built, self._own = self._session.state(), None if own is None else Path(own)
        if self._own is not None and self._own.exists():
            self._session.restore(self._own)
            held = self._session.state()
            self._built |= {tensor: held[tensor] for tensor in self.exchange.at_home}
        self._lock = threading.Lock()

    def train(
        self, arrays: Arrays, config: Mapping[str, Any], data: Any, slots: Arrays
    ) -> tuple[Arrays, Figures, Arrays]:
        """Train on a client's rows from the server's arrays on.

        Args:
            arrays: the trained tensors by name, with the optimizer's slots where these are to travel.
            config: `program` and what `Plan.of` reads.
            data: (x, y) or (x, y, weight) as for `TrainingSession.fit`.
            slots: what this client kept from its last round (`Exchange.kept`), as this gave it; empty: as built.

        Returns:
            As many arrays as came; `num-examples`, `loss` (mean over the last epoch, while it trains) and `seconds`;
            what to keep for the next round.

        Raises:
            RefusedRound: the program is another, or arrays or config are not what is taken here.
            UsageError: the rows are not those of the program.
            NumericError: the training diverged.
        """
        with self._lock:
            plan, kept = self._plan(config), self._kept(slots)
            at_home = {**self._built, **kept}
            own = {one.tensor: at_home[one.tensor] for one in self.exchange.personal.values()}
            self._put(self.exchange.begun(self.exchange.taken(arrays), plan.proximal_mu, own), kept)
            begun, losses = time.monotonic(), _Losses(plan.steps)
            x, y, weight = arguments(data)
            done = (plan.round - 1) * plan.epochs
            self._session.fit(
                x,
                y,
                done + plan.epochs,
                plan.learning_rate,
                False,
                plan.seed,
                weight,
                listener=losses,
                initial_epoch=done,
            )
            state = self._session.state()
            figures = {"num-examples": examples(x, weight), "loss": losses.last, "seconds": time.monotonic() - begun}
            own = self.exchange.sent(state, self.exchange.asks_slots(arrays))
            sent = {name: own[name] for name in arrays}  # in the server's order, which Flower's mods go by
            if self._own is not None:
                self._session.save(self._own)
                self._built |= {tensor: state[tensor] for tensor in self.exchange.at_home}
            return sent, figures, {tensor: state[tensor] for tensor in self.exchange.kept}

    def evaluate(self, arrays: Arrays, config: Mapping[str, Any], data: Any, slots: Arrays = _NOTHING) -> Figures:
        """Return how good the server's arrays are on a client's rows.

        Args:
            arrays: as for `train`.
            config: as for `train`.
            data: as for `train`.
            slots: as for `train`.

        Returns:
            `num-examples`, `seconds`, and what `TrainingSession.evaluate` gives: `loss`, for a classifier `accuracy`.

        Raises:
            RefusedRound: as `train`.
            UsageError: as `train`.
            NumericError: the loss is not finite.
        """
        with self._lock:
            self._plan(config)
            self._put(self.exchange.taken(arrays), self._kept(slots))
            x, y, weight = arguments(data)
            begun, found = time.monotonic(), self._session.evaluate(x, y, weight)
            return {"num-examples": examples(x, weight), **found, "seconds": time.monotonic() - begun}

    def describe(self, data: Any) -> dict[str, str | int]:
        """Return what a client says of itself where it is asked: its program, its rows, the bytes of a round."""
        x, _, weight = arguments(data)
        return {
            "program": self.exchange.identity,
            "num-examples": examples(x, weight),
            "bytes": self.exchange.nbytes(),
        }

    def close(self) -> None:
        """Gives the session's memory back."""
        self._session.close()

    def _plan(self, config: Mapping[str, Any]) -> Plan:
        asked = config.get("program")
        if asked not in self.exchange.accepted:
            what = "no program" if asked is None else f"the program {str(asked)[:16]}"
            raise RefusedRound(
                f"the server's config names {what}, and this client has {self.exchange.identity[:16]}: both need "
                "the same build of the same model (config['program'] = pocketune.federated.identity(PROGRAM))"
            )
        plan = Plan.of(config, self.bounds)
        if plan.proximal_mu and not self.exchange.has_proximal:
            raise RefusedRound(
                "the server asks for FedProx's term (proximal-mu), and this program was built without it: build(..., "
                "proximal=0.01)"
            )
        return plan

    def _kept(self, slots: Arrays) -> dict[str, np.ndarray]:
        """Return slots of an earlier round, checked: they come from what Flower keeps of a client."""
        if slots and {name: array.shape for name, array in slots.items()} != self.exchange.kept:
            raise RefusedRound(
                "the slots of the last round are not those of this program, or are of other personal tensors"
            )
        # Where the owner has a file, it has what is personal, and may have classes that came since.
        own = () if self._own is None else self.exchange.at_home
        return {name: array for name, array in slots.items() if name not in own}

    def _put(self, tensors: Arrays, slots: Arrays) -> None:
        self._session.set_state(self._built | dict(slots) | dict(tensors))


class _Losses:
    """Listens to a training, and ends it after so many steps.

    Attributes:
        last: the mean loss of the last epoch, as far as it came.
    """

    def __init__(self, most: int | None) -> None:
        self._most, self._seen = most, 0
        self._epoch: tuple[int, list[Step]] = (-1, [])
        self.last = 0.0

    def __call__(self, event: Event) -> bool:
        if isinstance(event, Step):
            self._seen += 1
            if event.epoch != self._epoch[0]:
                self._epoch = (event.epoch, [])
            steps = self._epoch[1]
            steps.append(event)
            self.last = float(np.average([one.loss for one in steps], weights=[one.weight for one in steps]))
        elif isinstance(event, Evaluated):
            self.last = event.figures["loss"]
        return self._most is None or self._seen < self._most


def arguments(data: Any) -> tuple[Any, Any, Any]:
    """Return x, y and weight of rows: (x, y), (x, y, weight) or x alone; None where there is none."""
    if not isinstance(data, tuple | list):
        return data, None, None
    x, y, weight = (*arguments_of(data), None, None)[:3]
    return x, y, weight


def examples(x: Any, weight: Any) -> int:
    """Return how many rows there are to learn from."""
    if weight is not None:
        return int(np.count_nonzero(np.asarray(weight)))
    first = next(iter(x.values())) if isinstance(x, Mapping) else x[0] if isinstance(x, tuple | list) else x
    return len(first)
