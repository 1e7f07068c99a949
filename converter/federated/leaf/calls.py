"""Flower's Fleet API as a leaf answers it: who calls, and what each call does."""

from __future__ import annotations

import binascii
import hashlib
import secrets
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from google.protobuf.message import DecodeError

from converter.federated.leaf.phones import Phones, Refusal
from converter.federated.leaf.rounds import Rounds

#: Seconds that a signature may be older, and newer, than the leaf's clock, as at a SuperLink.
_OLDER, _NEWER = 305.0, 5.0
#: Seconds between two signs of life that a phone may promise, as at a SuperLink.
_BEATS = (10.0, 1800.0)
#: Flower's code of a precondition, which clients do not read.
CODE = 2005


class Calls:
    """Answers calls, one at a time."""

    def __init__(self, rounds: Rounds, phones: Phones) -> None:
        self._rounds, self._phones, self._store = rounds, phones, rounds.store
        self._calls: dict[str, tuple[Any, Callable[[Any, bytes], Any]]] = {
            "register-node": (fleet_pb2.RegisterNodeFleetRequest, self._register),
            "activate-node": (fleet_pb2.ActivateNodeRequest, self._activate),
            "send-node-heartbeat": (heartbeat_pb2.SendNodeHeartbeatRequest, self._beat),
            "pull-messages": (fleet_pb2.PullMessagesRequest, self._pull),
            "pull-object": (message_pb2.PullObjectRequest, self._object),
            "confirm-message-received": (message_pb2.ConfirmMessageReceivedRequest, self._confirm),
            "push-messages": (fleet_pb2.PushMessagesRequest, self._push),
            "push-object": (message_pb2.PushObjectRequest, self._take),
            "deactivate-node": (fleet_pb2.DeactivateNodeRequest, self._deactivate),
            "unregister-node": (fleet_pb2.UnregisterNodeFleetRequest, self._unregister),
        }

    def answer(self, name: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return the answer to a call.

        Args:
            name: the last part of its path.
            headers: in lower case.
            body: of the call.

        Raises:
            Refusal: there is no such call, its signature or its content is not taken.
        """
        if name not in self._calls:
            raise Refusal(501, f"a leaf does not answer {name}: it hands on rounds, and no apps")
        kind, act = self._calls[name]
        try:
            request = kind.FromString(body)
        except (DecodeError, RecursionError):
            raise Refusal(400, f"the body is no {kind.DESCRIPTOR.name}") from None
        with self._store.turn():
            key = self._signed(headers)
        if isinstance(request, fleet_pb2.RegisterNodeFleetRequest | fleet_pb2.ActivateNodeRequest):
            if request.public_key != key:
                raise Refusal(401, "the key of the request is not the one that signed")
        else:
            node = request.node.node_id if hasattr(request, "node") else request.node_id
            known = self._store.one("SELECT node FROM phones WHERE key = ?", key)
            if known is None or known[0] != node:
                raise Refusal(401, "the key that signed is not this node's")
            now = self._rounds.clock()
            self._store.put("UPDATE phones SET seen = ?, until = ? + 2 * beat WHERE node = ?", now, now, node)
        content: bytes = act(request, key).SerializeToString()
        return content

    def _signed(self, headers: Mapping[str, str]) -> bytes:
        """Return the public key that signed a call just now. Raises Refusal for another one, or the same call again."""
        try:
            key = b64decode(headers["flwr-public-key"], validate=True)
            signature = b64decode(headers["flwr-signature"], validate=True)
            stamp = headers["flwr-timestamp"]
            signed = datetime.fromisoformat(stamp).timestamp()
            if len(stamp) > 64 or datetime.fromisoformat(stamp).tzinfo is None:
                raise ValueError("no time of a zone")
            public = _key(key)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, binascii.Error):
            raise Refusal(401, "the call is not signed as Flower's are") from None
        now = self._rounds.clock()
        if not -_NEWER < now - signed < _OLDER:
            raise Refusal(401, f"the signature is of another time: this clock is {now - signed:.0f} seconds ahead")
        if not verify_signature(public, stamp.encode(), signature):
            raise Refusal(401, "the signature is not the key's")
        self._store.put("DELETE FROM stamps WHERE at < ?", now - 2 * _OLDER)
        if not self._store.put("INSERT OR IGNORE INTO stamps VALUES (?, ?, ?)", _short(key), stamp, now):
            raise Refusal(401, "a call with this signature was here before")
        return key

    def _register(self, request: Any, key: bytes) -> Any:
        with self._store.turn():
            if self._store.one("SELECT 1 FROM phones WHERE key = ?", key):
                raise Refusal(409, "this key is registered")
            if self._store.one("SELECT COUNT(*) FROM phones")[0] >= self._rounds.terms.known:
                raise Refusal(412, f"{self._rounds.terms.known:,} phones are registered, and no more are taken")
            node = secrets.randbits(62) + 1
            self._store.put("INSERT INTO phones VALUES (?, ?, 0, ?, 0)", node, key, self._rounds.clock())
        return fleet_pb2.RegisterNodeFleetResponse(node_id=node)

    def _activate(self, request: Any, key: bytes) -> Any:
        beat = self._interval(request)
        with self._store.turn():
            found = self._store.one("SELECT node FROM phones WHERE key = ?", key)
            if found is None:
                raise Refusal(404, "this key is not registered")
            now = self._rounds.clock()
            self._store.put(
                "UPDATE phones SET beat = ?, seen = ?, until = ? WHERE node = ?", beat, now, now + 2 * beat, found[0]
            )
            self._phones.begin_anew(found[0])
        return fleet_pb2.ActivateNodeResponse(node_id=found[0])

    def _beat(self, request: Any, key: bytes) -> Any:
        beat = self._interval(request)
        self._store.put("UPDATE phones SET beat = ?, until = seen + 2 * ? WHERE key = ?", beat, beat, key)
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)

    def _interval(self, request: Any) -> float:
        least, most = _BEATS
        if not least <= request.heartbeat_interval <= most:
            raise Refusal(412, f"a sign of life comes every {least:g} to {most:g} seconds")
        return float(request.heartbeat_interval)

    def _pull(self, request: Any, key: bytes) -> Any:
        found = self._phones.message(request.node.node_id)
        if found is None:
            return fleet_pb2.PullMessagesResponse()
        return fleet_pb2.PullMessagesResponse(messages_list=[found[0]], message_object_trees=[found[1]])

    def _object(self, request: Any, key: bytes) -> Any:
        content = self._phones.object(request.node.node_id, request.object_id)
        there = content is not None
        return message_pb2.PullObjectResponse(object_found=there, object_available=there, object_content=content or b"")

    def _confirm(self, request: Any, key: bytes) -> Any:
        self._phones.confirm(request.node.node_id, request.message_object_id)
        return message_pb2.ConfirmMessageReceivedResponse()

    def _push(self, request: Any, key: bytes) -> Any:
        session, wanted = self._phones.answer(request.node.node_id, request.messages_list, request.message_object_trees)
        name = request.messages_list[0].metadata.message_id
        return fleet_pb2.PushMessagesResponse(results={name: 0}, objects_to_push=wanted, session_id=session)

    def _take(self, request: Any, key: bytes) -> Any:
        node, name = request.node.node_id, request.object_id
        stored = self._phones.take(node, request.session_id, name, request.object_content)
        return message_pb2.PushObjectResponse(stored=stored)

    def _deactivate(self, request: Any, key: bytes) -> Any:
        self._store.put("UPDATE phones SET until = 0 WHERE key = ?", key)
        self._phones.leave(request.node_id)
        return fleet_pb2.DeactivateNodeResponse()

    def _unregister(self, request: Any, key: bytes) -> Any:
        self._phones.leave(request.node_id)
        self._store.put("DELETE FROM phones WHERE key = ?", key)
        return fleet_pb2.UnregisterNodeFleetResponse()


@lru_cache(maxsize=4096)
def _key(pem: bytes) -> Any:
    """Return a P-384 public key. Raises ValueError for another kind."""
    public = bytes_to_public_key(pem)
    if public.curve.name != "secp384r1":
        raise ValueError(f"a key of {public.curve.name}")
    return public


def _short(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:16]
