"""A leaf without a SuperLink, whose rounds are begun by hand, in Flower's environment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from converter.federated import Exchange
from converter.federated.leaf import Terms
from converter.federated.leaf.calls import Calls
from converter.federated.leaf.http import App, Listening
from converter.federated.leaf.phones import Phones
from converter.federated.leaf.rounds import Rounds
from converter.federated.leaf.store import Store
from converter.federated.node import most_of
from converter.program.file import read_program
from converter.runtime import TrainingSession
from tests.federated.light import Answer, Phone, Refused, read, update


class Bed:
    """A leaf without a SuperLink, whose rounds are begun by hand.

    Attributes:
        later: seconds by which the leaf's clock is moved.
        said: what it said of calls that it did not expect.
    """

    def __init__(self, folder: Path, name: str, terms: Terms, *shown: Path) -> None:
        """Opens one; `shown` is a certificate and its key, for TLS."""
        file = read_program(folder / "program.tflite")
        self.exchange, self.later = Exchange(file), 0.0
        with TrainingSession(folder / "program.tflite") as session:
            self.arrays = self.exchange.sent(session.state())
        self._at, self._terms, self.said = folder / name, terms, list[str]()
        self._shown = shown or (None, None)
        self._open()

    def _open(self) -> None:
        self.store = Store(self._at)
        self.rounds = Rounds(self.store, self.exchange, self._terms, lambda: time.time() + self.later)
        phones = Phones(self.rounds, most_of(self.exchange.nbytes(slots=True)))
        self._listening = Listening(App(Calls(self.rounds, phones), self.said.append), "127.0.0.1", 0, *self._shown)
        self.port = self._listening.port

    def close(self) -> None:
        self._listening.close()
        self.store.close()
        assert not self.said, self.said

    def again(self, *phones: Phone) -> None:
        """Another process on the same folder."""
        self.close()
        self._open()
        for phone in phones:
            phone.port = self.port

    def begin(self, number: int, kind: str = "train", arrays: Any = None) -> None:
        config = {"program": self.exchange.identity, "server-round": number}
        sent = {name: Array(one) for name, one in (arrays or self.arrays).items()}
        content = {"arrays": ArrayRecord(sent), "config": ConfigRecord(config)}
        message = Message(RecordDict(content), dst_node_id=7, message_type=kind, group_id=str(number))
        message.metadata.__dict__["_message_id"] = message.object_id
        self.rounds.begin(message)

    def phones(self, count: int) -> list[Phone]:
        made = [Phone(self.port) for _ in range(count)]
        for phone in made:
            phone.join()
        return made

    def result(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return what the SuperLink is answered."""
        reply = self.rounds.reply()
        assert reply is not None, self.rounds.counts()
        assert reply.has_content(), reply.error
        arrays = {n: a.numpy() for record in reply.content.array_records.values() for n, a in record.items()}
        return arrays, dict(next(iter(reply.content.metric_records.values())))


def good(phone: Phone, seed: int) -> tuple[Answer, tuple[dict[str, np.ndarray], int]]:
    """Pull a message; return a made-up answer to it, and what it holds."""
    found = phone.pull()
    assert found is not None
    moved, rows = update(seed, read(found[1])[0])
    return Answer.to(found[0], moved, {"num-examples": rows, "loss": 1.0 + seed}), (moved, rows)


def refused(act: Any, said: str, status: int) -> None:
    """Check that a call is refused with a sentence."""
    try:
        act()
    except Refused as error:
        told, found = str(error), error.status
    else:
        raise AssertionError(f"it was taken: {said}")
    assert (said in told, found) == (True, status), (said, told)
