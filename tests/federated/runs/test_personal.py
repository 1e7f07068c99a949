"""Tensors that stay with the clients (FedPer, arXiv 1912.00818), beside NumPy's averages of the same trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from converter.driver.program import Program
from converter.federated import Exchange, Participant, RefusedRound, identity
from converter.program.file import read_program
from converter.program.manifest import LOSS_OF_STEP
from converter.runtime import TrainingSession, load_state
from converter.support.errors import UsageError
from tests.federated.flower import Link, ended, needs_flower, superlink
from tests.federated.people import Rows, apart, built, rows_of, write_rows
from tests.federated.test_rounds import EPOCHS, RATE, project

HEAD = ["head/*"]
State = dict[str, np.ndarray]


def fedper(program: Program, people: list[Rows], rounds: int) -> tuple[State, list[State]]:
    """The shared tensors, and the head of each client, after rounds in plain NumPy; slots stay with each client."""
    tensors = {t.name: t.tensor for t in program.manifest.state_tensors if not t.slot and t.tensor != LOSS_OF_STEP}
    heads = [tensor for name, tensor in tensors.items() if name.startswith("head/")]
    shared = [tensor for tensor in tensors.values() if tensor not in heads]
    states = apart(program, people, rounds, EPOCHS, RATE, shared)
    return {name: states[0][name] for name in shared}, [{name: s[name] for name in heads} for s in states]


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def test_the_head_stays_and_the_rest_is_averaged(optimizer: str, tmp_path: Path) -> None:
    program, people = built("sparse", optimizer), [rows_of(k) for k in range(2)]
    owns = [tmp_path / f"{k}.state" for k in range(2)]
    clients = [Participant(program.data, personal=HEAD, own=own) for own in owns]
    exchange = clients[0].exchange
    with TrainingSession(program.data) as session:
        arrays = exchange.sent(session.state())
    assert arrays.keys() == {"conv/w"}
    config = {"program": identity(program.data), "epochs": EPOCHS, "learning-rate": RATE}
    kept: list[State] = [{}, {}]
    for number in (1, 2):
        if number == 2 and optimizer == "sgd":  # a client that ends and begins again has its head from its file
            clients[1], kept[1] = Participant(program.data, personal=HEAD, own=owns[1]), {}
        found = [c.train(arrays, config | {"server-round": number}, people[k], kept[k]) for k, c in enumerate(clients)]
        kept = [dict(one[2]) for one in found]
        shares = np.array([one[1]["num-examples"] for one in found])
        arrays = {name: np.average([one[0][name] for one in found], 0, shares).astype(np.float32) for name in arrays}
    shared, heads = fedper(program, people, 2)
    for name, array in exchange.taken(arrays).items():
        np.testing.assert_allclose(array, shared[name], atol=1e-6)
    assert max(np.abs(heads[0][name] - heads[1][name]).max() for name in heads[0]) > 1e-2, "the heads differ"
    for k, head in enumerate(heads):
        own = load_state(owns[k]).tensors
        for name, array in head.items():
            np.testing.assert_allclose(own[name], array, atol=1e-6)
    mine = clients[0].evaluate(arrays, config, people[0], kept[0])["loss"]
    with TrainingSession(program.data) as session:
        session.set_state(session.state() | shared | heads[0])
        assert mine == pytest.approx(session.evaluate(*people[0])["loss"], rel=1e-5)


def test_a_server_of_other_patterns_is_refused() -> None:
    program = built("sparse")
    config = {"program": identity(program.data)}
    with TrainingSession(program.data) as session:
        state = session.state()
    whole, part = (Exchange(read_program(program.data), personal=p).sent(state) for p in ((), HEAD))
    with pytest.raises(RefusedRound, match=r"'head/.', which is personal here and stays"):
        Participant(program.data, personal=HEAD).train(whole, config, rows_of(0), {})
    with pytest.raises(RefusedRound, match="did not send head/"):
        Participant(program.data).train(part, config, rows_of(0), {})


@pytest.mark.parametrize(
    ("patterns", "why"), [(["haed/*"], "matches no trained tensor.*head"), (["*"], "nothing is shared")]
)
def test_patterns_that_leave_nothing_are_refused(patterns: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Exchange(read_program(built("sparse").data), personal=patterns)


@pytest.mark.slow
def test_fedprox_holds_a_personal_head_near_itself() -> None:
    """Not near the head as it was built: that would be a pull to a model that nobody has."""
    program = built("sparse", proximal=20.0)
    client = Participant(program.data, personal=HEAD)
    with TrainingSession(program.data) as session:
        arrays, state = client.exchange.sent(session.state()), session.state()
    config = {"program": identity(program.data), "learning-rate": 0.02, "proximal-mu": 0.0, "epochs": 5}
    _, _, kept = client.train(arrays, config, rows_of(0), {})
    _, _, after = client.train(arrays, config | {"proximal-mu": 20.0, "server-round": 2}, rows_of(0), kept)
    for one in client.exchange.personal.values():
        moved = np.linalg.norm(after[one.tensor] - kept[one.tensor])
        away = np.linalg.norm(kept[one.tensor] - state[one.tensor])
        assert moved < away / 2, one.tensor


@needs_flower
@pytest.mark.slow
@pytest.mark.parametrize("leaf", [False, True], ids=["clients", "leaf"])
def test_rounds_of_a_superlink_leave_the_heads_at_home(leaf: bool, tmp_path: Path) -> None:
    from tests.federated.test_leaf import Process

    program = built("sparse")
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 2)
    options = ("--personal", "head/*")
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, 1 if leaf else 2, 2, *options)
        door = Process(link, tmp_path, "leaf", "--phones", "2", *options) if leaf else None
        at = link if door is None else Link(f"127.0.0.1:{door.port}", link.folder)
        clients = [
            at.client(tmp_path / "program.tflite", file, *options, "--own", str(tmp_path / f"{k}.state"))
            for k, file in enumerate(files)
        ]
        link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=400)
        ended(clients)
        if door is not None:
            door.end()
    shared, heads = fedper(program, [rows_of(k) for k in range(2)], 2)
    found = load_state(server / "result/shared.state").tensors
    for name, array in shared.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)
    for k, head in enumerate(heads):
        own = load_state(tmp_path / f"{k}.state").tensors
        for name, array in head.items():
            np.testing.assert_allclose(own[name], array, atol=1e-5, err_msg=name)
            assert np.abs(array - found[name]).max() > 1e-3, "the server has the head as built"
