"""Flower's `ClientApp` of a program: its messages in and out of a `Participant`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.federated.arrays import RefusedRound
from converter.federated.participant import Participant
from converter.federated.plan import Bounds
from converter.federated.privacy import Privacy, clipped
from converter.federated.records import packed, unpacked
from converter.program.file import Readable
from converter.support.errors import PocketuneError
from converter.support.extras import require

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

#: Where Flower keeps what stays with a client from round to round, by run.
_SLOTS = "pocketune-slots"
#: Flower's code of an error that an app raised.
RAISED = 2


def client_app(
    program: Readable,
    data: Any,
    held_out: Any = None,
    bounds: Bounds | None = None,
    threads: int = 1,
    mods: Any = (),
    privacy: Privacy | None = None,
    personal: Iterable[str] = (),
    own: str | Path | None = None,
) -> ClientApp:
    """Return a Flower `ClientApp` that trains and evaluates a program on a client's rows.

    It answers `train` with the trained tensors by their model names, `num-examples`, `loss` and `seconds`; `evaluate`
    with `num-examples`, `loss`, `seconds` and for a classifier `accuracy`; `query` with what it is. What it does not do
    it answers with an error that says why, so a strategy goes on with the others.

    Args:
        program: the `.tflite`, or its bytes.
        data: (x, y) or (x, y, weight) as for `TrainingSession.fit`; or a function that gives them for Flower's
            `Context`, for simulations: `context.node_config["partition-id"]`.
        held_out: rows to evaluate on, likewise. None: `data`.
        bounds: what a server may ask at most. None: `Bounds()`.
        threads: processor cores of a step.
        mods: Flower's, that see what leaves. A server that asks for clipping (`clipping_norm`) gets it without one.
        privacy: clipping and noise of the owner. None: neither.
        personal: patterns of tensors that stay here (FedPer); the server needs the same.
        own: a state file of this client's whole model, from which what is personal begins. None: none is kept.

    Raises:
        UsageError: Flower is not installed, or the program is none that several can train.
    """
    require("federated", "a federated client")
    from flwr.app import ConfigRecord, MetricRecord
    from flwr.clientapp import ClientApp

    opened = _Opened(program, bounds or Bounds(), threads, tuple(personal), own)
    opened()  # what is wrong with it is said now
    rows = _Rows(data)
    judged = rows if held_out is None else _Rows(held_out)
    app = ClientApp(mods=[clipped, *([] if privacy is None else privacy.mods()), *mods])

    @app.train()
    @_answered
    def train(message: Message, context: Context) -> dict[str, Any]:
        arrays, config = content_of(message)
        trained, figures, slots = opened().train(arrays, config, rows(context), _kept(context))
        if slots:
            context.state[_SLOTS] = packed(slots)
        return {"arrays": packed(trained), "metrics": MetricRecord(figures)}

    @app.evaluate()
    @_answered
    def evaluate(message: Message, context: Context) -> dict[str, Any]:
        return {"metrics": MetricRecord(opened().evaluate(*content_of(message), judged(context), _kept(context)))}

    @app.query()
    @_answered
    def query(message: Message, context: Context) -> dict[str, Any]:
        return {"config": ConfigRecord(opened().describe(rows(context)))}

    return app


@dataclass(frozen=True)
class _Opened:
    """A program as it is sent to the processes of a simulation; each opens it once."""

    program: Readable
    bounds: Bounds
    threads: int
    personal: tuple[str, ...] = ()
    own: str | Path | None = None

    def __call__(self) -> Participant:
        """Return the participant; raise UsageError where the file cannot be read."""
        return _participant(self, _changed(self.program) if isinstance(self.program, str | os.PathLike) else 0)


def _changed(path: str | os.PathLike) -> int:
    """Return when a file was last changed; 0 where there is none, which reading it says."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=2)
def _participant(opened: _Opened, changed: int) -> Participant:
    """Return the participant of this process; `changed` says when the file was."""
    return Participant(opened.program, opened.bounds, opened.threads, opened.personal, opened.own)


def _kept(context: Context) -> dict[str, np.ndarray]:
    """Return what stays with a client from round to round; nothing before its first."""
    kept = context.state.array_records.get(_SLOTS)
    return unpacked(kept) if kept else {}


class _Rows:
    """Rows of a client, which may depend on whom it stands for in a simulation; those of the last are kept."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._last: tuple[int, Any] | None = None

    def __call__(self, context: Context) -> Any:
        if not callable(self._data):
            return self._data
        last = self._last
        if last is None or last[0] != context.node_id:
            last = self._last = (context.node_id, self._data(context))
        return last[1]


def content_of(message: Message) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the config of a message. Raises RefusedRound where it has not one record of each."""
    records = message.content.array_records, message.content.config_records
    if any(len(of_kind) != 1 for of_kind in records):
        found = " and ".join(
            f"{len(of_kind)} records of {kind}" for of_kind, kind in zip(records, ("arrays", "config"), strict=True)
        )
        raise RefusedRound(f"the server sent {found}, and one of each is expected")
    (arrays,), (config,) = (of_kind.values() for of_kind in records)
    return unpacked(arrays), dict(config)


def _answered(act: Callable[[Message, Context], Mapping[str, Any]]) -> Callable[[Message, Context], Message]:
    """Return a function that answers with the records of another, or with the error that it raised."""
    from flwr.app import Error, Message, RecordDict

    def answer(message: Message, context: Context) -> Message:
        try:
            return Message(RecordDict(dict(act(message, context))), reply_to=message)
        except PocketuneError as error:
            return Message(Error(RAISED, str(error)), reply_to=message)

    return answer
