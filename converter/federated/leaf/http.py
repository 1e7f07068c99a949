"""HTTP of a leaf: an ASGI app that reads no more than a call may have, and a server for it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from converter.federated.leaf.calls import CODE, Calls
from converter.federated.leaf.phones import Refusal
from converter.federated.tls import check_shown
from converter.support.errors import UsageError

_PATH = "/v1/fleet/"
_TYPE = b"application/protobuf"
#: A piece of an array, and its envelope.
_MOST = (5 << 20) + (64 << 10)
#: Seconds in which the body of a call must be here.
_PATIENCE = 120.0
#: Connections at a time; more are answered with 503, which clients try again.
_CONNECTIONS = 10_000


class App:
    """An ASGI app."""

    def __init__(self, calls: Calls, say: Callable[[str], None]) -> None:
        self._calls, self._say = calls, say

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request; whatever it holds, the next one is answered too."""
        if scope["type"] != "http":
            return
        status, content, kind = 200, b"", _TYPE
        try:
            content = await self._answer(scope, receive)
        except Refusal as error:
            status, kind = error.status, b"application/json"
            content = json.dumps({"code": CODE, "detail": str(error)}).encode()
        except Exception as error:
            self._say(f"a call could not be answered: {type(error).__name__}: {error}")
            status, content, kind = 500, b'{"code": 0, "detail": "Internal server error."}', b"application/json"
        headers = [(b"content-type", kind), (b"content-length", str(len(content)).encode())]
        if status in (400, 413):
            headers.append((b"connection", b"close"))  # of what is too long the rest is not read
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, scope: Any, receive: Any) -> bytes:
        if scope["method"] != "POST" or not scope["path"].startswith(_PATH):
            raise Refusal(404, f"a leaf answers POST {_PATH}... alone")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("content-type", "").partition(";")[0].strip() != _TYPE.decode():
            raise Refusal(415, f"the content-type must be {_TYPE.decode()}")
        try:
            body = await asyncio.wait_for(_body(headers, receive), _PATIENCE)
        except TimeoutError:
            raise Refusal(408, f"the call did not come in {_PATIENCE:g} seconds") from None
        return self._calls.answer(scope["path"].removeprefix(_PATH), headers, body)


async def _body(headers: dict[str, str], receive: Any) -> bytes:
    """Return the body of a call. Raises Refusal where it is larger than any."""
    declared = headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > _MOST:
        raise Refusal(413, f"a call of {declared[:20]} bytes, and {_MOST} are taken")
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Refusal(400, "the caller is gone")
        body += event.get("body", b"")
        if len(body) > _MOST:
            raise Refusal(413, f"a call of more than {_MOST} bytes")
        if not event.get("more_body", False):
            return bytes(body)


class Listening:
    """A server in a thread of its own.

    Attributes:
        port: where it listens.
    """

    def __init__(self, app: App, host: str, port: int, certificate: Path | None, key: Path | None) -> None:
        """Begins to listen.

        Raises:
            UsageError: the port is taken, or the certificate is none that can be shown (`check_shown`).
        """
        check_shown(certificate, key)
        try:
            config = uvicorn.Config(
                app, host, port, log_config=None, access_log=False, lifespan="off", limit_concurrency=_CONNECTIONS,
                ssl_certfile=certificate, ssl_keyfile=key, timeout_keep_alive=75, timeout_graceful_shutdown=5,
                server_header=False,
            )  # fmt: skip
            config.load()
            self._socket = config.bind_socket()
        except SystemExit:
            raise UsageError(f"{host}:{port} cannot be listened on: is the port taken?", page="federated") from None
        self.port = self._socket.getsockname()[1]
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)

    def close(self) -> None:
        """Ends it: no call is cut off within five seconds."""
        self._server.should_exit = True
        self._thread.join(10)
