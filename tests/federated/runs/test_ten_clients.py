"""Ten clients of three languages in ten rounds of an unmodified SuperLink, beside NumPy and JAX; what travelled."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from converter.driver.program import Program
from converter.federated import Exchange
from converter.program.file import read_program
from converter.runtime import TrainingSession, load_state
from tests.federated.flower import Link, ended, needs_flower, superlink
from tests.federated.pages import Tab, door, lay_out, needs_caddy, needs_page
from tests.federated.people import averaged, params, program_of, rows_of, write_rows
from tests.federated.test_kotlin import kotlin, needs_kotlin
from tests.federated.test_rounds import EPOCHS, RATE, project
from tests.federated.test_twin import Twin

pytestmark = [needs_flower, needs_kotlin, needs_page, needs_caddy, pytest.mark.slow]
ROUNDS, COMPUTERS, PHONES, TABS = 10, 6, 2, 2
PEOPLE = COMPUTERS + PHONES + TABS
#: A net whose arrays are large beside what Flower adds to them.
NET = params(32, 64)
KINDS = {"head": "head", "sparse": {"conv/w": 0.5, "head/*": 1}, "lora": "lora-16"}


@pytest.mark.parametrize("kind", KINDS)
def test_ten_rounds_are_those_of_numpy_and_of_jax(kind: str, tmp_path: Path) -> None:
    program = program_of(NET, KINDS[kind])
    exchange = Exchange(read_program(program.data))
    with TrainingSession(program.data) as session:
        begun = session.state()
    sent = _rounds(program, tmp_path)
    found = load_state(tmp_path / "server/result/shared.state").tensors
    plain = averaged(program, [rows_of(k) for k in range(PEOPLE)], ROUNDS, EPOCHS, RATE)
    ours = exchange.sent(found)
    theirs, twin = {name: jnp.asarray(one) for name, one in exchange.sent(begun).items()}, Twin(NET, EPOCHS, RATE)
    for number in range(ROUNDS):
        theirs = twin.round(theirs, PEOPLE, number)
    far = {
        "NumPy": max(np.abs(found[name] - array).max() for name, array in plain.items()),
        "JAX": max(np.abs(ours[name] - np.asarray(array)).max() for name, array in theirs.items()),
        "what was built": min(np.abs(found[name] - begun[name]).max() for name in plain),
    }
    trained = exchange.nbytes()
    print(f"{kind}: {trained} bytes train, {set(sent)} travel with them; deviations {far}")
    assert far["NumPy"] <= 1e-5
    assert far["JAX"] <= 1e-4
    assert far["what was built"] > 1e-3, "a tensor has not learned"
    assert len(sent) == ROUNDS * (PHONES + TABS)
    assert trained < min(sent) <= max(sent) <= 1.05 * trained


def _rounds(program: Program, at: Path) -> list[int]:
    """Run all of them; return how many bytes of each answer to a training left phones and tabs."""
    program.write(at / "program.tflite")
    files = write_rows(at / "people", PEOPLE)
    with superlink(at / "flower") as link:
        server = project(link, at, PEOPLE, ROUNDS)
        with door(link, server) as site, _tabs(server, site, at / "program.tflite") as tabs:
            computers = [link.client(at / "program.tflite", file) for file in files[:COMPUTERS]]
            phones = [_phone(link, at / f"phone{k}", files[COMPUTERS + k], at) for k in range(PHONES)]
            log = link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=1500)
            told = [phone.communicate(timeout=120) for phone in phones]
            said = ended(computers)
    assert log.count(f"Received {PEOPLE} results and 0 failures") == 2 * ROUNDS, log[-3000:]
    assert all(re.search(rf"\b{2 * ROUNDS} messages answered", out) for out, _ in said)
    assert all(f"answered {2 * ROUNDS} messages" in out for out, _ in told), told
    lines = [line for out, errors in told for line in (out + errors).splitlines()]
    lines += [line for tab in tabs for line in tab.said]
    return [int(found[1]) for line in lines if (found := re.search(r"train: (\d+) bytes left this device", line))]


def _phone(link: Link, folder: Path, rows: Path, at: Path) -> Any:
    """Start a Kotlin client, with a folder of its own for its key and its store."""
    folder.mkdir()
    shutil.copy(at / "program.tflite", folder)
    return kotlin(link, folder / "program.tflite", rows)


@contextmanager
def _tabs(server: Path, site: str, program: Path) -> Iterator[list[Tab]]:
    """Open a page for each of the last people, in a browser of its own."""
    tabs: list[Tab] = []
    try:
        for k in range(TABS):
            lay_out(server / f"page/{k}", program, rows_of(COMPUTERS + PHONES + k))
            tabs.append(Tab(f"{site}/{k}/"))
        for tab in tabs:
            tab.until("waits for work")
        yield tabs
    finally:
        for tab in tabs:
            tab.close()
