"""A window of headless Chromium, to open a page and click through it."""

from __future__ import annotations

import base64
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from converter.runtime.engines.web import find_chromium
from converter.runtime.engines.workers.chromium import Browser

#: Seconds that anything may take on a busy machine.
PATIENCE = 300.0


class Window:
    """A browser with one page, and what the page said and asked for.

    Attributes:
        complaints: errors and warnings on its console, and exceptions.
        requests: every address that it asked for.
    """

    def __init__(self) -> None:
        command = find_chromium()
        assert command is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = ("--disable-gpu", "--hide-scrollbars")
        self._browser = Browser(command, flags, Path(self._folder.name), PATIENCE)
        self._browser.hear(self._hear)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._is_loaded = False
        targets = self._browser.command("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._browser.command("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to the page and its result."""
        return self._browser.command(method, self._session, **parameters)

    def _hear(self, method: str, said: Mapping[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._is_loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(said["args"])[:1000])
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])

    def look(self, width: int, height: int = 900, dark: bool = False) -> None:
        """The size of the window and the scheme of colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: Path) -> float:
        """Opens a page. Returns the seconds until it was drawn and could be used."""
        self._is_loaded = False
        before = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._is_loaded:
            self.run("0")
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

    def __enter__(self) -> Window:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()
        self._folder.cleanup()
