"""People of a federation: programs that train on their digits, their rows, and FedAvg in plain NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import converter
import jax_frontend
from converter.driver.program import Program
from converter.program.manifest import LOSS_OF_STEP
from converter.runtime import TrainingSession
from examples.data.digits import Person

#: What trains, by name.
KINDS = {"head": "head", "sparse": {"conv/w": 0.5, "head/*": 1}, "lora": "lora-2"}
Rows = tuple[np.ndarray, np.ndarray]
#: Rows of a step.
BATCH = 8
Net = dict[str, dict[str, np.ndarray]]


def params(first: int, conv: int) -> Net:
    """The net's, by layer, with so many channels."""
    shapes = {"first": (3, 3, 1, first), "conv": (3, 3, first, conv), "head": (16 * conv, 10)}
    numbers = np.random.default_rng(0)
    return {
        name: {
            "w": (numbers.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32),
            "b": np.zeros(shape[-1], np.float32),
        }
        for name, shape in shapes.items()
    }


PARAMS = params(8, 16)


def net(params: Any, x: Any) -> Any:
    for name, stride in (("first", 2), ("conv", 1)):
        layer = params[name]
        x = jax.lax.conv_general_dilated(
            x, layer["w"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + layer["b"])
    return x.reshape(x.shape[0], -1) @ params["head"]["w"] + params["head"]["b"]


@functools.cache
def built(kind: str, optimizer: str = "sgd", proximal: float | None = None) -> Program:
    """A program for digits of a small net, built once a run."""
    return program_of(PARAMS, KINDS[kind], optimizer=optimizer, proximal=proximal)


def program_of(numbers: Net, update: Any, **options: Any) -> Program:
    """A program for digits of the net with some parameters."""
    model = jax_frontend.Model(net, numbers, inputs=[jax.ShapeDtypeStruct((1, 8, 8, 1), np.float32)])
    asked = {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy", "check": False, **options}
    return converter.build(model, update=update, batch=BATCH, **asked)


def rows_of(person: int) -> Rows:
    """What one user wrote: from 40 to 60 digits."""
    writes = Person(slant=0.22 * (-1) ** person, thickness=0.35 + 0.02 * person, seed=person)
    digits = writes.samples(4 + person % 3)[0]
    return digits.x, digits.y


def write_rows(folder: Path, people: int) -> list[Path]:
    """Files of rows, one for each user."""
    folder.mkdir(exist_ok=True)
    files = [folder / f"{person}.npz" for person in range(people)]
    for person, file in enumerate(files):
        x, y = rows_of(person)
        np.savez(file, x=x, y=y)
    return files


def averaged(
    program: Program, people: Sequence[Rows], rounds: int, epochs: int, rate: float, took: Sequence[Sequence[int]] = ()
) -> dict[str, np.ndarray]:
    """FedAvg: the state after rounds of the same local trainings, averaged in float64 by numbers of rows.

    Args:
        program: what trains.
        people: their rows.
        rounds: how many.
        epochs: of a person in a round.
        rate: of SGD.
        took: who took part, of each round; of those that are not there, all.
    """
    with TrainingSession(program.data) as session:
        state = session.state()
        trained = [t.tensor for t in program.manifest.state_tensors if not t.slot and t.tensor != LOSS_OF_STEP]
        for number in range(rounds):
            some = [people[k] for k in took[number]] if number < len(took) else people
            found = []
            for rows in some:
                own = _after(session, state, rows, number, epochs, rate)
                found.append({name: own[name].astype(np.float64) for name in trained})
            weights = np.array([len(y) for _, y in some], np.float64)
            weights /= weights.sum()
            mean = {name: sum(w * one[name] for w, one in zip(weights, found, strict=True)) for name in trained}
            state = state | {name: array.astype(np.float32) for name, array in mean.items()}
    return {name: state[name] for name in trained}


def _after(
    session: TrainingSession, state: dict[str, np.ndarray], rows: Rows, number: int, epochs: int, rate: float
) -> dict[str, np.ndarray]:
    """Return a person's state after the local training of a round, which begins with `state`."""
    session.set_state(state)
    begun = number * epochs
    session.fit(*rows, begun + epochs, rate, progress=False, seed=0, initial_epoch=begun)
    return session.state()


def apart(
    program: Program,
    people: Sequence[Rows],
    rounds: int,
    epochs: int,
    rate: float,
    travels: Sequence[str],
    begins: Callable[[dict[str, np.ndarray]], None] = lambda state: None,
) -> list[dict[str, np.ndarray]]:
    """FedPer: the state of each user after rounds in which some tensors are averaged and all else stays with each.

    Args:
        program: what trains.
        people: their rows.
        rounds: how many.
        epochs: of a person in a round.
        rate: of SGD.
        travels: tensors of the state that are averaged, in float64 by numbers of rows.
        begins: changes the state with which a person begins a round.
    """
    weights = np.array([len(y) for _, y in people], np.float64)
    with TrainingSession(program.data) as session:
        states = [session.state() for _ in people]
        for number in range(rounds):
            for k, rows in enumerate(people):
                begins(states[k])
                states[k] = _after(session, states[k], rows, number, epochs, rate)
            for name in travels:
                mean = np.average([state[name].astype(np.float64) for state in states], 0, weights).astype(np.float32)
                for state in states:
                    state[name] = mean
    return states
