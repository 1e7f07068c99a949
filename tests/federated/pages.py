"""A page as a client: the files of the tutorial's, the door in front of a SuperLink, and headless Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.federated.flower import Link
from tests.tree import ROOT

WEB = ROOT / "web"
PACKAGE = WEB / "dist/package"
TUTORIAL = ROOT / "docs/tutorial-federated.md"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
needs_page = pytest.mark.skipif(
    not ((PACKAGE / "federated.js").exists() and Path(CHROMIUM).exists() and shutil.which("node")),
    reason="there is no package or no Chromium: web/run_tests, which runs this too",
)
needs_caddy = pytest.mark.skipif(shutil.which("caddy") is None, reason="there is no Caddy: apt-get install caddy")


def tutorial_files() -> dict[str, str]:
    """Return the files that the tutorial has its reader write, by name."""
    blocks = re.findall(r"^```(?:python|js|html)\n(.*?)^```", TUTORIAL.read_text(), re.M | re.S)
    return {re.match(r"(?:#|//|<!--) ([\w.]+)", block)[1]: block for block in blocks}


def lay_out(folder: Path, program: Path, rows: tuple[np.ndarray, np.ndarray]) -> None:
    """Write the tutorial's page, with a program and a user's rows, into a folder."""
    shutil.copytree(PACKAGE, folder / "pocketune")
    for name, text in tutorial_files().items():
        if name in ("index.html", "worker.js"):
            (folder / name).write_text(text)
    shutil.copy(program, folder / "program.tflite")
    x, y = rows
    (folder / "rows.json").write_text(json.dumps({"x": x.tolist(), "y": y.tolist()}))


@contextmanager
def door(link: Link, server: Path) -> Iterator[str]:
    """Run Caddy with the project's own config in front of a SuperLink; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        site = f"http://127.0.0.1:{free.getsockname()[1]}"
    own = {
        "SITE": site,
        "SUPERLINK": link.address,
        "XDG_DATA_HOME": str(link.folder),
        "XDG_CONFIG_HOME": str(link.folder),
    }
    with (link.folder / "caddy.log").open("w") as log:
        command = ["caddy", "run"]
        process = subprocess.Popen(command, cwd=server, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(int(site.rpartition(":")[2]))
            yield site
        finally:
            process.terminate()
            process.wait(30)


class Tab:
    """A tab of headless Chromium at an address."""

    def __init__(self, address: str) -> None:
        command = ["node", "test/visit.mjs", address]
        self._process = subprocess.Popen(
            command, cwd=WEB, env=os.environ | {"CHROMIUM": CHROMIUM}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, bufsize=1,
        )  # fmt: skip
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with self._process.stdout as told:
            for line in told:
                self.said.append(line.rstrip("\n"))

    def until(self, words: str, seconds: float = 120) -> None:
        """Wait until the page says some words in its console."""
        end = time.monotonic() + seconds
        while not any(words in line for line in self.said):
            assert time.monotonic() < end, f"it never said {words!r}: {self.said}"
            assert self._process.poll() is None, f"the browser ended: {self.said}"
            time.sleep(0.1)

    def close(self) -> None:
        """Close the browser."""
        self._process.stdin.close()
        self._process.wait(60)


def wait_for(port: int, seconds: float = 60) -> None:
    """Wait until something listens at a port of this machine."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"nothing listens at {port} after {seconds} seconds")
