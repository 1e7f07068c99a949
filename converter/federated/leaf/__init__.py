"""A leaf: one node of a SuperLink that hands its rounds on to many phones, and answers with their weighted mean."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Message

from converter.federated.arrays import Exchange, RefusedRound
from converter.federated.leaf.calls import Calls
from converter.federated.leaf.http import App, Listening
from converter.federated.leaf.phones import Phones
from converter.federated.leaf.rounds import Rounds, Terms
from converter.federated.leaf.store import Store
from converter.federated.node import Link, beating, kept_keys, most_of
from converter.federated.wire import EndedRound, LostServer, UnknownNode
from converter.program.file import ProgramFile
from converter.support.files import write_atomically
from converter.support.words import counted

__all__ = ["Leaf", "Place", "Terms"]

#: Seconds between two looks whether a round is over.
_LOOK = 0.2


@dataclass(frozen=True)
class Place:
    """Where a leaf listens.

    Attributes:
        host: address of this machine.
        port: 0 takes a free one.
        certificate: PEM file, for TLS; None: a proxy in front has it, or all is on this machine.
        key: PEM file of its private key.
    """

    host: str = "127.0.0.1"
    port: int = 9000
    certificate: Path | None = None
    key: Path | None = None


class Leaf:
    """Between a SuperLink and phones, until it is told to stop.

    Attributes:
        port: where phones find it.
    """

    def __init__(
        self,
        program: ProgramFile,
        link: Link,
        folder: Path,
        place: Place,
        terms: Terms,
        say: Callable[[str], None],
        norm: float | None = None,
        personal: Iterable[str] = (),
    ) -> None:
        """Opens the state in a folder, and begins to listen; the round that an earlier process was in goes on.

        Args:
            program: that the phones have.
            link: to the SuperLink.
            folder: for the state; made where it is not there.
            place: where to listen.
            terms: when a round is over.
            say: is told of each round in a sentence.
            norm: the largest L2 norm of all arrays of an answer together; None: as `Exchange`.
            personal: patterns of tensors that stay with the phones.

        Raises:
            UsageError: several cannot train the program, another leaf has the folder, or the port is taken.
        """
        self._exchange, self._say = Exchange(program, norm, personal), say
        self._store, self._node = Store(folder), folder / "node"
        self._rounds = Rounds(self._store, self._exchange, terms)
        arrays = self._exchange.nbytes(slots=True)
        self._fleet = link.fleet(arrays, kept_keys(folder / "key.pem"))
        self._listening = Listening(
            App(Calls(self._rounds, Phones(self._rounds, most_of(arrays))), say),
            place.host, place.port, place.certificate, place.key,
        )  # fmt: skip
        self.port = self._listening.port

    def serve(self, stop: threading.Event) -> None:
        """Hands on rounds until `stop` is set. What was begun is on disk, and goes on with the next leaf.

        Raises:
            LostServer: the SuperLink does not answer, or does not take this leaf.
        """
        try:
            self._join()
            self._let_go(stop)
            with beating(self._fleet):
                while not stop.is_set():
                    self._round(stop)
        finally:
            self._listening.close()
            self._fleet.leave(unregister=False)
            self._store.close()

    def _join(self) -> None:
        """Joins the SuperLink as the node that an earlier process was."""
        known = int(self._node.read_text()) if self._node.exists() else 0
        self._fleet.join_again(known, self._say)
        self._keep_node(known)

    def _keep_node(self, known: int) -> None:
        """Writes down which node this is, where it is another than an earlier one."""
        if self._fleet.node != known:
            write_atomically(self._node, str(self._fleet.node).encode())

    def _let_go(self, stop: threading.Event) -> None:
        """Lets the SuperLink give up what an earlier process took and lost: it gives out each message once."""
        if self._rounds.open is not None:
            self._say(f"goes on with a round: {self._told()}")
            return
        if self._store.one("SELECT 1 FROM rounds LIMIT 1"):
            known = self._fleet.node
            self._fleet.step_out(stop)
            self._keep_node(known)

    def _round(self, stop: threading.Event) -> None:
        try:
            if self._rounds.open is None and not self._next():
                stop.wait(1.0)
                return
            reply = self._reply(stop)
            if reply is None:
                return
            told = self._told()
            self._fleet.reply(reply, time.time() - reply.metadata.created_at)
            self._say(f"answered: {reply.error.reason if reply.has_error() else told}")
            self._rounds.end()
        except UnknownNode as error:
            self._say(str(error))
            self._join()
        except LostServer:
            raise
        except RefusedRound as error:
            self._say(str(error))
            if isinstance(error, EndedRound):
                self._rounds.end()

    def _next(self) -> bool:
        """Take the next message of the SuperLink; return whether there was one for phones."""
        kept: list[Message] = []

        def keep(message: Message) -> None:
            if message.metadata.message_type != "query":
                self._rounds.begin(message)
            kept.append(message)

        message = self._fleet.pull(keep)
        if message is not None and message.metadata.message_type == "query":
            self._fleet.reply(self._rounds.described(message), 0.0)
            return False
        opened: Any = self._rounds.open
        if opened is not None and kept:
            self._say(f"asks phones to {opened.message.metadata.message_type}")
        return opened is not None

    def _reply(self, stop: threading.Event) -> Message | None:
        """Return the answer to the round, as soon as it is over; None where the leaf is to stop."""
        while not stop.is_set():
            reply = self._rounds.reply()
            if reply is not None:
                return reply
            stop.wait(_LOOK)
        return None

    def _told(self) -> str:
        states = self._rounds.counts()
        return f"{states.get('counted', 0)} of {counted(sum(states.values()), 'phone')} that were asked"
