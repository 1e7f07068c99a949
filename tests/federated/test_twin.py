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
from tests.federated.people import BATCH, KINDS, PARAMS, Net, built, net, rows_of

ROUNDS, EPOCHS, RATE, PEOPLE = 10, 1, 0.02, 4
Arrays = dict[str, Any]


def whole(numbers: Net, trained: Arrays) -> Any:
    """The net's parameters with what travels put in: whole, as the first channels, or as LoRA's factors."""
    params: Any = {name: dict(layer) for name, layer in numbers.items()}
    for name, array in trained.items():
        layer, kind, *factor = name.split("/")
        if not factor and array.shape == numbers[layer][kind].shape:
            params[layer][kind] = array
        elif not factor:
            params[layer][kind] = jnp.asarray(numbers[layer][kind]).at[:, :, : array.shape[2]].set(array)
        elif factor == ["lora_a"]:
            params[layer][kind] = numbers[layer][kind] + 2 * jnp.tensordot(array, trained[f"{layer}/{kind}/lora_b"], 1)
    return params


class Twin:
    """FedAvg of the net with some parameters, in JAX.

    Args:
        numbers: its parameters as built.
        epochs: of a person in a round.
        rate: of SGD.
    """

    def __init__(self, numbers: Net, epochs: int, rate: float) -> None:
        def step(trained: Arrays, x: Any, y: Any) -> Arrays:
            def loss(trained: Arrays) -> Any:
                logits = jax.nn.log_softmax(net(whole(numbers, trained), x))
                return -jnp.take_along_axis(logits, y[:, None], 1).mean()

            return jax.tree.map(lambda w, g: w - rate * g, trained, jax.grad(loss)(trained))

        self._step, self._epochs = jax.jit(step), epochs

    def round(self, trained: Arrays, people: int, number: int) -> Arrays:
        """What is shared after a round, the first of which is 0."""
        answers = [self._local(trained, person, number) for person in range(people)]
        return mean(answers, [len(rows_of(person)[1]) for person in range(people)])

    def _local(self, trained: Arrays, person: int, number: int) -> Arrays:
        """What a person sends back in a round."""
        x, y = rows_of(person)
        for epoch in range(number * self._epochs, (number + 1) * self._epochs):
            rows = order_of(0, epoch, len(y))
            for at in range(0, len(rows), BATCH):
                trained = self._step(trained, x[rows[at : at + BATCH]], y[rows[at : at + BATCH]])
        return trained


@pytest.mark.parametrize("kind", KINDS)
def test_ten_rounds_are_those_of_jax(kind: str) -> None:
    program = built(kind)
    exchange = Exchange(read_program(program.data))
    with TrainingSession(program.data) as session:
        begun = exchange.sent(session.state())
    clients, twin = [Participant(program.data) for _ in range(PEOPLE)], Twin(PARAMS, EPOCHS, RATE)
    weights = [len(rows_of(person)[1]) for person in range(PEOPLE)]
    ours, theirs = begun, {name: jnp.asarray(array) for name, array in begun.items()}
    for number in range(ROUNDS):
        plan = {"program": identity(program.data), "epochs": EPOCHS, "learning-rate": RATE, "server-round": number + 1}
        answers = [client.train(ours, plan, rows_of(person), {})[0] for person, client in enumerate(clients)]
        ours = mean(answers, weights)
        theirs = twin.round(theirs, PEOPLE, number)
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
