"""Headless Chromium, spoken to by its DevTools protocol through a pipe. It gets no file from anywhere but from here."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from converter.runtime.engines.work import last_words

#: What a page asks for, by path; None where there is no such file. A file is its type and its bytes.
Files = Callable[[str], tuple[str, bytes] | None]

#: Where pages are: nowhere, but of an origin that browsers trust with WebGPU.
ORIGIN = "https://pocketune.invalid"
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # it opens our own pages alone, and containers have none
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # nothing leaves the machine
)
#: The descriptors by which Chromium listens and answers.
_LISTENS, _ANSWERS = 3, 4
#: Seconds that it may take to go.
_LEAVE = 10.0


class Browser:
    """A browser."""

    def __init__(self, command: str, flags: Sequence[str], folder: Path, patience: float | None = None) -> None:
        """Starts it.

        Args:
            command: Chromium.
            flags: besides the usual ones.
            folder: where it keeps what it keeps.
            patience: seconds that it may say nothing while it is waited for; None: for ever.
        """
        self._patience = patience
        self._log = folder / "chromium.log"
        theirs, ours = os.pipe(), os.pipe()
        # Above those that Chromium takes them for, lest one is overwritten by the other.
        listens, answers = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs[0], ours[1]))
        # Not in `preexec_fn`: a fork of a process with threads may hang.
        shell = ("bash", "-c", f'exec "$0" "$@" {_LISTENS}<&{listens} {_ANSWERS}>&{answers}')
        every = [*shell, command, *_FLAGS, *flags, f"--user-data-dir={folder / 'chromium'}", "about:blank"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 the browser of this machine
                every, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(listens, answers)
            )
        for fd in (theirs[0], ours[1], listens, answers):
            os.close(fd)
        self._out, self._in = os.fdopen(theirs[1], "wb", buffering=0), os.fdopen(ours[0], "rb")
        self._rest, self._number = b"", 0
        self._heard: Callable[[str, Mapping[str, Any]], None] = lambda method, said: None

    @property
    def is_there(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def version(self) -> str:
        """Chromium's."""
        return str(self.command("Browser.getVersion")["product"]).partition("/")[2]

    def command(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Return what comes of a command; meanwhile others are heard.

        Raises:
            RuntimeError: the browser refuses it, or is gone.
        """
        self._number += 1
        number = self._number
        self._send(number, method, session, parameters)
        while (answer := self._receive()).get("id") != number:
            if "method" in answer:
                self._heard(answer["method"], answer["params"])
        if "error" in answer:
            raise RuntimeError(f"Chromium refuses {method}: {answer['error']['message']}")
        return dict(answer["result"])

    def tell(self, method: str, session: str, **parameters: Any) -> None:
        """A command of which nothing needs to come."""
        self._number += 1
        self._send(self._number, method, session, parameters)

    def hear(self, listener: Callable[[str, Mapping[str, Any]], None]) -> None:
        """From now on tells of events."""
        self._heard = listener

    def close(self) -> None:
        """Ends it."""
        with suppress(RuntimeError, OSError):
            self.command("Browser.close")
        try:
            self._process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._in.close()

    def _send(self, number: int, method: str, session: str, parameters: Mapping[str, Any]) -> None:
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = memoryview(json.dumps(message).encode() + b"\0")
        try:
            while data:
                data = data[self._out.write(data) :]
        except BrokenPipeError:
            raise RuntimeError(self._gone) from None

    def _receive(self) -> dict[str, Any]:
        pieces = [self._rest]
        while b"\0" not in pieces[-1]:
            if not select.select([self._in], [], [], self._patience)[0]:
                raise RuntimeError(f"Chromium has said nothing for {self._patience:g} seconds")
            if not (piece := os.read(self._in.fileno(), 1 << 20)):
                raise RuntimeError(self._gone)
            pieces.append(piece)
        message, _, self._rest = b"".join(pieces).partition(b"\0")
        return dict(json.loads(message))

    @property
    def _gone(self) -> str:
        return f"Chromium ended, its last words: {last_words(self._log.read_text(errors='replace'))}"


class Page:
    """A page of its own."""

    def __init__(self, browser: Browser, files: Files, console: Callable[[str], object]) -> None:
        """Opens the page that is the file `/`; `console` hears what it writes to its console."""
        self._browser, self._files, self._console, self._is_loaded = browser, files, console, False
        target = browser.command("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.command("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        browser.hear(self._hear)
        for domain in ("Inspector", "Runtime", "Log", "Page", "Fetch"):
            browser.command(f"{domain}.enable", self._session)
        browser.command("Page.navigate", self._session, url=f"{ORIGIN}/")
        while not self._is_loaded:
            browser.command("Runtime.evaluate", self._session, expression="0")
        found = browser.command("Runtime.evaluate", self._session, expression="globalThis")
        self._globals = found["result"]["objectId"]

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what a function of the page gives in the end, plain JSON values.

        Raises:
            RuntimeError: it threw, or the page is gone.
        """
        given = self._browser.command(
            "Runtime.callFunctionOn",
            self._session,
            functionDeclaration=f"(...values) => {function}(...values)",
            objectId=self._globals,
            arguments=[{"value": value} for value in arguments],
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in given:
            thrown = given["exceptionDetails"]
            raise RuntimeError(thrown.get("exception", {}).get("description") or thrown["text"])
        return given["result"].get("value")

    def _hear(self, method: str, said: Mapping[str, Any]) -> None:
        if method == "Fetch.requestPaused":
            self._answer(said["requestId"], said["request"]["url"])
        elif method == "Page.loadEventFired":
            self._is_loaded = True
        elif method == "Runtime.consoleAPICalled":
            self._console(" ".join(str(a.get("value", a.get("description", ""))) for a in said["args"]))
        elif method == "Log.entryAdded":
            self._console(said["entry"]["text"])
        elif method == "Inspector.targetCrashed":
            raise RuntimeError("the page crashed")

    def _answer(self, request: str, url: str) -> None:
        found = self._files(url.removeprefix(ORIGIN)) if url.startswith(f"{ORIGIN}/") else None
        kind, body = found or ("text/plain", b"")
        self._browser.tell(
            "Fetch.fulfillRequest",
            self._session,
            requestId=request,
            responseCode=404 if found is None else 200,
            responseHeaders=[{"name": "Content-Type", "value": kind}],
            body=base64.b64encode(body).decode(),
        )
