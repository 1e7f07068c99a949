"""FedProx's term in the step, beside a step of JAX and optax on the same sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.federated import Exchange, Participant, RefusedRound, identity
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from tests.federated.people import built
from tests.runtime.programs import EXAMPLES

EXAMPLE = EXAMPLES["mlp"]
X, Y = EXAMPLE.data(8)
STEPS, RATE, MU = 5, 0.1, 0.7


def program(**options: Any) -> converter.Program:
    model = jax_frontend.Model(EXAMPLE.apply, EXAMPLE.params, inputs=[jax.ShapeDtypeStruct((1, 12), np.float32)])
    loss = "sparse_categorical_crossentropy"
    return converter.build(model, **{"batch": 8, "loss": loss, "check": False, "proximal": MU} | options)


def trained(params: Any, optimizer: optax.GradientTransformation, mu: float) -> Any:
    """The same steps in JAX: the loss, and mu / 2 times the squared distance from where they begin."""
    anchor, state = params, optimizer.init(params)

    def loss(params: Any) -> Any:
        apart = jax.tree.map(lambda w, a: jnp.sum((w - a) ** 2), params, anchor)
        return EXAMPLE.loss(params, X, Y, np.ones(8, np.float32)) + mu / 2 * sum(jax.tree.leaves(apart))

    for _ in range(STEPS):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    return params


def leaves(params: Any) -> dict[str, np.ndarray]:
    return {f"layers/{k}/{name}": np.asarray(w) for k, one in enumerate(params["layers"]) for name, w in one.items()}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("sgd", {}),
        ("adam", {}),
        ("momentum", {"micro_batch": 4}),
        ("sgd", {"target": "gpu", "state": "split"}),
    ],
)
def test_a_round_is_fedprox(optimizer: str, options: dict[str, Any]) -> None:
    made = program(optimizer=optimizer, **options)
    client = Participant(made.data)
    rng = np.random.default_rng(0)
    sent = {
        name: w + 0.1 * rng.standard_normal(w.shape).astype(np.float32) for name, w in leaves(EXAMPLE.params).items()
    }
    config = {"program": identity(made.data), "epochs": STEPS, "learning-rate": RATE}
    layers = [{n: sent[f"layers/{k}/{n}"] for n in ("w", "b")} for k in range(2)]
    rules = {"sgd": optax.sgd(RATE), "adam": optax.adam(RATE), "momentum": optax.sgd(RATE, momentum=0.9)}
    for asked, mu in (({}, MU), ({"proximal-mu": 2.5}, 2.5), ({"proximal-mu": 0.0}, 0.0)):
        found, _, _ = client.train(sent, config | asked, (X, Y), {})
        wanted = leaves(trained({"layers": layers}, rules[optimizer], mu))
        assert set(found) == set(wanted)
        for name, array in found.items():
            np.testing.assert_allclose(array, wanted[name], atol=2e-5, err_msg=f"{name}, mu {mu}")


def test_its_slots_are_of_the_round_and_not_of_the_client() -> None:
    made = program(optimizer="adam")
    exchange = Exchange(read_program(made.data))
    assert exchange.has_proximal
    assert not [name for name in exchange.slots if "proximal" in name]
    assert identity(made.data) == identity(program(optimizer="adam", proximal=0.0).data)
    assert identity(made.data) != identity(program(optimizer="adam", proximal=None).data)
    with TrainingSession(made.data) as session:
        begun = session.state()
        session.fit(X, Y, 2, progress=False)
        changed = [name for name, a in session.state().items() if not np.array_equal(a, begun[name])]
    assert not [name for name in changed if "proximal" in name]
    taken = {one.tensor: np.full(one.stored, 2.0, np.float32) for one in exchange.trained.values()}
    assert {name: a.flat[0] for name, a in exchange.begun(taken, 0.3).items() if "proximal" in name} == {
        "optimizer/0/proximal_mu": np.float32(0.3),
        **{f"optimizer/0/proximal_anchor/{name}": 2.0 for name in exchange.trained},
    }


def test_what_has_no_such_term_is_refused() -> None:
    plain = built("head")
    client = Participant(plain.data)
    with TrainingSession(plain.data) as session:
        arrays = client.exchange.sent(session.state())
    config = {"program": identity(plain.data)}
    rows = (np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, np.int32))
    with pytest.raises(RefusedRound, match="built without it"):
        client.train(arrays, config | {"proximal-mu": 0.1}, rows, {})
    client.train(arrays, config | {"proximal-mu": 0.0}, rows, {})
    for mu in (-1.0, float("nan"), "0.1", True):
        with pytest.raises(UsageError, match="proximal is FedProx's mu"):
            program(proximal=mu)
