"""The process of LiteRT.js: for each program a page in a browser of its own."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from converter.runtime.engines.work import Arrays, serve
from converter.runtime.engines.workers.chromium import Browser, Page

#: WebGPU without a GPU.
_FLAGS = (
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan,WebGPU",
    "--use-vulkan=swiftshader",
    "--ignore-gpu-blocklist",
)
#: Bytes in a message: Chromium takes none of 100 MiB.
_PIECE = 1 << 24
_TYPES = {".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm"}
_HTML = b"""<!doctype html><link rel="icon" href="data:,"><body><script type="importmap">{"imports": {
"@litertjs/core": "/@litertjs/core/dist/index.js", "@litertjs/wasm-utils": "/@litertjs/wasm-utils/dist/index.js"
}}</script><script type="module" src="/web.js"></script>"""


class Pages:
    """A browser for each page: with a few pages of WebGPU behind it, Chromium ends itself."""

    def __init__(self, console: Callable[[str], object]) -> None:
        """None is open yet; `console` hears what pages write to theirs."""
        self._browser: Browser | None = None
        self._console = console

    def open(self, folder: Path, options: Mapping[str, Any]) -> tuple[Page, str]:
        """Return a page in the place of the last one, and the browser's version."""
        self.close()
        self._browser = Browser(options["browser"], _FLAGS, folder)
        packages = Path(options["packages"]).resolve()
        return Page(self._browser, lambda path: _file(packages, path), self._console), self._browser.version

    def close(self) -> None:
        """Ends the browser."""
        if self._browser is not None:
            self._browser.close()
            self._browser = None


def _file(packages: Path, path: str) -> tuple[str, bytes] | None:
    if path == "/":
        return _TYPES[".html"], _HTML
    if path == "/web.js":
        return _TYPES[".js"], resources.files("converter.runtime.engines.workers").joinpath("web.js").read_bytes()
    file = (packages / path.lstrip("/")).resolve()
    if not file.is_relative_to(packages) or not file.is_file():
        return None
    return _TYPES.get(file.suffix, "application/octet-stream"), file.read_bytes()


class Loaded:
    """A program in a page."""

    def __init__(self, pages: Pages, path: Path, options: Mapping[str, Any]) -> None:
        self._page, version = pages.open(path.parent, options)
        self._send("program", path.read_bytes())
        said = self._page.call("load", options["accelerator"])
        self._said = {"whole": said["whole"], "driver": f"{said['device']}, Chromium {version}"}

    def said(self, log: str) -> dict[str, Any]:
        """Return whether the engine takes all of it, and on what it runs."""
        return self._said

    def __call__(self, signature: str, feed: Arrays) -> Arrays:
        """Return results by name. Raises RuntimeError."""
        for name, array in feed.items():
            self._send(name, array.tobytes())
        tensors = [[name, array.dtype.name, [*array.shape]] for name, array in feed.items()]
        return {
            name: np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
            for name, dtype, shape, data in self._page.call("run", signature, tensors)
        }

    def _send(self, name: str, data: bytes) -> None:
        """Hands bytes to the page."""
        for at in range(0, max(1, len(data)), _PIECE):
            piece = base64.b64encode(data[at : at + _PIECE]).decode()
            self._page.call("take", name, len(data), at, piece)


if __name__ == "__main__":
    pages = Pages(partial(print, flush=True))
    try:
        serve(lambda path, options: Loaded(pages, path, options))
    finally:
        pages.close()
