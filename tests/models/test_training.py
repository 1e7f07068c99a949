"""Ten steps of every model in the stock interpreter against JAX and optax on the same data."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import optax
import pytest

import converter
from tests.models.oracle import Oracle
from tests.models.zoo import CASES, LIKE_ANOTHER

BATCH, STEPS = 4, 10
#: Each scheme and each optimizer once in the usual run, the other pairs in the slow one.
USUAL = (("full", "adamw"), ("sparse", "sgd"))
#: Left to the slow run, too: half a minute of XLA's, for what the others train as well.
LONG = ("mobilenetv2-0.35", "full")
#: With the usual eps of 1e-8 AdamW moves an element whose gradient is a rounding error as far as any other.
OPTIMIZERS = {"sgd": optax.sgd(1.0), "adamw": optax.adamw(1.0, eps=1e-5, weight_decay=0.01)}


@cache
def program(name: str, update: str, optimizer: str) -> converter.Program:
    case = CASES[name]
    return converter.build(
        case.model(), loss=case.loss, optimizer=OPTIMIZERS[optimizer], update=case.update(update), batch=BATCH
    )


@cache
def expected(name: str, update: str, optimizer: str) -> tuple[list[float], dict[str, np.ndarray]]:
    case, table = CASES[name], program(name, update, optimizer).table
    oracle = Oracle(case.model(), {row.parameter: row.fraction for row in table}, OPTIMIZERS[optimizer])
    losses = [oracle.train(*case.batch(BATCH, i), case.learning_rate[optimizer], weights(i)) for i in range(STEPS)]
    return losses, oracle.parameters()


def weights(step: int) -> np.ndarray:
    """Rows count differently, and the last one of every third batch not at all."""
    weight = np.linspace(0.5, 1.5, BATCH, dtype=np.float32)
    weight[-1] *= step % 3 != 2
    return weight


def trainings() -> Iterator[Any]:
    """Yield the parameters of a training: the net, the scheme and the optimizer."""
    for name, update, optimizer in product(CASES, ("full", "sparse"), ("sgd", "adamw")):
        is_slow = (update, optimizer) not in USUAL or name in LIKE_ANOTHER or (name, update) == LONG
        yield pytest.param(name, update, optimizer, marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize("xnnpack", [True, False], ids=["xnnpack", "builtin"])
@pytest.mark.parametrize(("name", "update", "optimizer"), list(trainings()))
def test_ten_steps_equal_jax_and_optax(name: str, update: str, optimizer: str, xnnpack: bool) -> None:
    case = CASES[name]
    wanted, parameters = expected(name, update, optimizer)
    with converter.runtime.TrainingSession(program(name, update, optimizer).data, xnnpack=xnnpack) as session:
        rate = case.learning_rate[optimizer]
        losses = [session.train(*case.batch(BATCH, i), rate, weights(i)) for i in range(STEPS)]
        found = session.parameters()
        assert not any(signature.mixing for signature in session.manifest.signatures.values())
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    assert found.keys() == parameters.keys()
    start = Oracle(case.model(), {}, OPTIMIZERS[optimizer]).whole
    moved = 0.0
    for parameter, array in parameters.items():
        if parameter.endswith("key/bias"):  # a softmax does not see it: its gradient is a rounding error
            continue
        scale = np.abs(array).max()
        assert deviation(found[parameter], array) <= 1e-4 * scale, parameter
        moved = max(moved, deviation(array, start[parameter]) / scale)
    assert moved > 1e-2, "the test would pass without training"


def deviation(a: Any, b: Any) -> float:
    return float(np.abs(a - b).max())
