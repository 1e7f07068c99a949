"""Strategies and mods of Flower's own around programs, in one process; run in Flower's environment.

    python -m tests.federated.strategies FOLDER

FOLDER has `plain.tflite`, `prox.tflite`, `adam.tflite` and rows of three people, `0.npz` and on. It prints the name of
each case that went as it should.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from math import erf, exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAdam, FedAvg, FedProx
from flwr.supercore.task_identity import TaskIdentity

from converter.federated import Coordinator, Privacy, client_app, epsilon, read_rows
from converter.federated.arrays import RefusedRound
from converter.runtime import TrainingSession, load_state

PEOPLE = 3
PLAN = {"epochs": 1, "learning-rate": 0.02, "seed": 1}
NODES = {"min_train_nodes": PEOPLE, "min_evaluate_nodes": PEOPLE, "min_available_nodes": PEOPLE}


class Clients:
    """Clients in the place of a SuperLink: each has a context of its own; `spoil` changes an answer."""

    def __init__(
        self, folder: Path, program: str, mods: Any = (), spoil: Callable[[Message], None] | None = None
    ) -> None:
        rows = [read_rows(folder / f"{person}.npz") for person in range(PEOPLE)]
        self.app = client_app(folder / program, lambda context: rows[context.node_id], mods=mods)
        self.contexts = [Context(1, person, {}, RecordDict(), {}, 0) for person in range(PEOPLE)]
        self.spoil = spoil

    def get_node_ids(self) -> list[int]:
        return list(range(PEOPLE))

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        # In the order of clients: a sum in another order has other last bits.
        sent = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        answers = [self.app(message, self.contexts[message.metadata.dst_node_id]) for message in sent]
        for answer in answers:
            if self.spoil is not None:
                self.spoil(answer)
        return answers


def run(clients: Clients, at: Path, program: Path, strategy: Any, rounds: int, **more: Any) -> dict[str, np.ndarray]:
    """Return the state after rounds in all."""
    held_out = read_rows(program.parent / "0.npz")
    Coordinator(program, at, held_out, **more).run(clients, strategy, rounds, PLAN)
    return load_state(at / "shared.state").tensors


def curve(at: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (at / "curve.jsonl").read_text().splitlines()]


def resumed(folder: Path) -> None:
    """A run in two halves is the run: weights, moments and corrections of the strategy, seeds."""
    made = {
        "fedavg": ("plain.tflite", lambda: FedAvg(**NODES)),
        "fedprox": ("prox.tflite", lambda: FedProx(proximal_mu=0.5, **NODES)),
        "fedadam": ("plain.tflite", lambda: FedAdam(eta=0.01, **NODES)),
    }
    ends = {}
    for name, (program, strategy) in made.items():
        once = run(Clients(folder, program), folder / f"{name}-once", folder / program, strategy(), 4)
        for rounds in (2, 4):
            halves = run(Clients(folder, program), folder / f"{name}-halves", folder / program, strategy(), rounds)
        for tensor, array in once.items():
            # FedAdam's arrays are float64, and what is kept of them float32.
            np.testing.assert_allclose(array, halves[tensor], rtol=0, atol=1e-7 * (name == "fedadam"), err_msg=tensor)
        lines = curve(folder / f"{name}-halves")
        assert lines == curve(folder / f"{name}-once") or name == "fedadam"
        assert [(line["round"], line["clients"]) for line in lines] == [(0, 0), *((n, 3) for n in (1, 2, 3, 4))]
        run(Clients(folder, program), folder / f"{name}-halves", folder / program, strategy(), 4)
        assert curve(folder / f"{name}-halves") == lines, "no round was left"
        ends[name] = once
        print(f"resumed: {name}")
    assert not np.array_equal(ends["fedavg"]["head/w"], ends["fedadam"]["head/w"])
    assert not np.array_equal(ends["fedavg"]["head/w"], ends["fedprox"]["head/w"])
    anchor = ends["fedprox"]["optimizer/0/proximal_anchor/head/w"]
    np.testing.assert_array_equal(anchor, ends["fedprox"]["head/w"])


def refused(folder: Path) -> None:
    """Clients that cannot, and one that sends what is no number."""
    at = folder / "prox-of-none"
    state = run(Clients(folder, "plain.tflite"), at, folder / "plain.tflite", FedProx(proximal_mu=0.5, **NODES), 2)
    with TrainingSession(folder / "plain.tflite") as session:
        assert all(np.array_equal(array, state[name]) for name, array in session.state().items())
    assert [line["clients"] for line in curve(at)] == [0, 0, 0]
    print("refused: every client, and the curve says so")

    def spoil(answer: Message) -> None:
        if answer.metadata.src_node_id == 1 and answer.has_content() and "arrays" in answer.content:
            arrays = answer.content["arrays"]
            answer.content["arrays"] = ArrayRecord(
                {n: Array(np.full_like(a.numpy(), np.nan)) for n, a in arrays.items()}
            )

    at = folder / "spoilt"
    good = run(Clients(folder, "plain.tflite"), at, folder / "plain.tflite", FedAvg(**NODES), 1)
    try:
        run(Clients(folder, "plain.tflite", spoil=spoil), at, folder / "plain.tflite", FedAvg(**NODES), 2)
    except RefusedRound as error:
        print(f"refused: {error}")
    else:
        raise AssertionError("the run went on with NaN")
    kept = load_state(at / "shared.state").tensors
    assert all(np.array_equal(array, kept[name]) for name, array in good.items())


def travelling(folder: Path) -> None:
    """The optimizer's slots are averaged where the server sends them."""
    program = folder / "adam.tflite"
    state = run(Clients(folder, "adam.tflite"), folder / "slots", program, FedAvg(**NODES), 2, slots=True)
    home = run(Clients(folder, "adam.tflite"), folder / "home", program, FedAvg(**NODES), 2)
    moments = [name for name in state if "/mu/" in name or "/nu/" in name]
    assert moments
    assert all(np.any(state[name]) and not np.any(home[name]) for name in moments)
    print("slots travel, or stay at home")


def clipped(folder: Path) -> None:
    """A server that asks for clipping gets it: against NumPy, without the server's noise."""
    norm, seen = 0.005, []

    class Strategy(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            given = list(replies)
            seen.extend({n: a.numpy() for n, a in one.content["arrays"].items()} for one in given)
            return super().aggregate_train(server_round, given)

    plain = Clients(folder, "plain.tflite")
    run(plain, folder / "unclipped", folder / "plain.tflite", Strategy(**NODES), 1)
    private = DifferentialPrivacyClientSideFixedClipping(
        Strategy(**NODES), noise_multiplier=0.0, clipping_norm=norm, num_sampled_clients=PEOPLE
    )
    clients = Clients(folder, "plain.tflite")
    run(clients, folder / "clipped", folder / "plain.tflite", private, 1)
    with TrainingSession(folder / "plain.tflite") as session:
        built = Coordinator(folder / "plain.tflite", folder / "built").exchange.sent(session.state())
    for free, held in zip(seen[:PEOPLE], seen[PEOPLE:], strict=True):
        changes = {name: free[name] - built[name] for name in built}
        size = np.sqrt(sum(float(np.square(change, dtype=np.float64).sum()) for change in changes.values()))
        assert size > norm
        for name, change in changes.items():
            np.testing.assert_allclose(held[name], built[name] + change * (norm / size), atol=1e-6)
    print("clipping is NumPy's")


def protected(folder: Path) -> None:
    """The owner's clipping and noise: the change is NumPy's, the noise has its deviation, nothing else is told."""
    program, clip = folder / "plain.tflite", 0.005
    rows, coordinator = read_rows(folder / "0.npz"), Coordinator(folder / "plain.tflite", folder / "protected")
    with TrainingSession(program) as session:
        built = coordinator.exchange.sent(session.state())
    config = ConfigRecord({"program": coordinator.exchange.identity, **PLAN})

    def change(privacy: Privacy | None, kind: str = "train") -> tuple[np.ndarray, Message]:
        content = RecordDict({"arrays": ArrayRecord({n: Array(a) for n, a in built.items()}), "config": config})
        asked = Message(content, dst_node_id=1, message_type=kind)
        answer = client_app(program, rows, privacy=privacy)(asked, Context(1, 1, {}, RecordDict(), {}, 0))
        if answer.has_error():
            return np.zeros(0), answer
        arrays = answer.content["arrays"]
        return np.concatenate([(arrays[n].numpy().astype(np.float64) - built[n]).ravel() for n in built]), answer

    free, held = change(None)[0], change(Privacy(clip))[0]
    np.testing.assert_allclose(held, free * clip / np.linalg.norm(free), rtol=0, atol=1e-6)
    np.testing.assert_allclose(change(Privacy(10.0))[0], free, rtol=0, atol=1e-6)
    noisy, answer = change(Privacy(clip, noise=2.0))
    found, count = np.std(noisy - held), len(noisy)
    assert abs(found / (2.0 * clip) - 1) < 5 / sqrt(2 * count), found
    assert dict(answer.content["metrics"]) == {"num-examples": 1}
    assert change(Privacy(clip), "evaluate")[1].has_error()

    def exact(noise: float, told: float) -> float:
        """Delta of a Gaussian mechanism (Balle and Wang, 2018), of one that stands for several."""
        near, far = ((1 + erf((side / noise - told * noise) / sqrt(2))) / 2 for side in (0.5, -0.5))
        return near - exp(told) * far

    for noise, rounds, delta in ((1.0, 1, 1e-5), (4.0, 10, 1e-5), (20.0, 100, 1e-6)):
        told = epsilon(noise, rounds, delta)
        assert exact(noise / sqrt(rounds), told) <= delta, "the bound holds"
        assert exact(noise / sqrt(rounds), 0.8 * told) > delta, "and is near"
        assert told == _by_hand(noise, rounds, delta), "the accountant's"
    assert Privacy(1.0, 4.0).epsilon(10) == epsilon(2.0, 10, 1e-5)
    assert epsilon(0.0, 1, 1e-5) == float("inf")
    print("privacy is NumPy's, and epsilon the accountant's")


def _by_hand(noise: float, rounds: int, delta: float) -> float:
    return RdpAccountant().compose(GaussianDpEvent(noise), rounds).get_epsilon(delta)


def main(folder: Path) -> None:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # whom messages are made by
    for part in (resumed, refused, travelling, clipped, protected):
        part(folder)
    print("all went as it should")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
