"""A leaf's phones, good ones and others, beside NumPy's mean; run in Flower's environment.

    python -m tests.federated.leaves FOLDER

FOLDER has `program.tflite`. It prints the name of each case that went as it should.
"""

from __future__ import annotations

import http.client
import io
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.proto import fleet_pb2, message_pb2, recorddict_pb2
from flwr.supercore.task_identity import TaskIdentity

from converter.federated.leaf import Terms
from tests.federated.bed import Bed, good, refused
from tests.federated.light import Answer, mean, read, varint


def means(folder: Path) -> Iterator[str]:
    """A round and an evaluation, with a leaf that begins anew in the middle of both."""
    bed = Bed(folder, "means", Terms(phones=8))
    phones = bed.phones(8)
    assert phones[0].pull() is None
    bed.begin(1)
    given = []
    for seed, phone in enumerate(phones):
        answer, held = good(phone, seed)
        if seed == 3:  # the leaf is gone after two objects of the upload
            phone.push(answer, most=2)
            bed.again(*phones)
            assert len(phone.push(answer)) == len(answer.objects) - 2
        else:
            assert set(phone.push(answer)) == set(answer.objects)
        assert bed.rounds.reply() is None or seed == 7
        assert phone.push(answer) == [], "doubled"
        given.append(held)
    for _ in range(2):
        arrays, figures = bed.result()
        for name, wanted in mean(given).items():
            np.testing.assert_allclose(arrays[name], wanted, rtol=0, atol=1e-7)
        assert list(arrays) == list(bed.arrays)
        assert figures["num-examples"] == sum(rows for _, rows in given)
        assert abs(figures["loss"] - np.average(1.0 + np.arange(8), weights=[rows for _, rows in given])) < 1e-12
        bed.again(*phones)  # before the SuperLink had its answer
    bed.rounds.end()
    bed.begin(2, "evaluate")
    for seed, phone in enumerate(phones):
        head, _ = phone.pull() or (None, None)
        phone.push(Answer.to(head, None, {"num-examples": 1 + seed, "loss": 2.0 * seed}))
    arrays, figures = bed.result()
    assert not arrays
    assert abs(figures["loss"] - np.average(2.0 * np.arange(8), weights=1 + np.arange(8))) < 1e-12
    bed.close()
    yield "means are NumPy's, across restarts"


def contents(folder: Path) -> Iterator[str]:
    """Answers that are none: each is refused by a sentence, and the mean is of the others."""
    bed = Bed(folder, "contents", Terms(phones=1))
    bed.begin(1)
    name = next(iter(bed.arrays))
    whole = bed.arrays[name]
    huge = np.full_like(whole, 1e30)
    metrics = {"num-examples": 3, "loss": 1.0}
    for said, arrays, figures in (
        ("came with NaN", {name: np.full_like(whole, np.nan)}, metrics),
        ("and is [", {name: whole[..., None]}, metrics),
        ("have a norm of", {name: huge}, metrics),
        ("and is float32", {name: np.zeros(whole.shape, np.int64)}, metrics),
        ("which this program does not train", {"other": whole}, metrics),
        ("its num-examples is 0", {}, {"num-examples": 0, "loss": 1.0}),
        ("its num-examples is 2000000", {}, {"num-examples": 2_000_000, "loss": 1.0}),
        ("its num-examples is None", {}, {"loss": 1.0}),
        ("not finite numbers", {}, {"num-examples": 3, "loss": float("inf")}),
    ):
        (phone,) = bed.phones(1)
        head, _ = phone.pull() or (None, None)
        refused(partial(phone.push, Answer.to(head, bed.arrays | arrays, figures)), said, 422)
        assert phone.pull() is None, "a phone is asked once a round"
        yield f"contents: {said}"
    (phone,) = bed.phones(1)
    head, _ = phone.pull() or (None, None)
    refused(lambda: phone.push(Answer.to(head, None, metrics)), "0 records of arrays", 422)
    (phone,) = bed.phones(1)
    head, _ = phone.pull() or (None, None)
    assert phone.push(Answer.to(head, None, {}, error="the battery is low")) == []
    yield from _bombs(bed)
    (phone,) = bed.phones(1)
    answer, (moved, _) = good(phone, 1)
    phone.push(answer)
    arrays, _ = bed.result()
    np.testing.assert_allclose(arrays[name], moved[name], atol=1e-7)
    bed.close()
    yield "contents: the round goes on"


def _bombs(bed: Bed) -> Iterator[str]:
    """Objects that are not what they say, or unfold to more than came."""
    metrics = {"num-examples": 3, "loss": 1.0}

    def spoilt(kind: str, change: Any) -> Any:
        (phone,) = bed.phones(1)
        head, _ = phone.pull() or (None, None)
        return phone, Answer.to(head, bed.arrays, metrics, change=(kind, change))

    for said, kind, change in (
        ("larger than", "Array", lambda body: body.replace(b"[0]", json.dumps([0] * 100_000).encode())),
        ("as no array", "ArrayChunk", lambda body: b"\x80\x04N."),
        ("cannot be read", "ArrayRecord", lambda body: b"[" * 100_000),
        ("as no array", "ArrayChunk", lambda body: _header((1 << 40,)) + body[128:]),
    ):
        phone, answer = spoilt(kind, change)
        refused(partial(phone.push, answer), said, 422)
        yield f"bombs: {said}"


def _header(shape: tuple[int, ...]) -> bytes:
    """The head of a `.npy` file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def orders(folder: Path) -> Iterator[str]:
    """Messages of others, of other rounds, in another order, and too many."""
    bed = Bed(folder, "orders", Terms(phones=3))
    one, two = bed.phones(2)
    bed.begin(1)
    first, second = good(one, 1)[0], good(two, 2)[0]
    refused(lambda: one.push(second), "was not asked", 412)
    for entry, value in {"src_node_id": two.node, "run_id": 99, "message_type": "evaluate", "dst_node_id": 5}.items():
        other = Answer.to(_asked(first), bed.arrays, {"num-examples": 1, "loss": 1.0}, **{entry: value})
        refused(lambda other=other: one.push(other), f"the message's {entry}", 412)
    assert not one.put(first, next(iter(first.objects)), "no session")
    assert not one.object(1, second.head.metadata.reply_to_message_id).object_found
    yield "orders: foreign"
    session = one.call("push-messages", first.pushed(one.node), fleet_pb2.PushMessagesResponse).session_id
    ids = list(first.objects)
    assert not two.put(first, ids[0], session), "another phone's upload"
    for name in reversed(ids):
        assert one.put(first, name, session)
        assert one.put(first, name, session), "doubled"
    again = Answer.to(_asked(first), bed.arrays, {"num-examples": 1, "loss": 9.0})
    refused(lambda: one.push(again), "has answered that already", 412)
    lied = Answer(second.head, dict.fromkeys(second.objects, b"x" * 9), second.tree)
    refused(lambda: two.push(lied), "is not what its id says", 422)
    yield "orders: doubled, reversed"
    (three,) = bed.phones(1)
    late = good(three, 3)[0]
    bed.later = 700.0
    assert bed.result()[1]["num-examples"] == _rows(first)
    bed.rounds.end()
    bed.later = 0.0
    refused(lambda: three.push(late), "the round is over", 412)
    bed.begin(2)
    refused(lambda: three.push(late), "its round is over", 412)
    yield "orders: late"
    deep, many = good(three, 4)[0], good(one, 5)[0]
    for depth, status in ((9, 413), (1000, 400)):
        refused(partial(three.call, "push-messages", _nested(deep, depth)), "", status)
    for number in range(12_000):
        many.tree.children.add(object_id=f"{number:064x}")
    refused(lambda: one.push(many), "objects, 2 deep", 413)
    two.activate()
    assert two.pull() is not None
    two.activate()
    assert two.pull() is not None, "a phone that was started again is asked again"
    assert two.pull() is None
    bed.close()
    yield "orders: deep, many, started again"


def _rows(answer: Answer) -> int:
    items = read(answer.objects)[1]["MetricRecord"]
    return next(i.value.sint64 for i in recorddict_pb2.MetricRecord.FromString(items).items if i.key == "num-examples")


def _asked(answer: Answer) -> Any:
    """What an answer answers, as its phone saw it."""
    told = answer.head.metadata
    head = message_pb2.Message()
    head.metadata.CopyFrom(told)
    head.metadata.src_node_id, head.metadata.dst_node_id = told.dst_node_id, told.src_node_id
    head.metadata.message_id = told.reply_to_message_id
    return head


def _nested(answer: Answer, depth: int) -> bytes:
    """A message whose tree is so deep, by hand: protobuf's own writer does not write it."""
    tree = b""
    for _ in range(depth):
        tree = b"\x0a\x40" + b"0" * 64 + (b"\x12" + varint(len(tree)) + tree if tree else b"")
    root = b"\x0a\x40" + answer.tree.object_id.encode() + b"\x12" + varint(len(tree)) + tree
    request = fleet_pb2.PushMessagesRequest(node={"node_id": answer.head.metadata.src_node_id})
    request.messages_list.append(answer.head)
    return request.SerializeToString() + b"\x1a" + varint(len(root)) + root


def calls(folder: Path) -> Iterator[str]:
    """Signatures, clocks, bodies and calls that are none."""
    bed = Bed(folder, "calls", Terms(phones=1))
    one, two = bed.phones(2)
    pull = fleet_pb2.PullMessagesRequest(node={"node_id": one.node})
    used = one.headers()
    one.call("pull-messages", pull, headers=used)
    refused(lambda: one.call("pull-messages", pull, headers=used), "was here before", 401)
    bed.again(one, two)
    refused(lambda: one.call("pull-messages", pull, headers=used), "was here before", 401)
    refused(lambda: two.call("pull-messages", pull), "not this node's", 401)
    forged = one.headers() | {"flwr-signature": two.headers()["flwr-signature"]}
    refused(lambda: one.call("pull-messages", pull, headers=forged), "not the key's", 401)
    for ahead in (-86_400.0, 86_400.0, -320.0, 10.0):
        one.ahead = ahead
        refused(lambda: one.call("pull-messages", pull), "is of another time", 401)
    one.ahead = 0.0
    for name, value in {"flwr-public-key": "eHg=", "flwr-timestamp": "now", "flwr-signature": "?"}.items():
        refused(lambda v={name: value}: one.call("pull-messages", pull, headers=one.headers() | v), "not signed", 401)
    refused(lambda: one.call("register-node", fleet_pb2.RegisterNodeFleetRequest(public_key=two.pem)), "key", 401)
    refused(one.join, "is registered", 409)
    yield "calls: signatures and clocks"
    refused(lambda: one.call("pull-messages", b"\xff" * 99), "the body is no", 400)
    refused(lambda: one.call("get-fab", pull), "does not answer get-fab", 501)
    plain = one.headers() | {"content-type": "text/plain"}
    refused(lambda: one.call("pull-messages", pull, headers=plain), "content-type", 415)
    for length, chunked in ((1 << 30, False), (0, True)):
        link = http.client.HTTPConnection("127.0.0.1", bed.port, timeout=30)
        link.putrequest("POST", "/v1/fleet/push-object")
        for name, text in one.headers().items():
            link.putheader(name, text)
        link.putheader(*(("transfer-encoding", "chunked") if chunked else ("content-length", str(length))))
        link.endheaders()
        sent = 0
        try:
            while chunked and sent < 1 << 30:
                link.send(b"%x\r\n" % (1 << 20) + b"\0" * (1 << 20) + b"\r\n")
                sent += 1 << 20
        except OSError:
            assert sent < 1 << 28, "most of it was read"
        else:
            assert link.getresponse().status == 413
        link.close()
    assert one.pull() is None
    yield "calls: bodies"
    for phone in (one, two):
        phone.call("unregister-node", fleet_pb2.UnregisterNodeFleetRequest(node_id=phone.node))
    assert bed.store.one("SELECT COUNT(*) FROM phones")[0] == 0
    bed.close()
    yield "calls: phones leave"


def buffered(folder: Path) -> Iterator[str]:
    """FedBuff: late answers count in later rounds, by how late they are."""
    bed = Bed(folder, "buffered", Terms(buffer=2, stale=2))
    phones = bed.phones(6)
    bed.begin(1)
    pairs = [good(phone, seed) for seed, phone in enumerate(phones[:4])]
    for phone, (answer, _) in list(zip(phones, pairs, strict=False))[:2]:
        phone.push(answer)
    arrays, _ = bed.result()
    for name, wanted in mean([held for _, held in pairs[:2]]).items():
        np.testing.assert_allclose(arrays[name], wanted, atol=1e-7)
    bed.rounds.end()
    phones[2].push(pairs[2][0])  # between two rounds
    bed.begin(2, arrays=arrays)
    bed.again(*phones)
    answer, (moved, rows) = good(phones[0], 9)
    phones[0].push(answer)
    late, weight = pairs[2][1]
    found, figures = bed.result()
    for name, now in arrays.items():
        shift = (late[name].astype(np.float64) - bed.arrays[name]) / np.sqrt(2)
        wanted = (rows * moved[name].astype(np.float64) + weight * (now + shift)) / (rows + weight)
        np.testing.assert_allclose(found[name], wanted, atol=1e-7)
    assert figures["num-examples"] == rows + weight
    bed.rounds.end()
    for number in (3, 4):
        bed.begin(number)
        bed.rounds.end()
    refused(lambda: phones[3].push(pairs[3][0]), "its round is over", 412)
    bed.close()
    yield "buffered: late answers count less"


def ends(folder: Path) -> Iterator[str]:
    """Rounds that end without all phones."""
    bed = Bed(folder, "ends", Terms(least=2, wait=100.0))
    one, two, three = bed.phones(3)
    bed.begin(1)
    answers = [good(phone, seed)[0] for seed, phone in enumerate((one, two, three))]
    one.push(answers[0])
    two.push(answers[1])
    assert bed.rounds.reply() is None
    three.call("deactivate-node", fleet_pb2.DeactivateNodeRequest(node_id=three.node))
    assert bed.result()[1]["num-examples"] == sum(map(_rows, answers[:2]))
    bed.rounds.end()
    bed.begin(2)
    one.push(good(one, 5)[0])
    assert bed.rounds.reply() is None
    bed.later = 101.0
    reply = bed.rounds.reply()
    assert reply is not None
    assert reply.has_error()
    assert "of 1 phone that were asked 1 answered" in reply.error.reason, reply.error.reason
    bed.close()
    yield "ends: a phone goes, and too few answer"


def main(folder: Path) -> None:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # whom messages are made by
    for part in (means, contents, orders, calls, buffered, ends):
        for case in part(folder):
            print(case, flush=True)
    print("all went as it should")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
