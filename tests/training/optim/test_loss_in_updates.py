"""Optimizers that read the loss (`value=` in optax), whole and in parts, against optax in the stock interpreter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import converter
import jax_frontend

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 5)).astype(np.float32)
Y = RNG.standard_normal((6, 3)).astype(np.float32)
SHARES = np.array([1, 0.5, 2, 1, 0, 3], np.float32)
WEIGHTS = {"w": (0.4 * RNG.standard_normal((5, 3))).astype(np.float32), "b": np.full(3, 0.1, np.float32)}


def apply(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def rows(output: Any, y: Any) -> Any:
    return ((output - y) ** 2).mean(-1)


def by_the_loss() -> optax.GradientTransformationExtraArgs:
    """Steps as long as the loss is large, which it remembers."""

    def update(gradients: Any, state: Any, params: Any = None, *, value: Any, **_: Any) -> Any:
        return jax.tree.map(lambda g: -0.1 * (value + state) * g, gradients), value

    return optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "polyak_sgd": lambda: optax.polyak_sgd(max_learning_rate=0.5, f_min=0.05),
    "polyak_sgd+": lambda: optax.polyak_sgd(max_learning_rate=2.0, f_min=0.3, scaling=0.5, variant="sps+"),
    "reduce_on_plateau": lambda: optax.chain(
        optax.adam(0.3), contrib.reduce_on_plateau(factor=0.5, patience=1, cooldown=1, rtol=0.05)
    ),
    "reduce_on_plateau, of several": lambda: optax.chain(
        optax.sgd(0.8, momentum=0.9), contrib.reduce_on_plateau(factor=0.5, patience=1, accumulation_size=3)
    ),
    "momo": lambda: contrib.momo(0.5),
    "momo_adam": lambda: contrib.momo_adam(0.05, adapt_lower_bound=True),
    "of one's own": by_the_loss,
}
FORMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "stateless": {"state": "stateless"},
    "micro-batches": {"micro_batch": 2},
    "stateless micro-batches": {"micro_batch": 2, "state": "stateless"},
    "split": {"state": "split"},
    "split micro-batches": {"micro_batch": 3, "state": "split", "loss_scale": 8.0},
}


def expected(optimizer: Any, steps: int) -> tuple[dict[str, Any], list[float]]:
    """The weights after some steps of optax, and the loss before each."""
    share = SHARES / SHARES.sum()
    params, state, losses = WEIGHTS, optimizer.init(WEIGHTS), []
    for _ in range(steps):
        value, gradients = jax.value_and_grad(lambda p: (rows(apply(p, X), Y) * share).sum())(params)
        updates, state = optimizer.update(gradients, state, params, value=value)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return params, losses


#: Each whole, and in all forms the one that keeps nothing, and the one that keeps most.
PAIRS = [
    (case, form) for case in OPTIMIZERS for form in FORMS if form == "whole" or case in ("polyak_sgd", "momo_adam")
]


@pytest.mark.parametrize(("case", "form"), PAIRS)
def test_an_update_reads_the_mean_of_all_rows_of_a_step(case: str, form: str) -> None:
    params, losses = expected(OPTIMIZERS[case](), 12)
    model = jax_frontend.Model(apply, WEIGHTS, [jax.ShapeDtypeStruct((1, 5), jnp.float32)])
    built = converter.build(model, loss=rows, optimizer=OPTIMIZERS[case](), batch=6, check=False, **FORMS[form])
    with converter.runtime.TrainingSession(built.data) as session:
        for loss in losses:
            assert session.train(X, Y, weight=SHARES) == pytest.approx(loss, rel=2e-5, abs=1e-6)
        found = session.parameters()
    assert set(found) == set(params)
    for name, array in params.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-5, err_msg=name)


def test_a_state_goes_on_in_a_program_of_other_parts(tmp_path: Path) -> None:
    model = jax_frontend.Model(apply, WEIGHTS, [jax.ShapeDtypeStruct((1, 5), jnp.float32)])
    params, losses = expected(OPTIMIZERS["momo"](), 6)
    whole, parted = (
        converter.build(model, loss=rows, optimizer=OPTIMIZERS["momo"](), batch=6, check=False, **FORMS[form])
        for form in ("whole", "micro-batches")
    )
    with converter.runtime.TrainingSession(whole.data) as session:
        for _ in losses[:3]:
            session.train(X, Y, weight=SHARES)
        session.save(tmp_path / "state")
    with converter.runtime.TrainingSession(parted.data) as session:
        session.restore(tmp_path / "state")
        for loss in losses[3:]:
            assert session.train(X, Y, weight=SHARES) == pytest.approx(loss, rel=2e-5)
        np.testing.assert_allclose(session.parameters()["w"], params["w"], rtol=2e-5, atol=2e-5)
