"""Rounds of an unmodified SuperLink on this machine, with clients in processes of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from converter.runtime import TrainingSession, load_state
from tests.federated.flower import Link, ended, needs_flower, superlink
from tests.federated.people import KINDS, averaged, built, rows_of, write_rows

pytestmark = needs_flower
EPOCHS, RATE = 2, 0.02


def project(link: Link, at: Path, nodes: int, rounds: int, *options: str) -> Path:
    """Write the server's project, with the rows of the last person held out."""
    command = ["python", "-m", "pocketune", "federated", "server", "program.tflite", "--out", "server"]
    command += ["--rounds", str(rounds), "--min-nodes", str(nodes), "--held-out", at / "people/0.npz"]
    link.run(*command, "--epochs", str(EPOCHS), "--learning-rate", str(RATE), *options, at=at)
    return at / "server"


@pytest.mark.quick
def test_a_superlink_averages_what_clients_trained(tmp_path: Path) -> None:
    """Two of four clients refuse: one has another program, one an owner who allows less. The round goes on."""
    program, other = built("head"), built("sparse")
    program.write(tmp_path / "program.tflite")
    other.write(tmp_path / "other.tflite")
    files = write_rows(tmp_path / "people", 2)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=4, rounds=2)
        clients = [link.client(tmp_path / "program.tflite", file) for file in files]
        clients.append(link.client(tmp_path / "other.tflite", files[0]))
        clients.append(link.client(tmp_path / "program.tflite", files[0], "--max-epochs", "1"))
        log = link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=240)
        said = ended(clients)
    assert "Received 2 results and 2 failures" in log
    matches(program, server, people=2, rounds=2)
    curve = [json.loads(line) for line in (server / "result/curve.jsonl").read_text().splitlines()]
    assert [(line["round"], line["clients"]) for line in curve] == [(0, 0), (1, 2), (2, 2)]
    with TrainingSession(program.data) as session:
        session.restore(server / "result/shared.state")
        assert curve[-1]["loss"] == pytest.approx(session.evaluate(*rows_of(0))["loss"], rel=1e-5)
    assert all("4 messages answered" in out for out, _ in said[:2])
    assert "both need the same build of the same model" in said[2][1]
    assert "the owner of this client allows 1 to 1" in said[3][1]
    assert (server / "result/shared.tflite").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_rounds_of_ten_clients_are_plain_fedavg(kind: str, tmp_path: Path) -> None:
    program = built(kind)
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 10)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=10, rounds=10)
        clients = [link.client(tmp_path / "program.tflite", file) for file in files]
        link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=900)
        said = ended(clients)
    matches(program, server, people=10, rounds=10)
    assert all(re.search(r"\b20 messages answered", out) for out, _ in said)


def matches(program: object, server: Path, people: int, rounds: int) -> None:
    """The shared state is what plain NumPy makes of the same local trainings."""
    wanted = averaged(program, [rows_of(k) for k in range(people)], rounds, EPOCHS, RATE)
    found = load_state(server / "result/shared.state").tensors
    built = {name: array for name, array in TrainingSession(program.data).state().items() if name in wanted}
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)
        # Of LoRA the first factor moves by what the second one, which begins at 0, has become.
        least = 1e-6 if name.endswith("lora_a") else 1e-3
        assert np.abs(array - built[name]).max() > least, f"{name} has not learned"
