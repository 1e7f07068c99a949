"""Light clients: the calls of Flower's protocol with a made-up update instead of a training, in Flower's environment.

They are written from the protocol alone: nothing of `converter.federated` is in them.

    python -m tests.federated.light PORT COUNT ROUNDS SEED

COUNT phones take part in ROUNDS rounds of training at 127.0.0.1:PORT, and in every evaluation between. It prints a line
of JSON for each round: how long it took, and of each array the mean that NumPy makes of the updates.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import local
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, recorddict_pb2

Arrays = dict[str, np.ndarray]
Change = Callable[[bytes], bytes]
_OWN = local()
WORKERS = 16
#: Seconds to wait for a leaf that does not answer.
PATIENCE = 120.0


class Refused(Exception):
    """A call that was not answered with 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body.decode(errors='replace')}")
        self.status = status


@dataclass
class Phone:
    """A key and a node of a leaf, or of a SuperLink.

    Attributes:
        port: of this machine.
        node: once it has registered.
        ahead: seconds that its clock is ahead.
        stamp: of the last call.
    """

    port: int
    node: int = 0
    ahead: float = 0.0
    stamp: str = ""
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP384R1()))

    def __post_init__(self) -> None:
        self.pem = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def headers(self) -> dict[str, str]:
        self.stamp = (datetime.now(UTC) + timedelta(seconds=self.ahead)).isoformat()
        return {
            "content-type": "application/protobuf",
            "flwr-public-key": b64encode(self.pem).decode(),
            "flwr-timestamp": self.stamp,
            "flwr-signature": b64encode(self.key.sign(self.stamp.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
        }

    def call(self, name: str, request: Any, answer: Any = None, headers: dict[str, str] | None = None) -> Any:
        """Return the answer to a call; raise Refused."""
        body = request if isinstance(request, bytes) else request.SerializeToString()
        content = self._sent(name, body, headers or self.headers())
        return answer.FromString(content) if answer is not None else content

    def _sent(self, name: str, body: bytes, headers: dict[str, str]) -> bytes:
        kept = _OWN.__dict__.setdefault("kept", {})
        end = time.monotonic() + PATIENCE
        while True:
            link = kept.setdefault(self.port, http.client.HTTPConnection("127.0.0.1", self.port, timeout=120))
            try:
                link.request("POST", f"/v1/fleet/{name}", body, headers)
                response = link.getresponse()
                content = response.read()
                break
            except (http.client.HTTPException, OSError):  # a connection that the leaf gave up, or a leaf that is gone
                kept.pop(self.port).close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
                headers = self.headers()
        if response.status != 200:
            raise Refused(response.status, content)
        return content

    def join(self) -> None:
        self.node = self.call(
            "register-node",
            fleet_pb2.RegisterNodeFleetRequest(public_key=self.pem),
            fleet_pb2.RegisterNodeFleetResponse,
        ).node_id
        self.activate()

    def activate(self) -> None:
        self.call("activate-node", fleet_pb2.ActivateNodeRequest(public_key=self.pem, heartbeat_interval=1800))

    def beat(self) -> None:
        self.call(
            "send-node-heartbeat",
            heartbeat_pb2.SendNodeHeartbeatRequest(node={"node_id": self.node}, heartbeat_interval=1800),
        )

    def pull(self) -> tuple[Any, dict[str, bytes]] | None:
        """Return head and objects of a message, or None."""
        asked = fleet_pb2.PullMessagesRequest(node={"node_id": self.node})
        found = self.call("pull-messages", asked, fleet_pb2.PullMessagesResponse)
        if not found.messages_list:
            return None
        head, objects = found.messages_list[0], {}
        for name in _ids(found.message_object_trees[0]):
            objects[name] = self.object(head.metadata.run_id, name).object_content
            assert hashlib.sha256(objects[name]).hexdigest() == name
        self.call(
            "confirm-message-received",
            message_pb2.ConfirmMessageReceivedRequest(
                node={"node_id": self.node},
                run_id=head.metadata.run_id,
                message_object_id=found.message_object_trees[0].object_id,
            ),
        )
        return head, objects

    def object(self, run: int, name: str) -> Any:
        asked = message_pb2.PullObjectRequest(node={"node_id": self.node}, run_id=run, object_id=name)
        return self.call("pull-object", asked, message_pb2.PullObjectResponse)

    def push(self, answer: Answer, most: int | None = None) -> list[str]:
        """Send an answer, or its first objects; return the ids that were asked for."""
        found = self.call("push-messages", answer.pushed(self.node), fleet_pb2.PushMessagesResponse)
        for name in list(found.objects_to_push)[:most]:
            self.put(answer, name, found.session_id)
        return list(found.objects_to_push)

    def put(self, answer: Answer, name: str, session: str) -> bool:
        sent = message_pb2.PushObjectRequest(
            node={"node_id": self.node},
            run_id=answer.head.metadata.run_id,
            object_id=name,
            object_content=answer.objects[name],
            session_id=session,
        )
        return bool(self.call("push-object", sent, message_pb2.PushObjectResponse).stored)


@dataclass
class Answer:
    """An answer, as objects and their tree."""

    head: Any
    objects: dict[str, bytes]
    tree: Any

    def pushed(self, node: int) -> Any:
        return fleet_pb2.PushMessagesRequest(
            node={"node_id": node},
            messages_list=[self.head],
            message_object_trees=[self.tree],
            clientapp_runtime_list=[0.1],
        )

    @staticmethod
    def to(
        head: Any,
        arrays: Arrays | None,
        figures: dict[str, float | int],
        error: str = "",
        change: tuple[str, Change] | None = None,
        **other: Any,
    ) -> Answer:
        """Return the answer to a message; `change` spoils objects of a kind, `other` entries of its metadata."""
        objects = _Objects(change)
        tops: dict[str, Any] = {}
        if arrays is not None:
            tops["arrays"] = _record(objects, arrays)
        items = [
            recorddict_pb2.MetricRecord.Item(key=name, value={"sint64" if isinstance(value, int) else "double": value})
            for name, value in figures.items()
        ]
        body = recorddict_pb2.MetricRecord(items=items).SerializeToString()
        tops["metrics"] = _put(objects, "MetricRecord", [], body)
        content = _put(
            objects, "RecordDict", list(tops.values()), json.dumps({k: t.object_id for k, t in tops.items()})
        )
        asked = head.metadata
        told = {
            "run_id": asked.run_id,
            "src_node_id": asked.dst_node_id,
            "dst_node_id": asked.src_node_id,
            "reply_to_message_id": asked.message_id,
            "group_id": asked.group_id,
            "message_type": asked.message_type,
            "created_at": time.time(),
            "ttl": asked.ttl - 1,
        } | other
        message = message_pb2.Message(metadata=message_pb2.Metadata(**told))
        if error:
            objects.clear()
            message.error.code, message.error.reason = 2, error
        tree = _put(objects, "Message", [] if error else [content], message.SerializeToString(deterministic=True))
        message.metadata.message_id = tree.object_id
        if not error:
            message.content.SetInParent()
        return Answer(message, objects, tree)


class _Objects(dict[str, bytes]):
    """Objects by id; `change` is what spoils the bodies of one kind."""

    def __init__(self, change: tuple[str, Change] | None) -> None:
        super().__init__()
        self.change = change


def _put(objects: _Objects, kind: str, children: list[Any], body: bytes | str) -> Any:
    body = body.encode() if isinstance(body, str) else body
    if objects.change is not None and objects.change[0] == kind:
        body = objects.change[1](body)
    ids = list(dict.fromkeys(child.object_id for child in children))
    content = f"{kind} {','.join(ids)} {len(body)}".encode() + b"\0" + body
    name = hashlib.sha256(content).hexdigest()
    objects[name] = content
    unique = {child.object_id: child for child in children}
    return message_pb2.ObjectTree(object_id=name, children=list(unique.values()))


def _record(objects: _Objects, arrays: Arrays) -> Any:
    found = {}
    for name, array in arrays.items():
        file = io.BytesIO()
        np.save(file, array)
        chunk = _put(objects, "ArrayChunk", [], file.getvalue())
        told = {"dtype": str(array.dtype), "shape": array.shape, "stype": "numpy.ndarray", "arraychunk_ids": [0]}
        found[name] = _put(objects, "Array", [chunk], json.dumps(told))
    body = json.dumps({name: tree.object_id for name, tree in found.items()})
    return _put(objects, "ArrayRecord", list(found.values()), body)


def _ids(tree: Any) -> list[str]:
    return [name for child in tree.children for name in _ids(child)] + [tree.object_id]


def read(objects: dict[str, bytes]) -> tuple[Arrays, dict[str, bytes]]:
    """Return the arrays of a message, and its objects by kind."""
    kinds: dict[str, bytes] = {}
    arrays: Arrays = {}
    for content in objects.values():
        head, _, body = content.partition(b"\0")
        kind, _, _ = head.decode().split(" ")
        kinds[kind] = body
        if kind == "ArrayRecord":
            for name, one in json.loads(body).items():
                inner = objects[one].partition(b"\0")[0].decode().split(" ")[1].split(",")
                whole = b"".join(objects[chunk].partition(b"\0")[2] for chunk in inner)
                arrays[name] = np.load(io.BytesIO(whole))
    return arrays, kinds


def update(seed: int, arrays: Arrays) -> tuple[Arrays, int]:
    """Return what a phone sends back: made up, but always the same; and how many rows it stands for."""
    rng = np.random.default_rng(seed)
    moved = {n: a + 0.01 * rng.standard_normal(a.shape).astype(np.float32) for n, a in arrays.items()}
    return moved, int(rng.integers(1, 100))


def varint(number: int) -> bytes:
    """Return a number as protobuf writes the lengths of fields."""
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def mean(given: list[tuple[Arrays, int]]) -> Arrays:
    """NumPy's weighted mean."""
    weights = [rows for _, rows in given]
    return {n: np.average(np.stack([a[n].astype(np.float64) for a, _ in given]), 0, weights) for n in given[0][0]}


def take_part(phone: Phone, seed: int, done: Callable[[], bool]) -> tuple[str, Arrays]:
    """Answer the next message of a phone; return its kind and the arrays that came."""
    while not done():
        found = phone.pull()
        if found is None:
            time.sleep(1.0)
            continue
        arrays, _ = read(found[1])
        kind = found[0].metadata.message_type
        if kind == "train":
            moved, rows = update(seed, arrays)
            phone.push(Answer.to(found[0], moved, {"num-examples": rows, "loss": float(rows)}))
        else:
            phone.push(Answer.to(found[0], None, {"num-examples": 1 + seed % 7, "loss": 1.0}))
        return kind, arrays
    return "", {}


def main(port: int, count: int, rounds: int, seed: int) -> None:
    phones = [Phone(port) for _ in range(count)]
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(Phone.join, phones))
        print(json.dumps({"joined": count}), flush=True)
        for number in range(rounds):
            for kind in ("train", "evaluate"):
                begun = time.monotonic()
                seeds = [seed + count * number + k for k in range(count)]
                found = list(pool.map(lambda pair: take_part(*pair, lambda: False), zip(phones, seeds, strict=True)))
                assert {one for one, _ in found} == {kind}, {one for one, _ in found}
                said: dict[str, Any] = {"round": number, "kind": kind, "seconds": time.monotonic() - begun}
                if kind == "train":
                    total, weight = {n: np.zeros(a.shape) for n, a in found[0][1].items()}, 0
                    for one in seeds:
                        moved, rows = update(one, found[0][1])
                        weight += rows
                        for n, a in moved.items():
                            total[n] += a.astype(np.float64) * rows
                    said["mean"] = {n: (a / weight).ravel().tolist() for n, a in total.items()}
                print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:5]))
