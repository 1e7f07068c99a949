"""Random Keras set-ups train in the stock interpreter as in Keras: losses, weights and metrics."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from converter.support.errors import PocketuneError
from tests.keras_frontend.random_training import Training, differences, judged

#: A sample of pictures, sequences and rows of features, which takes a quarter of a minute; `slow` tries many more.
FEW, MANY = range(2), [*range(2, 8), *range(100, 500)]


@pytest.fixture(autouse=True)
def _quickly_compiled() -> Iterator[None]:
    """Nearly all of the time is XLA's, and nothing runs often."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.quick
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", FEW)
def test_a_few(seed: int) -> None:
    assert judged(seed) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many() -> None:
    """All are tried before one of them fails the test; a refusal is one that nobody expects."""
    wrong = []
    for seed in MANY:
        try:
            wrong += judged(seed)
        except PocketuneError as error:
            wrong.append(f"{seed}: refused: {error}")
    assert not wrong, "\n".join(wrong)


def training(loss: float = 0.5, weight: float = 1.0, score: float = 0.3) -> Training:
    return Training([0.7, loss], {"model/head/kernel": np.array([0.1, weight], np.float32)}, {"mae": score})


def test_what_rounding_does_not_explain_is_seen() -> None:
    expected, others = training(), [training(weight=1.0 + 1e-7)]
    assert differences(expected, others, training(0.500001, 1.000005, 0.300001), summed=False) == []
    for wrong, name in (
        (training(0.5001), "loss 1"),
        (training(weight=1.0001), "kernel"),
        (training(score=0.31), "mae"),
    ):
        (said,) = differences(expected, others, wrong, summed=False)
        assert name in said
    assert differences(expected, [training(weight=1.0 + 1e-4)], training(weight=1.0001), summed=False) == []
