"""SIGKILL of clients, of leaves and of the SuperLink: what was lost is said, and no number is wrong (`killed.py`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from converter.federated import Exchange
from converter.program.file import read_program
from converter.runtime import TrainingSession, load_state
from tests.federated.flower import BIN, Link, ended, needs_flower, settings, superlink
from tests.federated.people import averaged, built, rows_of, write_rows
from tests.federated.test_leaf import Process, running
from tests.federated.test_rounds import EPOCHS, RATE, matches, project
from tests.tree import ROOT

pytestmark = [needs_flower, pytest.mark.slow]
#: Of a leaf, which begins again at once; and of a SuperLink and of a client, each of which costs a minute.
KILLS = int(os.environ.get("POCKETUNE_KILLS", "8"))
SLOW_KILLS = max(2, KILLS // 20)
PHONES = 8


def until(happened: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Wait for something."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, what()
        time.sleep(0.2)


def test_a_client_that_was_killed_joins_again_with_its_key(tmp_path: Path) -> None:
    """Within the minute in which the SuperLink takes it for one that is there; what it was asked is done by others."""
    program = built("head")
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 2)
    with superlink(tmp_path / "flower") as link:
        _key(link, tmp_path / "key.pem")
        server = project(link, tmp_path, nodes=2, rounds=2)
        killed = _started(link, tmp_path, files[0], tmp_path / "first.log", "--key", tmp_path / "key.pem")
        killed.kill()
        again = _started(link, tmp_path, files[0], tmp_path / "again.log", "--key", tmp_path / "key.pem", seconds=120)
        assert "asking again" in (tmp_path / "again.log").read_text()
        other = link.client(tmp_path / "program.tflite", files[1])
        link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=240)
        ended([again, other])
    matches(program, server, people=2, rounds=2)


def test_a_client_that_is_killed_at_random_moments_is_in_a_round_or_is_not(tmp_path: Path) -> None:
    """Each round is the mean of those that the curve has counted: of both, or of the one that is never killed."""
    program, kills = built("head"), SLOW_KILLS
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 2)
    rng, key = np.random.default_rng(1), tmp_path / "key.pem"
    with superlink(tmp_path / "flower") as link:
        _key(link, key)
        server = project(link, tmp_path, nodes=1, rounds=1000)
        curve = server / "result/curve.jsonl"
        other = link.client(tmp_path / "program.tflite", files[1], log=tmp_path / "other.log")
        with running(server, link):
            for kill in range(kills + 1):
                log = tmp_path / f"{kill}.log"
                client = _started(link, tmp_path, files[0], log, "--key", key, seconds=180)
                done = _lines(curve)
                until(lambda done=done: _lines(curve) >= done + 2, 200, (server / "run.log").read_text)
                if kill < kills:
                    time.sleep(rng.uniform(0, 5))
                    client.kill()
                    client.wait(30)
            ended([client, other])
            time.sleep(2)
        records = [json.loads(line) for line in curve.read_text().splitlines()][1:]
    took = [(0, 1) if record["clients"] == 2 else (1,) for record in records]
    assert all(record["clients"] for record in records), "the one that is never killed answers in each round"
    assert (1,) in took
    print(f"{kills} kills of a client, {len(took)} rounds, {took.count((1,))} of them without it")
    wanted = averaged(program, [rows_of(0), rows_of(1)], len(records), EPOCHS, RATE, took)
    found = load_state(server / "result/shared.state").tensors
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5, err_msg=name)


def test_clients_go_on_at_a_superlink_that_was_killed(tmp_path: Path) -> None:
    """It knows nothing of them when it is there again; a run that is started again goes on behind its last round."""
    program, rounds = built("head"), 3 * SLOW_KILLS
    program.write(tmp_path / "program.tflite")
    files, rng = write_rows(tmp_path / "people", 2), np.random.default_rng(2)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=2, rounds=rounds)
        clients = [link.client(tmp_path / "program.tflite", file) for file in files]
        curve = server / "result/curve.jsonl"
        for _ in range(SLOW_KILLS):
            with running(server, link):
                done = _lines(curve)
                until(lambda done=done: _lines(curve) > done, 200, (server / "run.log").read_text)
                time.sleep(rng.uniform(0, 3))
                link.kill()
            link.start()
        link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=600)
        said = ended(clients)
    matches(program, server, people=2, rounds=rounds)
    assert all("joined again" in errors for _, errors in said), said


class Forked(Process):
    """A leaf that begins at once: a process that has all imports forks it."""

    def __init__(self, link: Link, at: Path, name: str, *options: str) -> None:
        command, env = [BIN / "python", "-m", "tests.federated.runs.forked"], settings(link.folder)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.parent = subprocess.Popen(command, cwd=ROOT, env=env, **pipes)
        super().__init__(link, at, name, *options)

    def _open(self, command: list[str | Path]) -> None:
        self._log.touch()
        self.parent.stdin.write(json.dumps([str(self._log), *map(str, command[3:])]) + "\n")
        self.parent.stdin.flush()
        self.pid = int(self.parent.stdout.readline())

    def runs(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        self._signal(signal.SIGINT)
        self.parent.communicate(timeout=30)

    def _signal(self, number: int) -> None:
        os.kill(self.pid, number)
        until(lambda: not self.runs(), 60, self.said)


def test_a_leaf_that_is_killed_never_gives_a_wrong_mean(tmp_path: Path) -> None:
    """At random moments, with phones that break off: a round has NumPy's mean of all phones, or has none."""
    rounds = 4000
    built("head").write(tmp_path / "program.tflite")
    write_rows(tmp_path / "people", 1)
    rng = np.random.default_rng(0)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=1, rounds=rounds)
        leaf = Forked(link, tmp_path, "leaf", "--phones", str(PHONES), "--least", str(PHONES), "--wait", "60")
        command = [str(BIN / "python"), "-m", "tests.federated.runs.killed", str(leaf.port), str(PHONES)]
        command.append(str(tmp_path / "came.npz"))
        phones = subprocess.Popen(
            command, cwd=ROOT, env=settings(link.folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        curve = server / "result/curve.jsonl"
        with running(server, link) as run:
            until(lambda: _lines(curve) > 1, 200, leaf.said)
            for _ in range(KILLS):
                time.sleep(rng.uniform(0.2, 16.0))  # one that took and lost a message waits ten seconds at first
                leaf.kill()
                leaf.start()
            done = _lines(curve)
            until(lambda: _lines(curve) >= done + 3, 200, leaf.said)
            assert run.poll() is None
        said, _ = phones.communicate("", timeout=60)
        assert phones.returncode == 0, said
        leaf.end()
    records = [json.loads(line) for line in curve.read_text().splitlines()]
    _check_means(tmp_path, server, records)
    lost = [record["round"] for record in records[1:] if not record["clients"]]
    print(f"{KILLS} kills, {len(records) - 1} rounds, of them ended without an answer: {lost}; refused: {said}")
    assert len(lost) <= KILLS
    assert len(records) - 1 - len(lost) >= 3 + KILLS // 20, "rounds went on between the kills"


def _check_means(folder: Path, server: Path, records: list[dict[str, float]]) -> None:
    """Each round ends with the mean of what all phones sent, or where it began."""
    exchange = Exchange(read_program(folder / "program.tflite"))
    with TrainingSession(folder / "program.tflite") as session:
        begins = exchange.sent(session.state())
    last = exchange.sent(load_state(server / "result/shared.state").tensors)
    with np.load(folder / "came.npz") as file:
        kept = {key: file[key] for key in file.files}
    for record in records[1:]:
        number = int(record["round"])
        came = f"{number}/came/" + next(iter(begins)) in kept
        assert came or not record["clients"], "a round has a mean, and no phone was asked"
        for name, array in begins.items() if came else ():
            np.testing.assert_array_equal(
                kept[f"{number}/came/{name}"], array, err_msg=f"{name}, round {number} begins"
            )
        ends = {name: kept[f"{number}/mean/{name}"] for name in begins} if record["clients"] else begins
        following = {name: kept.get(f"{number + 1}/came/{name}") for name in begins}
        found = last if record is records[-1] else following
        for name, array in ends.items():
            after = found[name]
            if after is not None:
                np.testing.assert_allclose(after, array, rtol=0, atol=1e-7, err_msg=f"{name}, round {number}")
        begins = {name: ends[name] if array is None else array for name, array in found.items()}


def _lines(curve: Path) -> int:
    return len(curve.read_text().splitlines()) if curve.exists() else 0


def _key(link: Link, path: Path) -> None:
    """Make a P-384 key."""
    code = f"from pathlib import Path; from converter.federated.node import kept_keys; kept_keys(Path({str(path)!r}))"
    link.run("python", "-c", code, at=path.parent)


def _started(
    link: Link, at: Path, rows: Path, log: Path, *options: str | Path, seconds: float = 60
) -> subprocess.Popen[str]:
    """Start a client; return it as soon as it has joined."""
    client = link.client(at / "program.tflite", rows, *map(str, options), log=log)
    until(lambda: "waiting for rounds" in log.read_text(), seconds, log.read_text)
    return client
