"""A SuperLink that misbehaves, and what a client makes of it; run in Flower's environment.

    python -m tests.federated.faulty FOLDER

FOLDER has `program.tflite` and `rows.npz`. It prints the name of each case that went as it should.
"""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import generate_key_pairs
from flwr.supercore.task_identity import TaskIdentity

from converter.federated import Exchange, client_app, read_rows, serve, wire
from converter.federated.node import _Client
from converter.federated.wire import Fleet, LostServer
from converter.program.file import read_program
from converter.runtime import TrainingSession

S = TypeVar("S", bound=ThreadingHTTPServer)
_ANSWERS: dict[str, Any] = {
    "register-node": fleet_pb2.RegisterNodeFleetResponse(node_id=7),
    "activate-node": fleet_pb2.ActivateNodeResponse(node_id=7),
    "deactivate-node": fleet_pb2.DeactivateNodeResponse(),
    "unregister-node": fleet_pb2.UnregisterNodeFleetResponse(),
    "send-node-heartbeat": heartbeat_pb2.SendNodeHeartbeatResponse(success=True),
    "confirm-message-received": message_pb2.ConfirmMessageReceivedResponse(),
    "push-object": message_pb2.PushObjectResponse(stored=True),
}
Change = Callable[[str, Any], Any]


class Packed(bytes):
    """An answer that says that it is compressed, which no client asks for."""


class Server(ThreadingHTTPServer):
    """Has one message for the client; `change` makes of each right answer what is sent: a message, bytes, or a status.

    Attributes:
        pushed: what the client answered.
        calls: names of the calls that came.
    """

    def __init__(self, message: Message, change: Change) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.tree = get_object_tree(message)
        self.objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
        self.head = message_to_proto(remove_content_from_message(message))
        self.change, self.waiting = change, True
        self.pushed: list[Message] = []
        self.calls: list[str] = []

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is what some cases are about."""

    def answer(self, call: str, body: bytes) -> Any:
        if call == "pull-messages":
            waiting, self.waiting = self.waiting, False
            sent = {"messages_list": [self.head], "message_object_trees": [self.tree]} if waiting else {}
            return fleet_pb2.PullMessagesResponse(**sent)
        if call == "pull-object":
            content = self.objects.get(message_pb2.PullObjectRequest.FromString(body).object_id)
            found = content is not None
            return message_pb2.PullObjectResponse(
                object_found=found, object_available=found, object_content=content or b""
            )
        if call == "push-messages":
            asked = fleet_pb2.PushMessagesRequest.FromString(body)
            self.pushed.append(message_from_proto(asked.messages_list[0]))
            return fleet_pb2.PushMessagesResponse(session_id="s")
        return _ANSWERS[call]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        call = self.path.rpartition("/")[2]
        self.server.calls.append(call)
        answer = self.server.change(call, self.server.answer(call, body))
        status, content = (answer, b"{}") if isinstance(answer, int) else (200, answer)
        packed = isinstance(content, Packed)
        content = content if isinstance(content, bytes) else content.SerializeToString()
        self.send_response(status)
        self.send_header("content-type", "application/protobuf")
        if packed:
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def running(server: S) -> Iterator[S]:
    """Run a server in a thread of its own."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Bench:
    """A client, and messages for it."""

    def __init__(self, folder: Path) -> None:
        self.exchange = Exchange(read_program(folder / "program.tflite"))
        self.app = client_app(folder / "program.tflite", read_rows(folder / "rows.npz"))
        with TrainingSession(folder / "program.tflite") as session:
            self.arrays = self.exchange.sent(session.state())
        self.config = {"program": self.exchange.identity, "learning-rate": 0.01}

    def message(self, arrays: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> Message:
        arrays = {name: one if isinstance(one, Array) else Array(one) for name, one in (arrays or self.arrays).items()}
        content = {"arrays": ArrayRecord(arrays), "config": ConfigRecord(config or self.config)}
        return Message(RecordDict(content), dst_node_id=7, message_type="train")

    def served(self, message: Message, change: Change | None = None, patience: float = 2.0) -> tuple[Any, Server]:
        with running(Server(message, change or (lambda call, answer: answer))) as server:
            address = f"127.0.0.1:{server.server_address[1]}"
            most = self.exchange.nbytes(slots=True)
            return serve(self.app, address, most, poll=0.1, idle=0.6, patience=patience), server

    def refused(self, message: Message) -> str:
        """Return the error that the app itself answers with."""
        reply = self.app(message, Context(1, 7, {}, RecordDict(), {}, 0))
        assert reply.has_error(), reply
        return reply.error.reason


def apps(bench: Bench) -> Iterator[str]:
    """What the app answers to content that it does not take."""
    name = next(iter(bench.arrays))
    whole = bench.arrays[name]
    pickled = Array("float32", whole.shape, "numpy.ndarray", b"\x80\x04N.")
    for kind, arrays in {
        "NaN": {name: np.full_like(whole, np.nan)},
        "and is [": {name: whole[..., None]},
        "norm": {name: np.full_like(whole, 1e30)},
        "as no array": {name: pickled},
        "is float32": {name: np.zeros(whole.shape, np.int64)},
    }.items():
        assert kind in bench.refused(bench.message(bench.arrays | arrays)), kind
        yield f"arrays: {kind}"
    missing = {"program": bench.exchange.identity, "epochs": 1000}
    assert "allows 1 to 10" in bench.refused(bench.message(config=missing))
    assert "names no program" in bench.refused(bench.message(config={"epochs": 1}))
    empty = Message(RecordDict(), dst_node_id=7, message_type="train")
    assert "0 records of arrays" in bench.refused(empty)
    yield "config and records"


def wires(bench: Bench) -> Iterator[str]:
    """What a client makes of a server that lies, or goes."""
    done, server = bench.served(bench.message())
    assert (done.messages, len(server.pushed), done.errors) == (1, 1, [])
    assert server.pushed[0].metadata.reply_to_message_id == server.head.metadata.message_id
    assert server.calls[0] == "register-node"
    assert server.calls[-1] == "unregister-node"
    assert "get-fab" not in server.calls
    yield "a round"

    def large(call: str, answer: Any) -> Any:
        return b"\0" * (64 << 20) if call == "pull-object" else answer

    def other(call: str, answer: Any) -> Any:
        return message_pb2.PullObjectResponse(object_found=True, object_available=True, object_content=b"x" * 99) if (
            call == "pull-object"
        ) else answer  # fmt: skip

    def bare(call: str, answer: Any) -> Any:
        if call == "pull-messages":
            del answer.message_object_trees[:]
        return answer

    def gone(call: str, answer: Any) -> Any:
        return message_pb2.PullObjectResponse() if call == "pull-object" else answer

    def deep(call: str, answer: Any) -> Any:
        if call == "pull-messages" and answer.messages_list:
            tree = answer.message_object_trees[0]
            for _ in range(90):
                tree = tree.children.add(object_id="0" * 64)
        return answer

    def many(call: str, answer: Any) -> Any:
        if call == "pull-messages" and answer.messages_list:
            for number in range(12_000):
                answer.message_object_trees[0].children.add(object_id=f"{number:064x}")
        return answer

    def over(call: str, answer: Any) -> Any:
        return 403 if call == "push-messages" else answer

    for said, change in {
        "answer of the server is larger than": large,
        "not what its id says": other,
        "is not there": gone,
        "objects, ": deep,
        "objects, 2 deep": many,
        "HTTP 403": over,
        "comes without its objects": bare,
    }.items():
        done, server = bench.served(bench.message(), change)
        assert done.messages == 0, said
        assert any(said in error for error in done.errors), (said, done.errors)
        told = change not in (gone, over, bare)
        assert [reply.has_error() for reply in server.pushed] == [True] * told or change is over, said
        yield f"wire: {said}"


def servers(bench: Bench) -> Iterator[str]:
    """Servers that are none, refuse the client, or go away and come back."""
    for said, change in {
        "does not answer as a SuperLink does": lambda call, answer: b"<html>" * 9,
        "does not take this client's signature": lambda call, answer: 401,
        "does not take this client's key": lambda call, answer: 412 if call == "activate-node" else answer,
        "no SuperLink answers": lambda call, answer: 503,
        "does not answer as a SuperLink": lambda call, answer: Packed(gzip.compress(b"\0" * (64 << 20))),
    }.items():
        assert said in lost(lambda change=change: bench.served(bench.message(), change))
        yield f"server: {said}"
    assert "no SuperLink answers at 127.0.0.1:9" in lost(lambda: serve(bench.app, "127.0.0.1:9", 1, patience=1.5))
    yield "server: none"
    held = [412, 412]

    def holds(call: str, answer: Any) -> Any:
        """It takes a client that was killed for one that is there."""
        return held.pop() if call == "activate-node" and held else answer

    wire._NOTED = 0.1
    done, server = bench.served(bench.message(), holds, patience=30.0)
    assert (done.messages, done.errors) == (1, []), done
    first = [call for call in server.calls if call.endswith("activate-node")][:5]
    assert first == ["activate-node"] * 3 + ["deactivate-node", "activate-node"], "its predecessor's work is given up"
    yield "server: holds a client that was killed"
    statuses = [404, 503]

    def anew(call: str, answer: Any) -> Any:
        """It begins anew, so that it does not know the node, and is busy for a while."""
        if call == "send-node-heartbeat":
            return 401
        return statuses.pop(0) if call == "pull-messages" and statuses else answer

    _, server = bench.served(bench.message(), anew, patience=5.0)
    assert server.calls.count("register-node") == 2, server.calls
    yield "server: begins anew"
    stumbles = [500]

    def there(call: str, answer: Any) -> Any:
        """It fails in a call, and still knows the client."""
        return stumbles.pop() if call == "pull-messages" and stumbles else answer

    done, server = bench.served(bench.message(), there)
    assert "HTTP 500" in done.errors[0]
    assert server.calls.count("activate-node") == 1, "it is joined still"
    yield "server: fails in a call"
    unknown = [401]

    def forgets(call: str, answer: Any) -> Any:
        """It begins anew while the client trains."""
        return unknown.pop() if call == "push-messages" and unknown else answer

    done, server = bench.served(bench.message(), forgets)
    assert done.messages == 0
    assert "signature" in done.errors[0]
    assert server.calls[-1] == "unregister-node", "it goes on to wait for rounds, and leaves"
    yield "server: forgets the client while it trains"

    def large(call: str, answer: Any) -> Any:
        return b"\0" * (64 << 20) if call in ("send-node-heartbeat", "deactivate-node") else answer

    done, server = bench.served(bench.message(), large)
    assert (done.messages, server.calls[-1]) == (1, "deactivate-node")
    yield "server: large answers to a client that leaves"
    with running(Server(bench.message(), large)) as server:
        fleet = Fleet(f"127.0.0.1:{server.server_address[1]}", True, None, generate_key_pairs(), 2.0, 1 << 20)
        fleet.join()
        fleet.beat()
        assert server.calls[-1] == "send-node-heartbeat"
    yield "server: large answers to a sign of life"


class _Deaf:
    """A server that takes whatever it is told."""

    def reply(self, message: Message, seconds: float) -> int:
        return 0


def runs(bench: Bench) -> Iterator[str]:
    """What is kept of runs that a server names: of eight, those that were seen last."""
    client = _Client(bench.app, _Deaf(), lambda line: None)
    for run in (*range(1, 9), 1, 9):
        message = bench.message()
        message.metadata.__dict__["_run_id"] = run
        client.answer(message)
    assert list(client._contexts) == [*range(3, 9), 1, 9]
    assert client.served.messages == 10
    yield "runs"


def lost(act: Callable[[], Any]) -> str:
    """Return what is said when there is no server to be had."""
    try:
        act()
    except LostServer as error:
        return str(error)
    raise AssertionError("it went on")


def main(folder: Path) -> None:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # whom messages are made by
    bench = Bench(folder)
    for part in (apps, wires, servers, runs):
        for case in part(bench):
            print(case, flush=True)
    print("all went as it should")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
