"""The server's part: initial arrays of a Flower strategy, the held-out curve, and the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.federated.arrays import Exchange
from converter.federated.participant import arguments
from converter.federated.records import packed, unpacked
from converter.program.file import ProgramFile, read_program
from converter.runtime import TrainingSession
from converter.runtime.export import export_inference
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.files import write_atomically

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy

#: What a strategy of the FedOpt family remembers from round to round.
_MOMENTS = ("m_t", "v_t")


class Coordinator:
    """Runs a strategy of Flower on a program's trained tensors, and keeps what it reached after every round.

    In its folder lie `shared.state`, which every phone, page and session with this program restores, `shared.tflite`,
    the plain model with those weights (at the end), `curve.jsonl`, a line for each round, and what the strategy
    remembers. A run that was stopped goes on from there.

    Attributes:
        exchange: what travels.
    """

    def __init__(
        self,
        program: str | Path,
        folder: str | Path,
        held_out: Any = None,
        slots: bool = False,
        personal: Iterable[str] = (),
    ) -> None:
        """Opens a program, and what is in the folder of an earlier run.

        Args:
            program: the `.tflite`.
            folder: for the results; made where it is not there.
            held_out: (x, y) or (x, y, weight) to evaluate on after each round; None: on nothing.
            slots: the optimizer's slots travel, and are averaged, too.
            personal: patterns of tensors that stay with the clients; here they stay as built.

        Raises:
            UsageError: Flower is not installed, several cannot train the program, or the folder is of another.
        """
        require("federated", "a federated server")
        self._file: ProgramFile = read_program(program)
        self.exchange = Exchange(self._file, personal=personal)
        self._folder, self._held_out, self._slots = Path(folder), held_out, slots
        self._folder.mkdir(parents=True, exist_ok=True)
        self._session = TrainingSession(program)
        self._last: int | None = None
        self._answers = 0
        last = max((int(line["round"]) for line in self.curve()), default=None)
        self._settle(last)
        if self._state.exists():
            self._session.restore(self._state)
            self._last = last

    @property
    def rounds(self) -> int:
        """How many are done, with those of earlier runs."""
        return self._last or 0

    def curve(self) -> list[dict[str, float]]:
        """Return a record for each round, 0 as built.

        It has `round`, `clients` that answered with numbers, and what `evaluate` gives of the held-out rows.
        """
        if not self._curve.exists():
            return []
        lines = self._curve.read_text().splitlines()
        try:
            return [json.loads(line) for line in lines if line.endswith("}")]
        except ValueError as error:
            raise UsageError(f"{self._curve} is no curve: {error}", page="federated") from None

    def run(
        self, grid: Grid, strategy: Strategy, rounds: int, plan: Mapping[str, Any], timeout: float = 3600.0
    ) -> Result | None:
        """Run the rounds that are left of so many, and export what came of them.

        Args:
            grid: of the `ServerApp`.
            strategy: any of Flower's that averages arrays.
            rounds: how many in all, with those of earlier runs.
            plan: for the clients: `epochs`, `steps`, `learning-rate`, `seed` (`Plan.of`).
            timeout: seconds that a round waits for answers.

        Returns:
            Flower's result; None where no round was left.
        """
        from flwr.app import ConfigRecord

        done, result = self.rounds, None
        if done < rounds:
            self._recall(strategy)
            _begin_behind(strategy, done)
            strategy.aggregate_train = self._counting(strategy.aggregate_train)
            named = {"program": self.exchange.identity}
            result = strategy.start(
                grid,
                packed(self.exchange.sent(self._session.state(), self._slots)),
                rounds - done,
                timeout,
                ConfigRecord({**named, **plan}),
                ConfigRecord(named),
                lambda number, arrays: self._keep(done + number, arrays, strategy),
            )
        export_inference(self._file, self._folder / "shared.tflite", self._state)
        return result

    def _keep(self, number: int, arrays: ArrayRecord, strategy: Strategy) -> MetricRecord | None:
        """Keeps what a round gave, and returns how good it is."""
        from flwr.app import MetricRecord

        taken = self.exchange.taken(unpacked(arrays))
        self._session.set_state(self._session.state() | self.exchange.begun(taken))
        found = {} if self._held_out is None else self._session.evaluate(*arguments(self._held_out))
        if number != self._last:  # else it is what an earlier run ended with
            self._session.save(_waiting(self._state, number))
            self._remember(strategy, number)
            records = [*self.curve(), {"round": number, "clients": self._answers, **found}]
            write_atomically(self._curve, "".join(json.dumps(record) + "\n" for record in records).encode())
            self._settle(number)
            self._last = number
        return MetricRecord(found) if found else None

    def _counting(self, aggregate: Callable[..., Any]) -> Callable[..., Any]:
        """Return a strategy's way to average that also counts the answers with numbers."""

        def counted(server_round: int, replies: Iterable[Message]) -> Any:
            given = list(replies)
            self._answers = sum(not reply.has_error() for reply in given)
            return aggregate(server_round, given)

        return counted

    def _settle(self, number: int | None) -> None:
        """Takes the files of a round as the result, once the curve has its line: a killed run has all of it or nothing.

        Args:
            number: the curve's last round; files of any other are of one that was not finished.
        """
        for path in (self._state, self._moments):
            for file in path.parent.glob(f"{path.name}.*"):
                if number is not None and file == _waiting(path, number):
                    file.replace(path)
                else:
                    file.unlink()

    def _remember(self, strategy: Strategy, number: int) -> None:
        """Keeps the moments of a strategy that has some, as of a round."""
        kept = {
            f"{name}/{key}": array for name in _MOMENTS for key, array in (getattr(strategy, name, None) or {}).items()
        }
        if kept:
            packed = BytesIO()
            np.savez(packed, **kept)
            write_atomically(_waiting(self._moments, number), packed.getvalue())

    def _recall(self, strategy: Strategy) -> None:
        if not self.rounds or not self._moments.exists():
            return
        with np.load(self._moments, allow_pickle=False) as kept:
            for name in _MOMENTS:
                found = {key.removeprefix(f"{name}/"): kept[key] for key in kept.files if key.startswith(f"{name}/")}
                if found:
                    setattr(strategy, name, found)

    @property
    def _state(self) -> Path:
        return self._folder / "shared.state"

    @property
    def _curve(self) -> Path:
        return self._folder / "curve.jsonl"

    @property
    def _moments(self) -> Path:
        return self._folder / "strategy.npz"


def _waiting(path: Path, number: int) -> Path:
    """Return where a result of a round is until the curve has its line."""
    return path.with_name(f"{path.name}.{number}")


def _begin_behind(strategy: Strategy, done: int) -> None:
    """Lets a strategy number its rounds after those that are done: corrections of moments and clients go by that."""
    for name in ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"):
        setattr(strategy, name, _behind(getattr(strategy, name), done))


def _behind(step: Callable[..., Any], done: int) -> Callable[..., Any]:
    @wraps(step)
    def later(server_round: int, *arguments: Any, **named: Any) -> Any:
        return step(server_round + done, *arguments, **named)

    return later
