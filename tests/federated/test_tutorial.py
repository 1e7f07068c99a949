"""docs/tutorial-federated.md, to the letter: three phones, one model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.federated.flower import BIN, needs_flower, settings
from tests.federated.pages import PACKAGE, TUTORIAL, Tab, needs_caddy, needs_page, tutorial_files, wait_for
from tests.tree import ROOT

pytestmark = [
    needs_flower,
    needs_caddy,
    needs_page,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / "android_app/desktop/target/classpath").exists(),
        reason="the Kotlin client is not compiled: android_app/test",
    ),
]


class Reader:
    """Who has the page, a clone with what its first section makes, and terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._terminals: list[subprocess.Popen[bytes]] = []
        self._blocks = re.findall(r"^```bash\n(.*?)^```", TUTORIAL.read_text(), re.M | re.S)
        for name in ("scripts", "android_app"):
            (folder / name).symlink_to(ROOT / name)
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / ".venv-flower").symlink_to(BIN.parent)
        (folder / "out").mkdir()
        pack = ["npm", "pack", "--silent", "--pack-destination", folder / "out", PACKAGE]
        subprocess.run(pack, check=True, capture_output=True)
        for name, text in tutorial_files().items():
            (folder / name).write_text(text)

    def block(self, words: str) -> str:
        """Return the block with some words."""
        [found] = [block for block in self._blocks if words in block]
        return found

    def runs(self, words: str) -> str:
        """Run the block with some words; return what it said."""
        done = subprocess.run(
            ["bash", "-ec", self.block(words)], cwd=self.folder, env=self._settings(), capture_output=True, text=True,
            check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def opens(self, words: str) -> None:
        """Run the block with some words in a terminal of its own."""
        log = self.folder / f"{len(self._terminals)}.log"
        command = ["bash", "-ec", self.block(words)]
        with log.open("w") as said:
            pipes = {"stdout": said, "stderr": subprocess.STDOUT, "start_new_session": True}
            self._terminals.append(subprocess.Popen(command, cwd=self.folder, env=self._settings(), **pipes))

    def stops(self) -> None:
        """Press Ctrl-C in each terminal, the last one first."""
        for terminal in reversed(self._terminals):
            os.killpg(terminal.pid, signal.SIGINT)
            try:
                terminal.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(terminal.pid, signal.SIGKILL)

    def _settings(self) -> dict[str, str]:
        kept = settings(self.folder / "flower") | {
            "XDG_DATA_HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
        }
        return {name: value for name, value in kept.items() if name != "FLWR_HOME"}


def test_three_phones_train_one_model(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    tab = None
    try:
        reader.runs("python federation.py")
        reader.runs("federated server program.tflite")
        reader.opens("flower-superlink --insecure")
        wait_for(8000)
        reader.opens("caddy run")
        wait_for(8080)
        reader.opens("android_app/desktop/run")
        reader.runs("server/page/pocketune")
        tab = Tab("http://127.0.0.1:8080")
        tab.until("waits for work")
        reader.opens("federated client program.tflite")
        log = reader.runs("flwr run . here")
        assert "Received 3 results and 0 failures" in log
        said = reader.runs("tail -n 3")
    finally:
        if tab is not None:
            tab.close()
        reader.stops()
    together, alone = (float(each) for each in re.findall(r"'accuracy': ([\d.]+)", said))
    assert together > 0.7 > 0.45 > alone, said
