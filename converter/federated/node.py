"""A client at work: waits for rounds of a SuperLink, and takes part in them with a `ClientApp` of its own."""

from __future__ import annotations

import ipaddress
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.federated.app import RAISED
from converter.federated.arrays import RefusedRound
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.files import write_atomically
from converter.support.words import size

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from converter.federated.wire import Fleet

#: Bytes of a message beside its arrays, and what the arrays may have in it.
_BESIDE, _TIMES = 1 << 20, 4
#: Runs whose optimizer slots are kept at a time.
_RUNS = 8
#: Messages that are known again.
_ANSWERED = 64


@dataclass
class Served:
    """What a client did.

    Attributes:
        messages: that it answered with numbers.
        trained: those of them that asked it to train.
        errors: why it answered others with an error, or not at all.
        nbytes: of objects that left this machine.
    """

    messages: int = 0
    trained: int = 0
    errors: list[str] = field(default_factory=list)
    nbytes: int = 0


def serve(
    app: ClientApp,
    superlink: str,
    arrays: int,
    *,
    insecure: bool = False,
    certificates: str | Path | None = None,
    key: str | Path | None = None,
    poll: float = 3.0,
    patience: float = 300.0,
    idle: float | None = None,
    stop: threading.Event | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Served:
    """Takes part in the rounds of a SuperLink until `stop`, or `idle`, ends it.

    The server's Python app is never fetched: what runs is `app`, whatever the server sends.

    Args:
        app: of `client_app`.
        superlink: HOST:PORT.
        arrays: bytes of numbers of a message (`Exchange.nbytes`, slots with them); one of more than four times that and
            1 MiB is refused before it is read.
        insecure: without TLS; on this machine itself that is so unless `certificates` are given.
        certificates: PEM file of whom to trust: authorities, or the server's own certificate, which pins it; None: the
            authorities of the system.
        key: PEM file of a P-384 key, which the client registers where the server does not know it and takes any. None:
            a new one, which it takes back at the end.
        poll: seconds between two questions whether there is work.
        patience: seconds to wait for a server that does not answer.
        idle: it ends after so many seconds without work. None: it waits.
        stop: when it is set, the client leaves after the round that it is in.
        say: is told of each round in a sentence.

    Raises:
        UsageError: Flower is not installed, or the address or a file is none.
        LostServer: there is no server, or it does not take this client.
    """
    require("federated", "a federated client")
    link = Link(superlink, insecure, certificates, patience)
    fleet = link.fleet(arrays, _keys(key))
    stop = stop or threading.Event()
    if fleet.join(say):
        fleet.step_out(stop)
    say(f"joined {superlink}{' without TLS' * link.plain}, waiting for rounds")
    client = _Client(app, fleet, say)
    try:
        with beating(fleet):
            _rounds(client, fleet, poll, idle, stop)
    finally:
        fleet.leave(unregister=key is None)
    return client.served


@dataclass(frozen=True)
class Link:
    """Where a SuperLink is, and how it is reached.

    Attributes:
        superlink: HOST:PORT.
        insecure: without TLS; on this machine itself that is so unless `certificates` are given.
        certificates: PEM file of whom to trust: authorities, or the server's own certificate, which pins it; None: the
            authorities of the system.
        patience: seconds to wait for a server that does not answer.
    """

    superlink: str
    insecure: bool = False
    certificates: str | Path | None = None
    patience: float = 300.0

    def __post_init__(self) -> None:
        """Raises UsageError where the address is none, or whom to trust is said for a link without TLS."""
        _check_address(self.superlink)
        if self.insecure and self.certificates is not None:
            raise UsageError(
                "without TLS (insecure) no certificate is looked at: give one of the two", page="federated"
            )

    @property
    def plain(self) -> bool:
        """Whether there is no TLS."""
        return self.insecure or (self.certificates is None and is_here(self.superlink))

    def fleet(self, arrays: int, keys: tuple[Any, Any]) -> Fleet:
        """Return a connection for a node with a key, which is not joined yet.

        Args:
            arrays: bytes of numbers of a message.
            keys: a P-384 key and its public half.
        """
        from converter.federated.wire import Fleet

        trusted = None if self.certificates is None else _read(self.certificates, "certificates")
        return Fleet(self.superlink, self.plain, trusted, keys, self.patience, most_of(arrays))


def most_of(arrays: int) -> int:
    """Return how many bytes all objects of a message may have of whose arrays so many are expected."""
    return _BESIDE + _TIMES * arrays


def _rounds(client: _Client, fleet: Fleet, poll: float, idle: float | None, stop: threading.Event) -> None:
    from converter.federated.wire import UnknownNode

    busy = time.monotonic()
    while not stop.is_set():
        try:
            message = fleet.pull()
        except UnknownNode as error:  # as of a server that began anew
            client.note(str(error))
            fleet.join_again(fleet.node, client.say)
            client.say("joined again")
            message, busy = None, time.monotonic()
        except RefusedRound as error:
            client.note(str(error))
            message = None
        if message is not None and message.metadata.message_id in client.answered:
            client.note("the server sent a message again that was answered: it is left out")
            message = None
        if message is None:
            if idle is not None and time.monotonic() - busy >= idle:
                return
            stop.wait(poll * random.uniform(0.8, 1.2))
            continue
        client.answer(message)
        busy = time.monotonic()


class _Client:
    """Answers messages, each run's with its own context."""

    def __init__(self, app: ClientApp, fleet: Fleet, say: Callable[[str], None]) -> None:
        self._app, self._fleet, self.say = app, fleet, say
        self._contexts: dict[int, Context] = {}
        self.served = Served()
        #: Messages that were answered with numbers: training twice would move what stays here twice.
        self.answered: deque[str] = deque(maxlen=_ANSWERED)

    def answer(self, message: Message) -> None:
        """Does what a message asks, and sends the answer."""
        from converter.federated.wire import UnknownNode

        begun = time.monotonic()
        reply = self._reply(message)
        try:
            sent = self._fleet.reply(reply, time.monotonic() - begun)
        except (RefusedRound, UnknownNode) as error:  # a server that began anew is joined again when it is asked next
            self.note(str(error))
            return
        self.served.nbytes += sent
        if reply.has_error():
            self.note(f"answered with an error: {reply.error.reason}")
        else:
            self.answered.append(message.metadata.message_id)
            self.served.messages += 1
            self.served.trained += message.metadata.message_type.partition(".")[0] == "train"
            self.say(f"{_said(message, reply)}; {size(sent)} left this machine")

    def note(self, reason: str) -> None:
        """Keeps why a round came to nothing."""
        self.served.errors.append(reason)
        self.say(reason)

    def _reply(self, message: Message) -> Message:
        from flwr.app import Context, Error, Message, RecordDict

        run, node = message.metadata.run_id, message.metadata.dst_node_id
        known = self._contexts.pop(run, None) or Context(run, node, {}, RecordDict(), {}, 0)
        self._contexts[run] = known
        while len(self._contexts) > _RUNS:  # the server names the runs
            self._contexts.pop(next(iter(self._contexts)))
        try:
            return self._app(message, known)
        except Exception as error:  # a kind of message that the app has not, a mod that fails
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


def _said(message: Message, reply: Message) -> str:
    """Return what was done in a round."""
    figures: Mapping[str, Any] = next(iter(reply.content.metric_records.values()), {})
    number = next((c["server-round"] for c in message.content.config_records.values() if "server-round" in c), None)
    told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if not isinstance(value, list))
    return (
        f"{'' if number is None else f'round {number}: '}{message.metadata.message_type}{f', {told}' if told else ''}"
    )


@contextmanager
def beating(fleet: Fleet) -> Iterator[None]:
    """Tell the server all the while that the node is there."""
    gone = threading.Event()
    threading.Thread(target=_beat, args=(fleet, gone), daemon=True).start()
    try:
        yield
    finally:
        gone.set()


def _beat(fleet: Fleet, gone: threading.Event) -> None:
    from converter.federated.wire import BEAT

    while not gone.wait(BEAT * random.uniform(0.6, 0.8)):
        fleet.beat()


def is_here(superlink: str) -> bool:
    """Return whether an address is of this machine itself."""
    host = superlink.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_address(superlink: str) -> None:
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"superlink must be HOST:PORT, got {superlink!r}", page="federated")


def _keys(path: str | Path | None) -> tuple[Any, Any]:
    """Return a P-384 key and its public half. Raises UsageError where a file has none."""
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key, generate_key_pairs

    if path is None:
        return generate_key_pairs()
    try:
        private = bytes_to_private_key(_read(path, "a key"))
        if private.curve.name != "secp384r1":
            raise ValueError(f"it is of {private.curve.name}")
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: expected a P-384 private key as PEM: {error}", page="federated") from None
    return private, private.public_key()


def kept_keys(path: Path) -> tuple[Any, Any]:
    """Return the P-384 key in a file and its public half; the file is made where it is not there."""
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes

    if not path.exists():
        write_atomically(path, private_key_to_bytes(generate_key_pairs()[0]))
    return _keys(path)


def _read(path: str | Path, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {what} from {path}: {error.strerror or error}", page="federated") from None
