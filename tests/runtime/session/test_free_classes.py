"""Classes that are not there yet have no part in a training: by JAX and optax over the known ones, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.training.losses import named_loss
from tests.runtime.session.class_nets import LATER, OWN, built, rows_of_classes

STEPS = 5
_ADAMW = {"learning_rate": 0.05, "weight_decay": 1e-4}


def _cross_entropy(scores: jax.Array, y: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(scores)[jnp.arange(len(y)), y]


def _hinge(scores: jax.Array, y: jax.Array) -> jax.Array:
    own = jax.nn.one_hot(y, OWN)
    return jnp.maximum(((1 - own) * scores).max(1) - (own * scores).sum(1) + 1, 0)


def _one_hot(y: np.ndarray) -> np.ndarray:
    return np.eye(OWN + LATER, dtype=np.float32)[y]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "loss", "targets"),
    [
        ({}, _cross_entropy, np.asarray),
        ({"loss": "categorical_crossentropy"}, _cross_entropy, _one_hot),
        ({"loss": "categorical_hinge"}, _hinge, _one_hot),
        ({"loss": lambda scores, y: -(jax.nn.log_softmax(scores) * y).sum(1)}, _cross_entropy, _one_hot),
        ({"optimizer": optax.adamw(**_ADAMW)}, _cross_entropy, np.asarray),
        (
            {"optimizer": optax.chain(optax.clip_by_global_norm(0.5), optax.add_decayed_weights(1e-4), optax.sgd(0.1))},
            _cross_entropy,
            np.asarray,
        ),
        ({"optimizer": optax.sgd(0.1, momentum=0.9), "row_clipping": 1e6}, _cross_entropy, np.asarray),
    ],
)
def test_steps_are_those_of_optax_over_known_classes(
    options: dict[str, Any], loss: Callable[..., jax.Array], targets: Callable[[np.ndarray], np.ndarray]
) -> None:
    x, y = rows_of_classes(4)
    optimizer = options.get("optimizer", optax.sgd(0.1))
    with TrainingSession(built(**{"optimizer": optimizer, **options}).data) as session:
        features, begun = jnp.asarray(session.features(x)), session.parameters()
        weights = {name: jnp.asarray(begun[name][..., :OWN]) for name in ("last/w", "last/b")}
        slots = optimizer.init(weights)
        for _ in range(STEPS):
            slopes = jax.grad(lambda at: loss(features @ at["last/w"] + at["last/b"], y).mean())(weights)
            updates, slots = optimizer.update(slopes, slots, weights)
            weights = optax.apply_updates(weights, updates)
            session.train(x, targets(y))
        for name, wanted in weights.items():
            np.testing.assert_allclose(session.parameters()[name][..., :OWN], wanted, atol=1e-5)
        assert session.parameters()["last/b"][OWN:].max() < -29_000


@pytest.mark.parametrize(
    "loss",
    [
        named_loss("sparse_categorical_crossentropy", label_smoothing=0.1),
        named_loss("categorical_crossentropy", label_smoothing=0.1),
        *("mse", "mae", "huber", "log_cosh", "poisson", "binary_crossentropy", "dice", "cosine_similarity"),
        "distillation",
        lambda scores, y: ((scores - y) ** 2).mean(1),
    ],
    ids=str,
)
def test_losses_that_count_free_classes_are_refused(loss: Any) -> None:
    """Of -30,000 a mean of squares is 400 million, and a smoothed label asks for a share of it."""
    with pytest.raises(UsageError, match=r"classes='4\+3': the loss .* is not that of the known classes alone"):
        built(loss=loss)


@pytest.mark.parametrize(
    "optimizer",
    [
        *(optax.lamb(0.01), optax.lars(0.01), optax.adafactor(0.01), optax.fromage(0.01), optax.contrib.dog()),
        optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(0.1)),
        optax.chain(optax.add_decayed_weights(1e-4), optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    ],
)
def test_optimizers_that_look_at_all_of_a_bias_are_refused(optimizer: Any) -> None:
    """LAMB's step is as long as the bias: 839 for known classes too, in three epochs of a rate of 0.01."""
    with pytest.raises(UsageError, match="the others would take other steps than without room"):
        built(optimizer=optimizer)


def test_a_decay_that_brings_free_classes_near_is_refused_in_words() -> None:
    decay = optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1))
    with pytest.raises(UsageError, match=r"last/b decay by 0.001 of itself in a step.* after some 4,60\d steps"):
        built(optimizer=decay)
    kernels = optax.add_decayed_weights(0.01, mask=lambda params: jax.tree.map(lambda array: array.ndim > 1, params))
    x, y = rows_of_classes()
    with TrainingSession(built(optimizer=optax.chain(kernels, optax.sgd(0.1))).data) as session:
        session.fit(x, y, epochs=5, progress=False)
        np.testing.assert_array_equal(session.parameters()["last/b"][OWN:], np.float32(-30_000))
