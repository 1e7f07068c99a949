"""A leaf between a SuperLink and phones: hostile ones, and thousands (`light.py`)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.federated import Exchange
from converter.program.file import read_program
from converter.runtime import load_state
from tests.federated.flower import BIN, Link, all_went, ended, needs_flower, settings, superlink
from tests.federated.people import built, write_rows
from tests.federated.test_rounds import matches, project
from tests.tree import ROOT

pytestmark = needs_flower


@pytest.mark.quick
def test_phones_of_a_leaf(tmp_path: Path) -> None:
    """Means are NumPy's; hostile phones are refused, each by a sentence."""
    built("head").write(tmp_path / "program.tflite")
    all_went("tests.federated.leaves", tmp_path)


class Process:
    """A leaf in a process of its own.

    Attributes:
        port: where phones find it; the same after a restart.
    """

    def __init__(self, link: Link, at: Path, name: str, *options: str) -> None:
        self._log = at / f"{name}.log"
        self._command = [BIN / "python", "-m", "pocketune", "federated", "leaf", at / "program.tflite"]
        self._command += ["--superlink", link.address, "--state", at / name, *options]
        self._link, self.port = link, 0
        self.start()

    def start(self) -> None:
        where = ["--listen", f"127.0.0.1:{self.port}"]
        begun = self._log.stat().st_size if self._log.exists() else 0
        self._open([*self._command, *where])
        for _ in range(600):
            if found := re.search(r"127\.0\.0\.1:(\d+)", self.said()[begun:]):
                self.port = int(found[1])
                return
            assert self.runs(), self.said()
            time.sleep(0.2)
        raise AssertionError("the leaf does not listen after two minutes")

    def _open(self, command: list[str | Path]) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, env=settings(self._link.folder), stdout=log, stderr=subprocess.STDOUT
            )

    def runs(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        return self._log.read_text()

    def memory(self) -> float:
        """Return its resident MiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def end(self) -> None:
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(60) == 0, self.said()


@contextmanager
def running(server: Path, link: Link) -> Iterator[subprocess.Popen[bytes]]:
    """`flwr run`, in the background."""
    with (server / "run.log").open("w") as log:
        process = subprocess.Popen(
            [BIN / "flwr", "run", ".", "here", "--stream"],
            cwd=server, env=settings(link.folder), stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_leaves_with_real_clients_are_plain_fedavg(tmp_path: Path) -> None:
    """Two leaves of three clients each: the mean of means is FedAvg's of all six."""
    program = built("head")
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 6)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=2, rounds=2)
        leaves = [Process(link, tmp_path, f"leaf{k}", "--phones", "3") for k in range(2)]
        below = [Link(f"127.0.0.1:{leaf.port}", link.folder) for leaf in leaves]
        clients = [below[k % 2].client(tmp_path / "program.tflite", file) for k, file in enumerate(files)]
        link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=600)
        ended(clients)
        for leaf in leaves:
            leaf.end()
    matches(program, server, people=6, rounds=2)


@pytest.mark.slow
def test_two_thousand_light_clients(tmp_path: Path) -> None:
    """Rounds complete, the mean is NumPy's, and memory is flat."""
    count, rounds = 2000, 2
    built("head").write(tmp_path / "program.tflite")
    write_rows(tmp_path / "people", 1)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=1, rounds=rounds)
        leaf = Process(link, tmp_path, "leaf", "--phones", str(count), "--wait", "3000")
        phones = _light(link, leaf.port, count, rounds)
        with running(server, link) as run:
            lines, memory = _heard(phones, leaf)
            assert run.wait(120) == 0
        leaf.end()
    last = [line["mean"] for line in lines if "mean" in line][-1]
    exchange = Exchange(read_program(tmp_path / "program.tflite"))
    found = exchange.sent(load_state(server / "result/shared.state").tensors)
    for name, wanted in last.items():
        np.testing.assert_allclose(found[name].ravel(), wanted, rtol=0, atol=1e-7)
    assert memory[-1] < memory[1] + 24, memory  # MiB; the first is before any phone
    print([(line.get("kind"), line.get("seconds")) for line in lines], memory)


def _light(link: Link, port: int, count: int, rounds: int) -> subprocess.Popen[str]:
    command = [BIN / "python", "-m", "tests.federated.light", str(port), str(count), str(rounds), "0"]
    phones = subprocess.Popen(
        command, cwd=ROOT, env=settings(link.folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert phones.stdout is not None
    assert json.loads(phones.stdout.readline()) == {"joined": count}
    return phones


def _heard(phones: subprocess.Popen[str], leaf: Process) -> tuple[list[dict[str, Any]], list[float]]:
    """Return what light clients say, and the leaf's memory at each line."""
    lines, memory = [], [leaf.memory()]
    assert phones.stdout is not None
    for line in phones.stdout:
        lines.append(json.loads(line))
        memory.append(leaf.memory())
    errors = phones.stderr.read() if phones.stderr is not None else ""
    assert phones.wait(60) == 0, errors[-3000:]
    return lines, memory
