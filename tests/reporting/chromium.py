"""Headless Chromium over its debugging pipe: enough of the DevTools protocol to open a page and click through it."""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

#: Debian's package `chromium`, and what other systems call it.
BINARY = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
#: Seconds that anything may take on a busy machine.
PATIENCE = 60.0


class Browser:
    """A browser with one page, and what the page said and asked for.

    Attributes:
        complaints: errors and warnings on its console, and exceptions.
        requests: every address that it asked for.
    """

    def __init__(self) -> None:
        assert BINARY is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (read_here, write_there), (read_there, write_here) = os.pipe(), os.pipe()
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={self._folder.name}", "about:blank",
        ]  # fmt: skip
        script = f'exec "$@" 3<&{read_there} 4>&{write_there}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", BINARY, *options],
            pass_fds=(read_there, write_there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_there)
        os.close(write_there)
        self._in, self._out, self._waiting, self._number = write_here, read_here, b"", 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self, patience: float = PATIENCE) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            if not self._selector.select(patience):
                raise TimeoutError("Chromium does not answer")
            read = os.read(self._out, 1 << 20)
            assert read, "Chromium has ended"
            self._waiting += read
        text, _, self._waiting = self._waiting.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self._told(message["method"], message["params"])
            self._events.append(message)
        return message

    def _told(self, method: str, what: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(what["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(what["args"])[:1000])
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(what["entry"]["text"])

    def look(self, width: int, height: int = 900, dark: bool = False) -> None:
        """The size of the window and the scheme of colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: Path) -> float:
        """Opens a page. Returns the seconds until it was drawn and could be used."""
        self._events.clear()
        before = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._next()
        # Two frames later all that the scripts did is on the screen.
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.monotonic() - before

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Keys, one after the other, by their names in DOM events."""
        for key in keys:
            said: dict[str, Any] = {"key": key}
            if len(key) == 1:
                said["text"] = key
            elif key == "Enter":
                said |= {"text": "\r", "windowsVirtualKeyCode": 13}
            elif key == "Tab":
                said |= {"windowsVirtualKeyCode": 9}
            self.call("Input.dispatchKeyEvent", type="keyDown", **said)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, selector: str, times: int = 1) -> None:
        """A click on the middle of an element."""
        script = f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center"}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        box = self.run(script)
        self.click_at(*box, times=times)

    def click_at(self, x: float, y: float, times: int = 1) -> None:
        """Clicks at a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for k in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=k)

    def picture(self, path: Path, whole: bool = True) -> None:
        """A screenshot, of the whole page or of what the window shows."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            self._process.kill()
        self._process.wait()
        self._selector.close()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()
