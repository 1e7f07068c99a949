"""Federated training of hundreds of clients on this machine, beside centralised training and beside each alone.

    python -m scripts.flower.simulate --clients 200 --rounds 20 --out table.md

Flower's simulation (`flwr run` with Ray) runs clients in the stock runtime. Rows are digits: in one split (`iid`) they
are dealt out at random, in the other (`people`) each client has what one person wrote. Halfway every process is killed
(SIGKILL), and the run is started again. The table has held-out accuracy of all three, and the memory of all processes
together. Needs `scripts/flower/install`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import pocketune
from examples.data.digits import Digits, Person, load
from pocketune.runtime import TrainingSession
from scripts.arguments import parser, writable

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-flower/bin"
BATCH, ROWS, HELD_OUT, TRIES = 10, 20, 10, 5


@dataclass(frozen=True)
class Setting:
    """What is run.

    Attributes:
        clients: how many.
        rounds: of FedAvg.
        fraction: of the clients that train in a round.
        epochs: of a client in a round.
        rate: of its steps.
        cores: of this machine that Ray may use.
    """

    clients: int
    rounds: int
    fraction: float
    epochs: int
    rate: float
    cores: int


@dataclass(frozen=True)
class Outcome:
    """Held-out accuracies, and what the simulation took.

    Attributes:
        federated: of the shared model.
        centralised: of one model that was trained on all rows.
        alone: mean of models that were trained on one client's rows each.
        memory: peak of all Flower's and Ray's processes together, MiB.
        seconds: of both halves together.
        resumed: the round that was done when everything was killed.
    """

    federated: float
    centralised: float
    alone: float
    memory: float
    seconds: float
    resumed: int


def program() -> pocketune.Program:
    """A convolutional net for 8 x 8 digits that trains whole, from random weights."""
    rng = np.random.default_rng(0)
    shapes = {"first": (3, 3, 1, 16), "second": (3, 3, 16, 32), "head": (128, 10)}
    params = {
        name: {
            "w": (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))).astype(np.float32),
            "b": np.zeros(shape[-1], np.float32),
        }
        for name, shape in shapes.items()
    }

    def net(params: dict[str, dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for name in ("first", "second"):
            layer = params[name]
            x = jax.lax.conv_general_dilated(x, layer["w"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + layer["b"])
        return x.reshape(x.shape[0], -1) @ params["head"]["w"] + params["head"]["b"]

    model = pocketune.Model(net, params, inputs=[jax.ShapeDtypeStruct((1, 8, 8, 1), np.float32)])
    return pocketune.build(model, update="full", batch=BATCH, loss="sparse_categorical_crossentropy")


def rows(split: str, clients: int) -> tuple[list[Digits], Digits]:
    """Return the rows of each client, and all held-out rows, of digits that nobody trains on."""
    training, judged = load()
    found, held = [], []
    for client in range(clients):
        rng = np.random.default_rng(client)
        person = Person(rng.uniform(-0.3, 0.3), rng.uniform(0, 0.6), client)
        for digits, count, where in ((training, ROWS, found), (judged, HELD_OUT, held)):
            chosen = rng.integers(0, len(digits.y), count)
            where.append(Digits(person.write(digits.x[chosen]), digits.y[chosen]))
    if split == "iid":
        whole, order = _joined(found), np.random.default_rng(0).permutation(clients * ROWS)
        found = [Digits(whole.x[part], whole.y[part]) for part in np.split(order, clients)]
    return found, _joined(held)


def _joined(parts: list[Digits]) -> Digits:
    return Digits(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def run(split: str, setting: Setting, folder: Path) -> Outcome:
    """Run one split in a folder."""
    clients, held = rows(split, setting.clients)
    built = program()
    built.write(folder / "program.tflite")
    (folder / "clients").mkdir()
    for number, digits in enumerate(clients):
        np.savez(folder / f"clients/{number:04}.npz", x=digits.x, y=digits.y)
    np.savez(folder / "held_out.npz", x=held.x, y=held.y)
    command = ["server", "program.tflite", "--out", "server", "--clients", "clients", "--held-out", "held_out.npz"]
    command += ["--rounds", str(setting.rounds), "--epochs", str(setting.epochs), "--learning-rate", str(setting.rate)]
    subprocess.run(
        [BIN / "python", "-m", "pocketune", "federated", *command], cwd=folder, env=_named(folder), check=True
    )
    begun = time.monotonic()
    with _watched(folder) as peak:
        half = _simulated(setting, folder, setting.rounds // 2)
        _simulated(setting, folder, setting.rounds)
    seconds = time.monotonic() - begun
    federated = _curve(folder)[-1]["accuracy"]
    with TrainingSession(built.data) as session:
        epochs = round(setting.rounds * setting.fraction * setting.epochs)
        centralised = _accuracy(session, _joined(clients), held, epochs, setting.rate)
        chosen = clients[:: max(len(clients) // 20, 1)]
        alone = [_accuracy(session, one, held, setting.rounds * setting.epochs, setting.rate) for one in chosen]
    return Outcome(federated, centralised, float(np.mean(alone)), peak[0], seconds, half)


def _accuracy(session: TrainingSession, digits: Digits, held: Digits, epochs: int, rate: float) -> float:
    session.reset()
    session.fit(digits.x, digits.y, epochs=epochs, learning_rate=rate, progress=False, seed=0)
    return float(session.evaluate(held.x, held.y)["accuracy"])


def _simulated(setting: Setting, folder: Path, until: int) -> int:
    """Run `flwr run` until so many rounds are done, and kill all of it; return how many are."""
    for _ in range(TRIES):  # Flower gives its SuperLink 15 seconds to begin, which a busy machine exceeds
        _tried(setting, folder, until)
        done = len(_curve(folder)) - 1
        if done >= until:
            return done
    raise SystemExit(f"it ended after {done} rounds:\n{(folder / 'run.log').read_text()[-3000:]}")


def _tried(setting: Setting, folder: Path, until: int) -> None:
    config = f"fraction={setting.fraction} min-nodes={max(int(setting.clients * setting.fraction), 2)}"
    engine = f"num-supernodes={setting.clients} init-args-num-cpus={setting.cores}"
    command = ["flwr", "run", ".", "local", "--run-config", config, "--federation-config", engine, "--stream"]
    with (folder / "run.log").open("a") as log:
        process = subprocess.Popen(
            [BIN / command[0], *command[1:]], cwd=folder / "server", env=_named(folder), stdout=log, stderr=log
        )
        try:
            while process.poll() is None and len(_curve(folder)) <= until:
                time.sleep(0.5)
            if until == setting.rounds:
                process.wait(600)  # what comes behind the last round
        finally:
            for one in _processes(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            process.wait(60)


def _curve(folder: Path) -> list[dict[str, float]]:
    path = folder / "server/result/curve.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _named(folder: Path) -> dict[str, str]:
    """Return the variables of Flower's processes, by which they are found again."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return kept | {
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": path,
        "PYTHONPATH": str(ROOT),
    }


def _processes(folder: Path) -> list[int]:
    """Return the processes that were started for a folder, their descendants with them."""
    mark, found = f"FLWR_HOME={folder / 'flower'}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def _watched(folder: Path) -> Iterator[list[float]]:
    """Give the peak of the memory of all processes of a folder, MiB; what they share is counted once."""
    peak, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(2.0):
            total = 0
            for one in _processes(folder):
                with contextlib.suppress(OSError, IndexError):
                    total += int(re.findall(r"Pss:\s+(\d+)", Path(f"/proc/{one}/smaps_rollup").read_text())[0])
            peak[0] = max(peak[0], total / 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()


def main() -> None:
    """Run both splits, and write the table."""
    asked = parser(__doc__)
    asked.add_argument("--clients", type=int, default=200)
    asked.add_argument("--rounds", type=int, default=20)
    asked.add_argument("--fraction", type=float, default=0.2, help="of the clients that train in a round")
    asked.add_argument("--epochs", type=int, default=4, help="of a client in a round")
    asked.add_argument("--rate", type=float, default=0.1, help="of a client's steps")
    asked.add_argument("--cores", type=int, default=2, help="of this machine")
    asked.add_argument("--out", type=writable, required=True, metavar="TABLE.md")
    given = asked.parse_args()
    setting = Setting(given.clients, given.rounds, given.fraction, given.epochs, given.rate, given.cores)
    lines = [
        "| rows of a client | federated | centralised | each alone | memory of all | time | killed after round |",
        "|---|---|---|---|---|---|---|",
    ]
    for split in ("iid", "people"):
        with tempfile.TemporaryDirectory() as made:
            found = run(split, setting, Path(made))
        lines.append(
            f"| {split} | {found.federated:.1%} | {found.centralised:.1%} | {found.alone:.1%} "
            f"| {found.memory:,.0f} MiB | {found.seconds / 60:.0f} min | {found.resumed} |"
        )
        given.out.write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
