"""Rounds of a computer with a phone or a page and their options, beside NumPy's averages of the same trainings."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from converter.driver.program import Program
from converter.federated import Exchange
from converter.program.file import read_program
from converter.program.manifest import LOSS_OF_STEP
from converter.runtime import TrainingSession, load_state
from tests.federated.flower import Link, ended, needs_flower, superlink
from tests.federated.pages import Tab, door, lay_out, needs_caddy, needs_page
from tests.federated.people import apart, built, rows_of, write_rows
from tests.federated.test_kotlin import kotlin, needs_kotlin
from tests.federated.test_rounds import EPOCHS, RATE, project

pytestmark = needs_flower
State = dict[str, np.ndarray]
#: The mu of the server, which is not that of the build.
MU = 2.0


@dataclass(frozen=True)
class Case:
    """A program, and what its rounds are asked.

    Attributes:
        kind: of `people.KINDS`.
        optimizer: of the program.
        mu: of FedProx.
        personal: patterns of what stays.
        slots: whether the optimizer's travel.
    """

    kind: str
    optimizer: str = "sgd"
    mu: float | None = None
    personal: tuple[str, ...] = ()
    slots: bool = False

    def program(self) -> Program:
        return built(self.kind, self.optimizer, None if self.mu is None else 0.01)

    def options(self) -> list[str]:
        """Return those of the server's command."""
        asked = [] if self.mu is None else ["--strategy", "fedprox", "--proximal-mu", str(self.mu)]
        return [*asked, *self.patterns()]

    def patterns(self) -> list[str]:
        return [part for pattern in self.personal for part in ("--personal", pattern)]


CASES = {
    "personal": Case("sparse", personal=("head/*",)),
    "fedprox": Case("head", mu=MU),
    "slots": Case("head", "adam", slots=True),
    "personal-adam": Case("sparse", "adam", personal=("head/*",)),
}


def averaged(case: Case, rounds: int) -> tuple[State, list[State]]:
    """What travels, averaged in float64, and the state of each person after rounds."""
    program, people = case.program(), [rows_of(k) for k in range(2)]
    specs = [t for t in program.manifest.state_tensors if t.tensor != LOSS_OF_STEP]
    tensors = {t.name: t.tensor for t in specs}
    held = {t.name.partition("/proximal_anchor/")[2]: t.tensor for t in specs if "/proximal_anchor/" in t.name}
    travels = [
        t.tensor
        for t in specs
        if not (t.name.startswith("head/") and case.personal)
        and "/proximal" not in t.name
        and (case.slots or not t.slot)
    ]

    def begins(state: State) -> None:
        for name, anchor in held.items():
            state[anchor] = state[tensors[name]]
        if case.mu is not None:
            state["optimizer/0/proximal_mu"] = np.array([case.mu], np.float32)

    states = apart(program, people, rounds, EPOCHS, RATE, travels, begins)
    return {name: states[0][name] for name in travels}, states


@dataclass(frozen=True)
class Device:
    """A phone or a page at work.

    Attributes:
        own: gives the state file of its whole model.
        ends: waits for its end; gives what it said.
    """

    own: Callable[[], Path]
    ends: Callable[[], list[str]]


@contextmanager
def phone(link: Link, at: Path, server: Path, case: Case) -> Iterator[Device]:
    process = kotlin(link, at / "program.tflite", at / "people/1.npz", *case.patterns())

    def ends() -> list[str]:
        said, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        return said.splitlines()

    try:
        yield Device(lambda: at / "program.federated/own.state", ends)
    finally:
        process.kill()


@contextmanager
def page(link: Link, at: Path, server: Path, case: Case) -> Iterator[Device]:
    lay_out(server / "page", at / "program.tflite", rows_of(1))
    worker = server / "page/worker.js"
    text = worker.read_text()
    opened, say = 'await BrowserStore.open("federated")', "{ say: postMessage }"
    assert opened in text
    assert say in text
    text = text.replace(opened, f"{opened}, {{}}, {list(case.personal)}")
    worker.write_text(text.replace(say, "{ say }") + OWN)
    with door(link, server) as site:
        tab = Tab(site)

        def own() -> Path:
            told = [line.removeprefix("log: own ") for line in tab.said if line.startswith("log: own ")]
            (at / "page.state").write_bytes(base64.b64decode(told[-1]))
            return at / "page.state"

        try:
            tab.until("waits for work")
            yield Device(own, lambda: tab.said)
        finally:
            tab.close()


#: Says what is the page's own, after each round.
OWN = """
async function say(words) {
  const own = await participant.own();
  if (own) postMessage(`own ${btoa(Array.from(own, (byte) => String.fromCharCode(byte)).join(""))}`);
  postMessage(words);
}
"""
DEVICES = {"phone": phone, "page": page}


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES])
@pytest.mark.parametrize(
    "device",
    [pytest.param("phone", marks=needs_kotlin), pytest.param("page", marks=[needs_page, needs_caddy])],
)
def test_a_device_and_a_computer_train_one_model(device: str, case: str, tmp_path: Path) -> None:
    asked = CASES[case]
    program = asked.program()
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 2)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, 2, 2, *asked.options())
        if asked.slots:
            code = server / "federation/server.py"
            text = code.read_text()
            assert '"result", rows)' in text
            code.write_text(text.replace('"result", rows)', '"result", rows, slots=True)'))
        with DEVICES[device](link, tmp_path, server, asked) as other:
            own = ["--own", str(tmp_path / "computer.state")] if asked.personal else []
            computer = link.client(tmp_path / "program.tflite", files[0], *asked.patterns(), *own)
            log = link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=400)
            ended([computer])
            said = other.ends()
            theirs = other.own() if asked.personal else None
    assert "Received 2 results and 0 failures" in log
    assert len([line for line in said if "bytes left this device" in line]) == 4, said
    shared, states = averaged(asked, 2)
    found, begun = load_state(server / "result/shared.state").tensors, TrainingSession(program.data).state()
    for name, array in shared.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)
        assert np.abs(array - begun[name]).max() > 1e-6, f"{name} has not moved"
    _stayed(asked, program, said, states, theirs, tmp_path / "computer.state")


@needs_kotlin
@pytest.mark.slow
def test_a_phone_and_a_computer_behind_a_leaf_keep_their_heads(tmp_path: Path) -> None:
    """To both a leaf is a SuperLink."""
    from tests.federated.test_leaf import Process

    asked = CASES["personal"]
    program = asked.program()
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 2)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, 1, 2, *asked.options())
        leaf = Process(link, tmp_path, "leaf", "--phones", "2", *asked.patterns())
        below = Link(f"127.0.0.1:{leaf.port}", link.folder)
        with phone(below, tmp_path, server, asked) as other:
            own = tmp_path / "computer.state"
            computer = below.client(tmp_path / "program.tflite", files[0], *asked.patterns(), "--own", str(own))
            link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=400)
            ended([computer])
            said, theirs = other.ends(), other.own()
        leaf.end()
    shared, states = averaged(asked, 2)
    found = load_state(server / "result/shared.state").tensors
    for name, array in shared.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)
    _stayed(asked, program, said, states, theirs, own)


def _stayed(case: Case, program: Program, said: list[str], states: list[State], *files: Path | None) -> None:
    """Heads of both are what NumPy has, differ, and did not travel: what left is told in bytes."""
    exchange = Exchange(read_program(program.data), personal=case.personal)
    [most] = {int(number) for line in said for number in re.findall(r"train: (\d+) bytes left this device", line)}
    sent = exchange.nbytes(slots=case.slots)
    assert sent < most < sent + 1000 + 600 * len(exchange.sent(states[0], case.slots))
    heads = [[load_state(file).tensors[one.tensor] for one in exchange.personal.values()] for file in files if file]
    wanted = [[state[one.tensor] for one in exchange.personal.values()] for state in reversed(states)]
    for own, head in zip(heads, wanted, strict=False):
        for found, array in zip(own, head, strict=True):
            np.testing.assert_allclose(found, array, atol=1e-5)
    assert not case.personal or max(np.abs(a - b).max() for a, b in zip(*wanted, strict=True)) > 1e-2
