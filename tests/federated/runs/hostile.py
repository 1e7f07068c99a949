"""Servers that go in each call, and messages that are late, doubled, foreign or reordered; in Flower's environment.

    python -m tests.federated.runs.hostile FOLDER

FOLDER has `program.tflite` and `rows.npz`. It prints the name of each case that went as it should. `faulty.py` has what
is wrong inside of a message; the tests in Kotlin and TypeScript have the same cases.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.proto import fleet_pb2, message_pb2
from flwr.supercore.task_identity import TaskIdentity

from converter.federated import serve, wire
from converter.federated.messages import ids_of, inflated
from tests.federated.faulty import Bench, Change, Server, _Handler, lost, running
from tests.federated.light import varint

#: What a round calls; a sign of life comes later.
CALLS = (
    *("register-node", "activate-node", "pull-messages", "pull-object", "confirm-message-received"),
    *("push-messages", "push-object"),
)
GIGABYTE = 1 << 30


class _Streaming(_Handler):
    """Sends a gigabyte, as far as it is read, in the place of an object."""

    server: Several

    def do_POST(self) -> None:
        self.server.signatures.append(self.headers["flwr-signature"])
        if self.server.absent(self.path.rpartition("/")[2]):
            self.close_connection = True
            return
        if not (self.server.streams and self.path.endswith("/pull-object")):
            super().do_POST()
            return
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(GIGABYTE))
        self.end_headers()
        for _ in range(1 << 10):
            self.server.sent += self.wfile.write(bytes(1 << 20))


class Several(Server):
    """Has some messages for the client, in an order, and asks for all objects of an answer.

    Attributes:
        objects_pushed: those of the answers, by id.
        signatures: of all calls.
        absent: whether it is gone, by the name of a call.
        streams: whether an object is a gigabyte.
        sent: bytes of that which were taken.
    """

    def __init__(self, messages: list[Message], change: Change, streams: bool = False) -> None:
        super().__init__(messages[0], change)
        self.RequestHandlerClass = _Streaming
        self.objects_pushed: dict[str, bytes] = {}
        self.signatures: list[str] = []
        self.absent: Callable[[str], bool] = lambda call: False
        self.streams, self.sent = streams, 0
        heads = [(self.head, self.tree)]
        for message in messages[1:]:
            other = Server(message, change)
            other.server_close()
            heads.append((other.head, other.tree))
            self.objects |= other.objects
        self.queue = heads

    def answer(self, call: str, body: bytes) -> Any:
        if call == "pull-messages":
            if not self.queue:
                return fleet_pb2.PullMessagesResponse()
            head, tree = self.queue.pop(0)
            return fleet_pb2.PullMessagesResponse(messages_list=[head], message_object_trees=[tree])
        if call == "push-messages":
            asked = fleet_pb2.PushMessagesRequest.FromString(body)
            super().answer(call, body)
            wanted = ids_of(asked.message_object_trees[0])
            return fleet_pb2.PushMessagesResponse(session_id="s", objects_to_push=wanted)
        if call == "push-object":
            one = message_pb2.PushObjectRequest.FromString(body)
            self.objects_pushed[one.object_id] = one.object_content
        return super().answer(call, body)


class Case:
    """A client at servers that have messages of two rounds."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.plain: Change = lambda call, answer: answer

    def messages(self, *numbers: int) -> list[Message]:
        config = self.bench.config
        made = {number: self.bench.message(config=config | {"server-round": number}) for number in sorted(set(numbers))}
        return [made[number] for number in numbers]

    def served(self, server: Several, patience: float = 5.0) -> Any:
        address = f"127.0.0.1:{server.server_address[1]}"
        most = self.bench.exchange.nbytes(slots=True)
        return serve(self.bench.app, address, most, poll=0.1, idle=1.5, patience=patience)

    def at(self, change: Change | None = None, numbers: tuple[int, ...] = (1, 2)) -> Any:
        with running(Several(self.messages(*numbers), change or self.plain)) as server:
            return self.served(server), server

    def without(self, absent: Callable[[str], bool], patience: float) -> Any:
        with running(Several(self.messages(1, 2), self.plain)) as server:
            server.absent = absent
            return self.served(server, patience), server


def gone(case: Case) -> Iterator[str]:
    """A server that is gone in a call, for a moment or for good."""
    wire._FIRST = 0.1
    left = list(CALLS)

    def moment(call: str) -> bool:
        if call not in left:
            return False
        left.remove(call)
        return True

    done, server = case.without(moment, 30.0)
    assert (done.messages, done.errors, left) == (2, [], []), done
    assert len(set(server.signatures)) == len(server.signatures) > 20, "each call, and each try, is signed anew"
    yield "gone: for a moment, in every call"
    for call in CALLS:
        said = lost(lambda call=call: case.without(call.__eq__, 0.3))
        assert said.startswith("no SuperLink answers at 127.0.0.1:"), said
        yield f"gone: {call}"
    leaving = ("send-node-heartbeat", "deactivate-node", "unregister-node")
    assert case.without(leaving.__contains__, 5.0)[0].messages == 2
    yield "gone: when the client leaves"


def orders(case: Case) -> Iterator[str]:
    """Messages that are late, doubled, foreign, and in another order."""
    for call, said, late in (
        ("push-messages", "HTTP 412", 412),
        ("push-object", "HTTP 403", 403),
        ("push-object", "the session of its upload is over", message_pb2.PushObjectResponse(stored=False)),
    ):
        first = [late]

        def over(name: str, answer: Any, call: str = call, first: list[Any] = first) -> Any:
            return first.pop() if name == call and first else answer

        done, _ = case.at(over)
        assert (done.messages, len(done.errors)) == (1, 1), done
        assert said in done.errors[0], done.errors
        yield f"late: {said}"
    done, server = case.at(numbers=(1, 1, 2, 1, 2))
    again = "the server sent a message again that was answered: it is left out"
    assert (done.messages, done.errors, len(server.pushed)) == (2, [again] * 3, 2), done
    yield "doubled"
    for entry, value, said in (
        ("dst_node_id", 5, "is for another node"),
        ("run_id", 99, "not what its envelope says"),
        ("src_node_id", 3, "not what its envelope says"),
        ("message_type", "query", "not what its envelope says"),
        ("group_id", "2", "not what its envelope says"),
    ):

        def foreign(call: str, answer: Any, entry: str = entry, value: Any = value) -> Any:
            if call == "pull-messages" and answer.messages_list:
                setattr(answer.messages_list[0].metadata, entry, value)
            return answer

        done, server = case.at(foreign)
        assert (done.messages, len(done.errors)) == (0, 2), done
        assert all(said in error for error in done.errors), done
        assert len(server.pushed) == (0 if entry == "dst_node_id" else 2)
        yield f"foreign: {entry}"
    answers = [_answers(case.at(numbers=numbers)[1]) for numbers in ((1, 2), (2, 1))]
    for straight, reverse in zip(answers[0], reversed(answers[1]), strict=True):
        assert all(np.array_equal(array, reverse[name]) for name, array in straight.items())
    assert any(not np.array_equal(array, answers[0][1][name]) for name, array in answers[0][0].items())
    yield "reordered"


def _answers(server: Several) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each answer."""
    found = []
    for reply in server.pushed:
        name, head = reply.metadata.message_id, reply.metadata.reply_to_message_id
        message = inflated(name, _below(name, server.objects_pushed), head, 1 << 20)
        found.append({n: a.numpy() for n, a in next(iter(message.content.array_records.values())).items()})
    return found


def _below(name: str, objects: dict[str, bytes]) -> dict[str, bytes]:
    """Return an object and those below it."""
    children = objects[name].partition(b"\0")[0].decode().split(" ")[1].split(",")
    found = {name: objects[name]}
    for child in filter(None, children):
        found |= _below(child, objects)
    return found


def sizes(case: Case) -> Iterator[str]:
    """Objects of a gigabyte, and a tree of a thousand levels."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with running(Several(case.messages(1), case.plain, streams=True)) as server:
        done = case.served(server)
        assert "an answer of the server is larger than" in done.errors[0], done
        assert server.sent < GIGABYTE / 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10
    yield "sizes: a gigabyte that is sent"
    claims = b"\x08\x01\x10\x01\x1a\x80\x80\x80\x80\x04"  # an object of a gigabyte, cut short
    said = lost(lambda: case.at(lambda call, answer: claims if call == "pull-object" else answer))
    assert "does not answer as a SuperLink does" in said
    yield "sizes: a gigabyte that is told"
    tree = b""
    for _ in range(1000):  # by hand: protobuf does not write what it would not read
        tree = b"\x0a\x40" + b"0" * 64 + (b"\x12" + varint(len(tree)) + tree if tree else b"")

    def deep(call: str, answer: Any) -> Any:
        if call != "pull-messages" or not answer.messages_list:
            return answer
        del answer.message_object_trees[:]
        number = fleet_pb2.PullMessagesResponse.MESSAGE_OBJECT_TREES_FIELD_NUMBER
        return answer.SerializeToString() + bytes([number << 3 | 2]) + varint(len(tree)) + tree

    assert "does not answer as a SuperLink does" in lost(lambda: case.at(deep))
    yield "sizes: a thousand levels"


def keys(case: Case) -> Iterator[str]:
    """A key that the server takes no longer, and a clock that is not the server's."""
    taken = [1]

    def back(call: str, answer: Any) -> Any:
        if call == "pull-messages" and taken:
            taken.pop()
            return answer
        return 401 if call != "register-node" and not taken else answer

    said = lost(lambda: case.at(back))
    assert "does not take this client's signature, at " in said, said
    assert "GMT by its clock: set that of this machine, and have the server's operator register the key" in said, said
    yield "keys: expired, or a clock that is off by a day"


def main(folder: Path) -> None:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # whom messages are made by
    case = Case(Bench(folder))
    for part in (gone, orders, sizes, keys):
        for name in part(case):
            print(name, flush=True)
    print("all went as it should")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
