"""Rounds of a leaf: the SuperLink's request, when enough phones have answered, and the leaf's answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import message_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from converter.federated.app import RAISED, content_of
from converter.federated.arrays import Exchange, RefusedRound
from converter.federated.leaf.mean import Mean, unpack
from converter.federated.leaf.store import Store
from converter.federated.records import packed
from converter.support.errors import UsageError
from converter.support.words import counted

#: Answers that wait on disk until they are added to the sum, which is then written once.
_TOGETHER = 64
#: States of what a phone was asked: it goes out; it is there; the answer comes; that is whole; in the sum; never.
SENT, HAD, COMING, WHOLE, COUNTED, FAILED = "sent", "had", "coming", "whole", "counted", "failed"


@dataclass(frozen=True)
class Terms:
    """When a round of a leaf is over.

    Attributes:
        phones: whose answers it waits for; None: those that are online when it begins.
        least: answers without which it ends with an error.
        wait: seconds after which it ends with the answers that there are.
        buffer: FedBuff: a round ends after so many answers, and those that come later count in later rounds, by
            1 / sqrt(1 + how many rounds later). None: a late answer is refused.
        stale: more rounds later an answer is refused.
        rows: more of a phone are refused.
        known: phones that may register.
    """

    phones: int | None = None
    least: int = 1
    wait: float = 600.0
    buffer: int | None = None
    stale: int = 10
    rows: int = 1_000_000
    known: int = 100_000

    def __post_init__(self) -> None:
        """Raises UsageError for terms by which no round ends."""
        for name, value in vars(self).items():
            if value is not None and not value >= (0 if name == "stale" else 1):
                raise UsageError(f"{name} is {value!r}, and must be 1 or more", page="federated")
        most = self.phones if self.buffer is None else self.buffer
        if most is not None and most < self.least:
            raise UsageError(f"a round of {most} never has {self.least} answers", page="federated")


class Round:
    """A message of the SuperLink, ready to be sent on to phones.

    Attributes:
        number: the leaf's own.
        message: with its content.
        arrays: that it carries, by name.
        objects: its content's objects by id: what all phones are sent alike.
        tree: of them.
    """

    def __init__(self, number: int, message: Message) -> None:
        self.number, self.message = number, message
        self.arrays, _ = content_of(message)
        self.objects = {name: one.deflate() for name, one in get_all_nested_objects(message.content).items()}
        self.tree = get_object_tree(message.content)

    @property
    def trains(self) -> bool:
        """Whether its answers are arrays."""
        return str(self.message.metadata.message_type).partition(".")[0] == "train"


class Rounds:
    """The round that is open, and of FedBuff those before it."""

    def __init__(self, store: Store, exchange: Exchange, terms: Terms, clock: Callable[[], float] = time.time) -> None:
        """Goes on with the round that the store has, if any."""
        self.store, self.exchange, self.terms, self.clock = store, exchange, terms, clock
        self._round: Round | None = None
        self._mean = Mean()
        found = store.one("SELECT number, mean FROM rounds WHERE open")
        if found is not None:
            self._round, self._mean = self._read(found[0]), Mean.of(found[1])

    @property
    def open(self) -> Round | None:
        """The round that phones are asked for."""
        return self._round

    def begin(self, message: Message) -> None:
        """Keep a message of the SuperLink on disk, and ask phones; one that is there already goes on.

        Raises:
            RefusedRound: it is not what this program's phones take.
        """
        if message.metadata.message_type.partition(".")[0] not in ("train", "evaluate"):
            raise RefusedRound(f"a leaf has phones train and evaluate, and not {message.metadata.message_type}")
        arrays, config = content_of(message)
        self.exchange.checked(arrays)
        if config.get("program") not in self.exchange.accepted:
            raise RefusedRound(f"the server's config names another program than the leaf's, {self.exchange.identity}")
        with self.store.turn():
            if self.store.one("SELECT 1 FROM rounds WHERE id = ?", message.metadata.message_id):
                return
            self.end()
            now = self.clock()
            online = self.store.one("SELECT COUNT(*) FROM phones WHERE until >= ?", now)[0]
            self.store.put(
                "INSERT INTO rounds(id, kind, message, opened, places) VALUES (?, ?, ?, ?, ?)",
                message.metadata.message_id,
                message.metadata.message_type.partition(".")[0],
                message_to_proto(message).SerializeToString(),
                now,
                self.terms.phones or max(online, self.terms.least),
            )
            number = self.store.one("SELECT MAX(number) FROM rounds")[0]
            self._forget(number)
        self._round, self._mean = Round(number, message), Mean()

    def end(self) -> None:
        """Closes the round: what is answered later is late."""
        with self.store.turn():
            self.store.put("UPDATE rounds SET open = 0, mean = NULL WHERE open")
            self.store.put(
                "UPDATE asked SET state = ?, reason = ? WHERE state NOT IN (?, ?) AND round IN "
                "(SELECT number FROM rounds WHERE ? OR kind != 'train')",
                *(FAILED, "the round is over", COUNTED, FAILED, self.terms.buffer is None),
            )
            self.store.put("DELETE FROM answers WHERE asked IN (SELECT id FROM asked WHERE state = ?)", FAILED)
            self.store.put("DELETE FROM objects WHERE asked IN (SELECT id FROM asked WHERE state = ?)", FAILED)
        self._round = None

    def read(self, number: int) -> Round | None:
        """Return a round that phones may still answer."""
        return self._round if self._round is not None and self._round.number == number else self._read(number)

    def fold(self, least: int = _TOGETHER) -> None:
        """Adds answers that are whole to the sum, as soon as there are so many: the sum is written once for all."""
        if self._round is None:
            return
        with self.store.turn():
            waiting = self._waiting()
            if len(waiting) < least:
                return
            mean = self._mean.copied()
            for name, number in waiting:
                self._add(mean, name, number)
            self.store.put("UPDATE rounds SET mean = ? WHERE number = ?", mean.packed(), self._round.number)
        self._mean = mean

    def reply(self) -> Message | None:
        """Return the answer to the SuperLink, or None while the round goes on. It may be asked for again."""
        if self._round is None or not self._is_over():
            return None
        self.fold(1)
        answers, asked = self._mean.answers, self._round.message
        if answers < self.terms.least:
            count = self.store.one("SELECT COUNT(*) FROM asked WHERE round = ?", self._round.number)[0]
            reasons = self.store.one(
                "SELECT reason FROM asked WHERE round = ? AND reason != '' LIMIT 1", self._round.number
            )
            told = f", one of them because {reasons[0]}" if reasons else ""
            reason = (
                f"of {counted(count, 'phone')} that were asked {answers} answered with numbers in {self.terms.wait:g} "
                f"seconds{told}; this leaf answers for {self.terms.least} or more"
            )
            return Message(Error(RAISED, reason), reply_to=asked)
        figures = self._mean.figures()
        content: dict[str, Any] = {"metrics": MetricRecord({**figures, "num-examples": int(figures["num-examples"])})}
        if self._round.trains:
            means = self._mean.arrays()
            content["arrays"] = packed({name: means[name] for name in self._round.arrays})
        return Message(RecordDict(content), reply_to=asked)

    def described(self, message: Message) -> Message:
        """Return the answer to a `query`: what the leaf is."""
        online = self.store.one("SELECT COUNT(*) FROM phones WHERE until >= ?", self.clock())[0]
        told = {"program": self.exchange.identity, "phones": online, "bytes": self.exchange.nbytes()}
        return Message(RecordDict({"config": ConfigRecord(told)}), reply_to=message)

    def counts(self) -> dict[str, int]:
        """Return how many phones of the open round are in each state."""
        number = 0 if self._round is None else self._round.number
        return dict(self.store.all("SELECT state, COUNT(*) FROM asked WHERE round = ? GROUP BY state", number))

    def places(self) -> int:
        """Return how many phones may still be asked in the open round."""
        if self._round is None:
            return 0
        if self.terms.buffer is not None and self._round.trains:
            return self.terms.known
        limit = self.store.one("SELECT places FROM rounds WHERE number = ?", self._round.number)[0]
        return int(limit - self._taken())

    def _waiting(self) -> list[tuple[str, int]]:
        """Return the answers that count in the open round and are not yet in its sum, with their rounds."""
        assert self._round is not None
        return self.store.all(
            "SELECT asked.id, asked.round FROM asked JOIN rounds ON rounds.number = asked.round "
            "WHERE state = ? AND (asked.round = ? OR (? AND kind = 'train')) ORDER BY node",
            *(WHOLE, self._round.number, self.terms.buffer is not None and self._round.trains),
        )

    def _taken(self) -> int:
        """Return how many phones have answered, or may be at work."""
        assert self._round is not None
        found = self.store.one(
            "SELECT COUNT(*) FROM asked LEFT JOIN phones USING (node) WHERE round = ? AND "
            "(state IN (?, ?) OR (state != ? AND until >= ?))",
            *(self._round.number, WHOLE, COUNTED, FAILED, self.clock()),
        )
        return int(found[0])

    def _is_over(self) -> bool:
        assert self._round is not None
        number, now = self._round.number, self.clock()
        opened, places = self.store.one("SELECT opened, places FROM rounds WHERE number = ?", number)
        if now > opened + self.terms.wait:
            return True
        answered = self._mean.answers + len(self._waiting())
        if self.terms.buffer is not None and self._round.trains:
            return answered >= self.terms.buffer
        if answered >= places:
            return True
        if self.terms.phones is not None or answered < self.terms.least:
            return False
        unasked = self.store.one(
            "SELECT COUNT(*) FROM phones WHERE until >= ? AND node NOT IN (SELECT node FROM asked WHERE round = ?)",
            *(now, number),
        )[0]
        return bool(self._taken() == answered and not unasked)

    def _add(self, mean: Mean, name: str, number: int) -> None:
        """Adds one answer to a sum; of an earlier round how the phone moved, from where the weights are now."""
        blob, told = self.store.one("SELECT arrays, figures FROM answers WHERE asked = ?", name)
        arrays, figures = unpack(blob), json.loads(told)
        assert self._round is not None
        behind = self._round.number - number
        if behind:
            base = self._read(number)
            if base is not None:
                arrays = moved(self._round.arrays, base.arrays, arrays, behind)
        mean.add(arrays, figures)
        self.store.put("DELETE FROM answers WHERE asked = ?", name)
        self.store.put("UPDATE asked SET state = ? WHERE id = ?", COUNTED, name)

    def _forget(self, number: int) -> None:
        """Drops rounds that no phone may answer any more, and phones that have not been seen for a month."""
        oldest = number - (0 if self.terms.buffer is None else self.terms.stale)
        self.store.put("DELETE FROM answers WHERE asked IN (SELECT id FROM asked WHERE round < ?)", oldest)
        self.store.put("DELETE FROM objects WHERE asked IN (SELECT id FROM asked WHERE round < ?)", oldest)
        self.store.put("DELETE FROM asked WHERE round < ?", oldest)
        self.store.put("DELETE FROM rounds WHERE number < ?", oldest)
        self.store.put("DELETE FROM phones WHERE seen < ?", self.clock() - 30 * 86400)

    def _read(self, number: int) -> Round | None:
        found = self.store.one("SELECT message FROM rounds WHERE number = ?", number)
        return None if found is None else Round(number, message_from_proto(message_pb2.Message.FromString(found[0])))


def moved(
    now: dict[str, np.ndarray], base: dict[str, np.ndarray], answer: dict[str, np.ndarray], behind: int
) -> dict[str, np.ndarray]:
    """Return what a late answer stands for: how it moved the weights that it began from, by 1 / sqrt(1 + behind).

    Args:
        now: the weights of the round in which it counts.
        base: those that its phone was sent.
        answer: those that it sent back.
        behind: rounds between the two.

    Returns:
        float64 arrays by name (FedBuff, arXiv:2106.06639).
    """
    factor = 1 / np.sqrt(1 + behind)
    return {
        name: now[name] + factor * (array.astype(np.float64) - base[name].astype(np.float64))
        for name, array in answer.items()
    }
