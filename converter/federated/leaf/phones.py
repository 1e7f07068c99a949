"""What a leaf does for one phone: a message out, objects down, an answer up, everything checked."""

from __future__ import annotations

import json
import re
import secrets
from math import isfinite
from typing import Any

from flwr.app import Message
from flwr.proto import message_pb2
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_object_id

from converter.federated.arrays import RefusedRound
from converter.federated.leaf.mean import WEIGHT, pack
from converter.federated.leaf.rounds import COMING, COUNTED, FAILED, HAD, SENT, WHOLE, Round, Rounds
from converter.federated.messages import head_of, ids_of, inflated
from converter.federated.records import unpacked
from converter.support.words import size

#: Of a message that tells of an error, more is not kept.
_REASON = 300
_ID = re.compile("[0-9a-f]{64}")


class Refusal(Exception):
    """A call is not done.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Phones:
    """Messages to phones and back, in the rounds of a leaf."""

    def __init__(self, rounds: Rounds, most: int) -> None:
        """Takes the rounds of a leaf, and how many bytes all objects of an answer may have together."""
        self._rounds, self._store, self._most = rounds, rounds.store, most

    def message(self, node: int) -> tuple[message_pb2.Message, message_pb2.ObjectTree] | None:
        """Return what a phone is asked: head and tree of objects. None: nothing, for now."""
        with self._store.turn():
            found = self._store.one(
                "SELECT id, round, head, state FROM asked WHERE node = ? AND state NOT IN (?, ?, ?)",
                *(node, WHOLE, COUNTED, FAILED),
            )
            if found is not None:
                name, number, head, state = found
                asked = self._rounds.read(number)
                return None if state != SENT or asked is None else _envelope(name, head, asked)
            asked = self._rounds.open
            if asked is None or self._rounds.places() < 1:
                return None
            if self._store.one("SELECT 1 FROM asked WHERE node = ? AND round = ?", node, asked.number):
                return None
            head = self._head(node, asked)
            name = get_object_id(_object(head, asked))
            self._store.put(
                "INSERT INTO asked(id, node, round, head, state) VALUES (?, ?, ?, ?, ?)",
                *(name, node, asked.number, head, SENT),
            )
            return _envelope(name, head, asked)

    def object(self, node: int, name: str) -> bytes | None:
        """Return an object of what a phone is asked; None where it is not asked that."""
        found = self._asked_of(node)
        asked = None if found is None else self._rounds.read(found[1])
        if found is None or asked is None:
            return None
        return _object(found[2], asked) if name == found[0] else asked.objects.get(name)

    def confirm(self, node: int, name: str) -> None:
        """Notes that a message is with its phone: it is not sent again unless the phone starts again."""
        self._store.put("UPDATE asked SET state = ? WHERE id = ? AND node = ? AND state = ?", HAD, name, node, SENT)

    def begin_anew(self, node: int) -> None:
        """Lets a phone that was started again have its message again; what it had begun to send is dropped."""
        with self._store.turn():
            found = self._asked_of(node)
            if found is not None:
                self._store.put("DELETE FROM objects WHERE asked = ?", found[0])
                self._store.put("UPDATE asked SET state = ?, session = NULL WHERE id = ?", SENT, found[0])

    def leave(self, node: int) -> None:
        """Gives the place of a phone that goes to another."""
        with self._store.turn():
            found = self._asked_of(node)
            if found is not None:
                self._fail(found[0], "the phone left")

    def answer(self, node: int, heads: Any, trees: Any) -> tuple[str, list[str]]:
        """Take the head of an answer; return the session of its upload and the ids that are still to come.

        Raises:
            Refusal: it answers nothing that this phone was asked, or cannot be an answer.
        """
        if len(heads) != 1 or len(trees) != 1:
            raise Refusal(400, f"{len(heads)} messages with {len(trees)} trees of objects, and one of each is expected")
        head, name = _read(heads[0]), heads[0].metadata.message_id
        with self._store.turn():
            found = self._store.one(
                "SELECT id, round, state, reply, reason, head, session FROM asked WHERE id = ? AND node = ?",
                *(head.metadata.reply_to_message_id, node),
            )
            if found is None:
                raise Refusal(412, "this phone was not asked what the message answers, or its round is over")
            asked, _, state, reply, reason, sent, session = found
            if state in (WHOLE, COUNTED) and reply == name:
                return session or "", []  # doubled: it is here
            if state in (WHOLE, COUNTED):
                raise Refusal(412, "this phone has answered that already")
            if state == FAILED:
                raise Refusal(412, f"the answer is not taken: {reason}")
            _check_head(head, node, message_pb2.Metadata.FromString(sent))
            ids = self._ids(trees[0], name)
            if head.has_error():
                self._fail(asked, str(head.error.reason)[:_REASON])
                return "", []
            session = session if reply == name and session else secrets.token_hex(16)
            if reply != name:
                self._store.put("DELETE FROM objects WHERE asked = ?", asked)
            self._store.put(
                "UPDATE asked SET state = ?, session = ?, reply = ?, tree = ? WHERE id = ?",
                *(COMING, session, name, json.dumps(ids), asked),
            )
            here = {row[0] for row in self._store.all("SELECT id FROM objects WHERE asked = ?", asked)}
        return session, [one for one in ids if one not in here]

    def take(self, node: int, session: str, name: str, content: bytes) -> bool:
        """Take an object of an answer; return whether its upload is one that goes on.

        Raises:
            Refusal: it is not the object, is too large, or with it the whole is no answer.
        """
        with self._store.turn():
            found = self._store.one(
                "SELECT id, tree, reply, round, state FROM asked WHERE session = ? AND node = ?", session, node
            )
            if not session or found is None or found[4] == FAILED:
                return False
            asked, tree, reply, number, state = found
            if state in (WHOLE, COUNTED):
                return True
            reason = self._put(asked, json.loads(tree), name, content)
            if reason is None and self._missing(asked, json.loads(tree)):
                return True
            reason = reason or self._whole(asked, reply, number)
            if reason is not None:
                self._fail(asked, reason)
        if reason is not None:
            raise Refusal(422, f"the answer is not taken: {reason}")
        self._rounds.fold()
        return True

    def _put(self, asked: str, ids: list[str], name: str, content: bytes) -> str | None:
        """Keeps an object; returns why not."""
        if name not in ids:
            return f"object {name[:16]} is none of its message"
        if get_object_id(content) != name:
            return f"object {name[:16]} is not what its id says"
        self._store.put("INSERT OR IGNORE INTO objects VALUES (?, ?, ?)", asked, name, content)
        total = self._store.one("SELECT SUM(LENGTH(content)) FROM objects WHERE asked = ?", asked)[0]
        return f"it is larger than {size(self._most)}" if total > self._most else None

    def _missing(self, asked: str, ids: list[str]) -> bool:
        return bool(self._store.one("SELECT COUNT(*) FROM objects WHERE asked = ?", asked)[0] < len(ids))

    def _whole(self, asked: str, reply: str, number: int) -> str | None:
        """Keeps an answer of which all objects are here; returns why not."""
        contents = dict(self._store.all("SELECT id, content FROM objects WHERE asked = ?", asked))
        of = self._rounds.read(number)
        if of is None:
            return "the round is over"
        try:
            arrays, figures = self._read(inflated(reply, contents, asked, self._most), of)
        except RefusedRound as error:
            return str(error)
        self._store.put("INSERT INTO answers VALUES (?, ?, ?)", asked, pack(arrays), json.dumps(figures))
        self._store.put("DELETE FROM objects WHERE asked = ?", asked)
        self._store.put("UPDATE asked SET state = ? WHERE id = ?", WHOLE, asked)
        return None

    def _read(self, message: Message, of: Round) -> tuple[dict[str, Any], dict[str, float]]:
        """Return arrays and figures of an answer. Raises RefusedRound."""
        if message.has_error():
            raise RefusedRound("the message is not what its envelope says")
        given, told = list(message.content.array_records.values()), list(message.content.metric_records.values())
        if (len(given), len(told)) != (int(of.trains), 1):
            raise RefusedRound(
                f"it has {len(given)} records of arrays and {len(told)} of metrics, and expected are "
                f"{int(of.trains)} and 1"
            )
        figures = {name: value for name, value in told[0].items() if isinstance(value, int | float)}
        if len(figures) != len(told[0]) or not all(isfinite(value) for value in figures.values()):
            raise RefusedRound("its metrics are not finite numbers")
        rows, most = figures.get(WEIGHT), self._rounds.terms.rows
        if rows is None or not 0 < rows <= most:
            raise RefusedRound(f"its {WEIGHT} is {rows}, and 1 to {most:,} are taken")
        arrays = {name: array for record in given for name, array in unpacked(record).items()}
        if of.trains and self._rounds.exchange.asks_slots(arrays) != self._rounds.exchange.asks_slots(of.arrays):
            raise RefusedRound("its arrays are not those that it was sent")
        return self._rounds.exchange.checked(arrays, "the phone") if of.trains else {}, figures

    def _ids(self, tree: Any, root: str) -> list[str]:
        """Return the ids of an answer's objects, each once. Raises Refusal."""
        try:
            ids = list(dict.fromkeys(ids_of(tree)))
        except RefusedRound as error:
            raise Refusal(413, str(error)) from None
        if tree.object_id != root or not all(_ID.fullmatch(name) for name in ids):
            raise Refusal(400, "the tree of objects is not that of the message")
        return ids

    def _head(self, node: int, asked: Round) -> bytes:
        """Return the metadata of a message to a phone, without its id."""
        of, now = asked.message.metadata, self._rounds.clock()
        return message_pb2.Metadata(
            run_id=of.run_id,
            src_node_id=of.dst_node_id,
            dst_node_id=node,
            group_id=of.group_id,
            ttl=max(of.created_at + of.ttl - now, 1.0),
            message_type=of.message_type,
            created_at=now,
        ).SerializeToString(deterministic=True)

    def _asked_of(self, node: int) -> Any:
        return self._store.one(
            "SELECT id, round, head FROM asked WHERE node = ? AND state NOT IN (?, ?, ?)",
            *(node, WHOLE, COUNTED, FAILED),
        )

    def _fail(self, asked: str, reason: str) -> None:
        self._store.put("DELETE FROM objects WHERE asked = ?", asked)
        self._store.put("UPDATE asked SET state = ?, reason = ? WHERE id = ?", FAILED, reason, asked)


def _object(head: bytes, asked: Round) -> bytes:
    """Return the object of a message: its metadata, and the id of its content."""
    body = message_pb2.Message(metadata=message_pb2.Metadata.FromString(head)).SerializeToString(deterministic=True)
    return f"Message {asked.tree.object_id} {len(body)}".encode() + HEAD_BODY_DIVIDER + body


def _envelope(name: str, head: bytes, asked: Round) -> tuple[message_pb2.Message, message_pb2.ObjectTree]:
    metadata = message_pb2.Metadata.FromString(head)
    metadata.message_id = name
    envelope = message_pb2.Message(metadata=metadata)
    envelope.content.SetInParent()
    return envelope, message_pb2.ObjectTree(object_id=name, children=[asked.tree])


def _read(envelope: Any) -> Message:
    try:
        return head_of(envelope)
    except RefusedRound as error:
        raise Refusal(400, str(error)) from None


def _check_head(head: Message, node: int, sent: Any) -> None:
    """Raises Refusal where a message is of another phone or another run than what it answers."""
    found = head.metadata
    expected = {"src_node_id": node, "dst_node_id": sent.src_node_id, "run_id": sent.run_id}
    for name, value in {**expected, "message_type": sent.message_type}.items():
        if getattr(found, name) != value:
            raise Refusal(412, f"the message's {name} is {getattr(found, name)}, and what it answers has {value}")
