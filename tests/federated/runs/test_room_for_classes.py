"""Rounds of a program with room for classes, beside steps of JAX over the classes that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converter.federated import Exchange, Participant, identity
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from tests.runtime.session.class_nets import LATER, NAMES, OWN, built, rows_of_classes

ROWS, RATE = 24, 0.05


def _program() -> bytes:
    """A program all of which trains, in one step of all rows."""
    return bytes(built(optimizer="sgd", update="full", head=None, batch=ROWS).data)


def _loss(params: Any, x: np.ndarray, y: np.ndarray) -> jax.Array:
    scores = jax.nn.relu(x @ params["first"]) @ params["last/w"] + params["last/b"]
    return -jax.nn.log_softmax(scores)[jnp.arange(len(y)), y].mean()


def _stepped(params: Any, x: np.ndarray, y: np.ndarray) -> Any:
    slopes = jax.grad(_loss)(params, x, y)
    return jax.tree.map(lambda weight, slope: np.asarray(weight - RATE * slope), params, slopes)


def _known(arrays: Any, classes: int) -> dict[str, np.ndarray]:
    """Weights without those of free classes."""
    return {name: array[..., :classes] if name.startswith("last/") else array for name, array in arrays.items()}


def test_the_mean_of_clients_is_that_of_the_known_classes() -> None:
    program = _program()
    x, y = rows_of_classes(ROWS)
    people = [(x, y), (x[::-1] + 0.5, y[::-1].copy())]
    client = Participant(program)
    config = {"program": identity(program), "learning-rate": RATE}
    with TrainingSession(program) as session:
        arrays = client.exchange.sent(session.state())
    wanted = _known(arrays, OWN)
    for number in (1, 2):
        answers = [client.train(arrays, config | {"server-round": number}, rows, {})[0] for rows in people]
        arrays = {name: np.mean([one[name] for one in answers], 0, dtype=np.float32) for name in arrays}
        each = [_stepped(wanted, *rows) for rows in people]
        wanted = {name: np.mean([one[name] for one in each], 0) for name in wanted}
    for name, array in _known(arrays, OWN).items():
        np.testing.assert_allclose(array, wanted[name], atol=1e-5)
    np.testing.assert_array_equal(arrays["last/b"][OWN:], np.full(LATER, -30_000, np.float32))
    found = client.evaluate(arrays, config, people[0])["loss"]
    assert found == pytest.approx(float(_loss(wanted, *people[0])), rel=1e-5)


@pytest.mark.quick
def test_a_personal_layer_keeps_the_classes_that_were_added_to_it(tmp_path: Path) -> None:
    """They were lost by name, their weights stayed, and rows of theirs were refused."""
    program, own = _program(), tmp_path / "own.state"
    x, y = rows_of_classes(ROWS)
    y = np.where(y == 3, OWN, y)
    with TrainingSession(program) as session:
        assert session.add_class("five") == OWN
        session.save(own)
        wanted = _known(session.parameters(), OWN + 1)
    named = identity(program, ["last/*"]), identity(program)  # a server that knows of no personal layer sends that
    assert named[0] != named[1]
    with TrainingSession(program) as session:
        arrays = Exchange(read_program(program), personal=["last/*"]).sent(session.state())
    for number, of_server in enumerate(named, 1):  # of a client that ends and begins again
        config = {"program": of_server, "learning-rate": RATE}
        client = Participant(program, personal=["last/*"], own=own)
        judged = client.evaluate(arrays, config, (x, y))["loss"]
        assert judged == pytest.approx(float(_loss(wanted, x, y)), rel=1e-5)
        arrays, _, _ = client.train(arrays, config | {"server-round": number}, (x, y), {})
        wanted = _stepped(wanted, x, y)
        client.close()
        assert list(arrays) == ["first"]
        np.testing.assert_allclose(arrays["first"], wanted["first"], atol=1e-5)
        with TrainingSession(program) as session:
            session.restore(own)
            assert session.classes() == [*NAMES, "five", None, None]
            for name, array in _known(session.parameters(), OWN + 1).items():
                np.testing.assert_allclose(array, wanted[name], atol=1e-5)


@pytest.mark.parametrize("half", ["last/w", "last/b"])
def test_half_of_a_layer_with_room_is_not_personal(half: str) -> None:
    with pytest.raises(UsageError, match=f"personal: {half} stays here and the rest of the last layer does not"):
        Exchange(read_program(_program()), personal=[half])
