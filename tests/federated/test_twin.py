"""Ten rounds of FedAvg of programs, beside FedAvg in JAX: gradients of the loss, steps of SGD, NumPy's mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converter.federated import Exchange, Participant, identity
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.runtime.data.order import order_of
from tests.federated.people import BATCH, KINDS, PARAMS, built, net, rows_of

ROUNDS, EPOCHS, RATE, PEOPLE = 10, 1, 0.02, 4
Arrays = dict[str, Any]


def whole(trained: Arrays) -> Any:
    """The net's parameters with what travels put in: whole, as the first channels, or as LoRA's factors."""
    params = {name: dict(layer) for name, layer in PARAMS.items()}
    for name, array in trained.items():
        layer, kind, *factor = name.split("/")
        if not factor and array.shape == PARAMS[layer][kind].shape:
            params[layer][kind] = array
        elif not factor:
            params[layer][kind] = jnp.asarray(PARAMS[layer][kind]).at[:, :, : array.shape[2]].set(array)
        elif factor == ["lora_a"]:
            params[layer][kind] = PARAMS[layer][kind] + 2 * jnp.tensordot(array, trained[f"{layer}/{kind}/lora_b"], 1)
    return params


@jax.jit
def step(trained: Arrays, x: Any, y: Any) -> Arrays:
    def loss(trained: Arrays) -> Any:
        logits = jax.nn.log_softmax(net(whole(trained), x))
        return -jnp.take_along_axis(logits, y[:, None], 1).mean()

    return jax.tree.map(lambda w, g: w - RATE * g, trained, jax.grad(loss)(trained))


def local(trained: Arrays, person: int, number: int) -> Arrays:
    """What a person sends back in a round."""
    x, y = rows_of(person)
    for epoch in range(number * EPOCHS, (number + 1) * EPOCHS):
        rows = order_of(0, epoch, len(y))
        for at in range(0, len(rows), BATCH):
            trained = step(trained, x[rows[at : at + BATCH]], y[rows[at : at + BATCH]])
    return trained


@pytest.mark.parametrize("kind", KINDS)
def test_ten_rounds_are_those_of_jax(kind: str) -> None:
    program = built(kind)
    exchange = Exchange(read_program(program.data))
    with TrainingSession(program.data) as session:
        begun = exchange.sent(session.state())
    clients = [Participant(program.data) for _ in range(PEOPLE)]
    weights = [len(rows_of(person)[1]) for person in range(PEOPLE)]
    ours, theirs = begun, {name: jnp.asarray(array) for name, array in begun.items()}
    for number in range(ROUNDS):
        plan = {"program": identity(program.data), "epochs": EPOCHS, "learning-rate": RATE, "server-round": number + 1}
        answers = [client.train(ours, plan, rows_of(person), {})[0] for person, client in enumerate(clients)]
        ours = mean(answers, weights)
        theirs = mean([local(theirs, person, number) for person in range(PEOPLE)], weights)
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-4, err_msg=name)
    assert max(np.abs(array - begun[name]).max() for name, array in ours.items()) > 1e-2, "nothing was learned"


def mean(answers: list[Arrays], weights: list[int]) -> Arrays:
    """FedAvg's mean, in float64."""
    return {
        name: np.average(np.stack([np.asarray(one[name], np.float64) for one in answers]), 0, weights).astype(
            np.float32
        )
        for name in answers[0]
    }
