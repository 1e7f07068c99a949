"""Flower's Fleet API as a client calls it: messages with their objects, in and out, over HTTP.

The calls, their signatures and the form of objects are those of the package `flwr`; what is ours is what a client must
not leave to a server: how large an answer may be, how deep its objects lie, how long to wait. Flower's own node also
fetches the server's Python app and runs it; this one never does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, node_pb2
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from converter.federated.app import RAISED
from converter.federated.arrays import RefusedRound
from converter.federated.messages import head_of, ids_of, inflated
from converter.federated.tls import trusting, untrusted
from converter.support.errors import DeviceError

#: Seconds from one try to the next, doubled each time, up to so many.
_FIRST, _LONGEST = 1.0, 30.0
#: A server's errors that pass.
_BUSY = (502, 503, 504)
#: Seconds between a node's signs of life: Flower takes it for gone after two.
BEAT = 30.0
#: Seconds over these two in which a node that was killed is joined again.
_MARGIN = 5.0
#: Seconds in which a SuperLink notes that a node went, and gives up what that node was asked.
_NOTED = 10.0


class LostServer(DeviceError):
    """The SuperLink does not answer, or refuses this client."""

    page = "federated"


class UnknownNode(LostServer):
    """The SuperLink does not know this node, or not its signature: it began again, or one of the clocks is wrong."""


class EndedRound(RefusedRound):
    """The round is over at the server: it is left as it is."""


class Fleet:
    """One node at a SuperLink. Calls that find no server are tried again, for so long as the user waits."""

    def __init__(
        self,
        address: str,
        insecure: bool,
        certificates: bytes | None,
        keys: tuple[Any, Any],
        patience: float,
        most: int,
    ) -> None:
        """Makes the connection; nothing is called yet.

        Args:
            address: HOST:PORT.
            insecure: without TLS.
            certificates: PEM of whom to trust (`trusting`); None: the authorities of the system.
            keys: a P-384 key and its public half.
            patience: seconds to wait for a server that does not answer.
            most: bytes that all objects of a message may have together.
        """
        self._address, self._patience = address, patience
        self._public = public_key_to_bytes(keys[1])
        self._client = _Capped(
            f"http{'' if insecure else 's'}://{address}",
            interceptors=[NodeAuthHttpInterceptor(*keys)],
            verify=True if insecure or certificates is None else trusting(certificates),
        )
        self._client.most = most
        self._node = node_pb2.Node()

    def join(self, say: Callable[[str], None] = lambda line: None) -> bool:
        """Says that the node is there; a key that is new to the server is registered before.

        A SuperLink refuses a key as long as it takes a node with it for one that is there, as after a client was
        killed: two heartbeats. So long it is asked again.

        Args:
            say: is told, once, that it is waited.

        Returns:
            Whether the server refused the key at first: a node with it may have taken a message, and lost it.

        Raises:
            LostServer: there is none, or it does not take this key.
        """
        refused: EndedRound | None = None
        for wait in _waits(min(self._patience, 2 * BEAT + _MARGIN)):
            try:
                self._register()
                self._activate()
                return refused is not None
            except EndedRound as error:
                if refused is None:
                    say(
                        f"{self._address} does not take this client's key yet: a client with it may have been killed, "
                        f"which the server notes within {2 * BEAT:g} seconds; asking again"
                    )
                refused = error
            time.sleep(wait)
        raise LostServer(f"{self._address} does not take this client's key: {refused}")

    def join_again(self, node: int, say: Callable[[str], None] = lambda line: None) -> None:
        """Says that a node is still there, or there again; one that the server does not know is joined.

        Args:
            node: its id from before; 0 where there was none. A sign of life does for a node that the server takes for
                one that is there, and would not activate a second time.
            say: as of `join`.

        Raises:
            LostServer: there is none, or it does not take this key.
        """
        self._node = node_pb2.Node(node_id=node)
        asked = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=BEAT)
        try:
            if node and self._call(self._client.SendNodeHeartbeat, asked).success:
                return
        except (EndedRound, UnknownNode):
            pass
        self.join(say)

    def step_out(self, stop: threading.Event) -> None:
        """Leaves for some seconds, in which the server gives up what this node was asked: it gives out nothing twice.

        Args:
            stop: ends it.

        Raises:
            LostServer: as `join`.
        """
        self.leave(unregister=False)
        stop.wait(_NOTED)
        self.join()

    @property
    def node(self) -> int:
        """The id that the server gave; 0 before it is joined."""
        return int(self._node.node_id)

    def _register(self) -> None:
        """Registers the key; a server that knows it, or takes only those that it knows, refuses that."""
        with suppress(EndedRound):
            self._call(self._client.RegisterNode, fleet_pb2.RegisterNodeFleetRequest(public_key=self._public))

    def _activate(self) -> None:
        asked = fleet_pb2.ActivateNodeRequest(public_key=self._public, heartbeat_interval=BEAT)
        self._node = node_pb2.Node(node_id=self._call(self._client.ActivateNode, asked).node_id)

    def beat(self) -> None:
        """Says that the node is there, once; a server that does not answer is left to the next call."""
        asked = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=BEAT)
        try:
            self._client.SendNodeHeartbeat(asked)
        except (httpx.HTTPError, ValueError, RefusedRound):
            return

    def pull(self, keep: Callable[[Message], None] = lambda message: None) -> Message | None:
        """Return the next message with its content, or None where there is nothing to do.

        Args:
            keep: is given the message before the server is told that it is here.

        Raises:
            RefusedRound: its objects are too many, too deep, too large or not what their ids say.
                The server is told so.
            EndedRound: the run is over.
            UnknownNode: the server began again.
            LostServer: there is none.
        """
        try:
            response = self._call(self._client.PullMessages, fleet_pb2.PullMessagesRequest(node=self._node))
        except EndedRound as error:
            raise UnknownNode(f"{self._address} does not know this node: {error}") from None
        if not response.messages_list:
            return None
        if len(response.message_object_trees) != len(response.messages_list):
            raise RefusedRound("the server's message comes without its objects")
        message, tree = head_of(response.messages_list[0]), response.message_object_trees[0]
        if message.metadata.dst_node_id != self._node.node_id:  # nobody would take an answer in that node's name
            raise RefusedRound("the server's message is for another node")
        try:
            contents = self._objects(message.metadata.run_id, tree)
            received = inflated(tree.object_id, contents, message.metadata.reply_to_message_id, self._client.most)
            if _address(received) != _address(message):
                raise RefusedRound("the message is not what its envelope says")
            keep(received)
            self._confirm(received)
            return received
        except EndedRound:
            raise
        except RefusedRound as error:
            self.reply(Message(Error(RAISED, str(error)), reply_to=message), 0.0)
            raise

    def reply(self, message: Message, seconds: float) -> int:
        """Send an answer; return how many bytes of objects the server had not yet.

        Args:
            message: with its content, or an error.
            seconds: how long the work took.

        Raises:
            EndedRound: the run is over.
            LostServer: there is none.
        """
        message.metadata.__dict__["_message_id"] = message.object_id
        run = message.metadata.run_id
        with no_object_id_recompute():
            objects = get_all_nested_objects(message)
            head = message_to_proto(remove_content_from_message(message))
            pushed = fleet_pb2.PushMessagesRequest(node=self._node, messages_list=[head])
            pushed.message_object_trees.append(get_object_tree(message))
            pushed.clientapp_runtime_list.append(seconds)
            response = self._call(self._client.PushMessages, pushed)
            wanted, sent = set(response.objects_to_push), 0
            for name, one in objects.items():
                if name in wanted:
                    content = one.deflate()
                    self._push(run, name, content, response.session_id)
                    sent += len(content)
        return sent

    def leave(self, unregister: bool) -> None:
        """Says that the node goes; a server that does not answer finds out by itself."""
        node = self._node.node_id
        try:
            self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node))
            if unregister:
                self._client.UnregisterNode(fleet_pb2.UnregisterNodeFleetRequest(node_id=node))
        except (httpx.HTTPError, ValueError, RefusedRound):
            return

    def _objects(self, run: int, tree: Any) -> dict[str, bytes]:
        """Return all objects of a message by id."""
        contents: dict[str, bytes] = {}
        for name in dict.fromkeys(ids_of(tree)):
            contents[name] = self._object(run, name)
            if sum(map(len, contents.values())) > self._client.most:
                raise RefusedRound(f"the server's message is larger than {self._client.most} bytes")
        return contents

    def _confirm(self, message: Message) -> None:
        """Tells the server that a message is here with all its objects."""
        confirmed = message_pb2.ConfirmMessageReceivedRequest(
            node=self._node, run_id=message.metadata.run_id, message_object_id=message.metadata.message_id
        )
        self._call(self._client.ConfirmMessageReceived, confirmed)

    def _object(self, run: int, name: str) -> bytes:
        asked = message_pb2.PullObjectRequest(node=self._node, run_id=run, object_id=name)
        for wait in _waits(self._patience):
            response = self._call(self._client.PullObject, asked)
            if not response.object_found:
                break
            if response.object_available:
                if get_object_id(response.object_content) != name:
                    raise RefusedRound(f"object {name[:16]} of the server is not what its id says")
                return response.object_content
            time.sleep(wait)
        raise EndedRound(f"object {name[:16]} of the server is not there")

    def _push(self, run: int, name: str, content: bytes, session: str) -> None:
        asked = message_pb2.PushObjectRequest(
            node=self._node, run_id=run, object_id=name, object_content=content, session_id=session
        )
        if not self._call(self._client.PushObject, asked).stored:
            raise EndedRound("the server does not take the answer: the session of its upload is over")

    def _call(self, call: Callable[[Any], Any], request: Any) -> Any:
        """Return what the server answers. Raises LostServer or EndedRound."""
        reason = ""
        for wait in _waits(self._patience):
            try:
                return call(request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in _BUSY:
                    raise self._refused(error) from None
                reason = f"HTTP {error.response.status_code}"
            except httpx.TransportError as error:
                reason = str(error) or type(error).__name__
                if why := untrusted(error):
                    reason = f"its certificate is refused here: {why}. Is it the right server (--root-certificates)?"
                    if not self.node:  # later it may be a net that sends all calls to a page of its own, for a while
                        raise LostServer(f"{self._address} is not talked to: {reason}") from None
            except ValueError as error:
                raise LostServer(f"{self._address} does not answer as a SuperLink does: {error}") from None
            time.sleep(wait)
        raise LostServer(f"no SuperLink answers at {self._address}, for {self._patience:g} seconds: {reason}")

    def _refused(self, error: httpx.HTTPStatusError) -> Exception:
        response = error.response
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return UnknownNode(
                f"{self._address} does not take this client's signature, at {response.headers.get('date', '?')} by its "
                "clock: set that of this machine, and have the server's operator register the key"
            )
        return EndedRound(f"the server answers HTTP {response.status_code}: {response.text[:300]}")


class _Capped(FleetHttpClient):
    """The calls, with a bound on what an answer may hold; it is read no further than that."""

    most = 0

    def _send(self, context: Any, *, stream: bool = False) -> httpx.Response:
        context.request.headers["accept-encoding"] = "identity"
        response = super()._send(context, stream=True)
        if response.is_error:
            return response  # Flower bounds these itself
        context.request.extensions["timeout"]["read"] = self._client.timeout.read
        body = bytearray()
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > self.most:
                    raise RefusedRound(f"an answer of the server is larger than {self.most} bytes")
        finally:
            response.close()
        return httpx.Response(
            response.status_code, headers=_plain(response), content=bytes(body), request=context.request
        )


def _address(message: Message) -> tuple[int, int, int, str, str]:
    """Return who says what to whom, and in which run."""
    of = message.metadata
    return of.run_id, of.src_node_id, of.dst_node_id, of.message_type, of.group_id


def _plain(response: httpx.Response) -> list[tuple[str, str]]:
    """Return the headers of an answer that was read."""
    return [
        (key, value)
        for key, value in response.headers.multi_items()
        if key not in ("content-length", "transfer-encoding", "content-encoding")  # nothing is unpacked
    ]


def _waits(patience: float) -> Iterator[float]:
    """Yield how long to wait after each try, until so many seconds are over; the last try comes after the last wait."""
    end, wait = time.monotonic() + patience, _FIRST
    while (left := end - time.monotonic()) > 0:
        yield min(wait * random.uniform(0.8, 1.2), left)
        wait = min(2 * wait, _LONGEST)
    yield 0.0
