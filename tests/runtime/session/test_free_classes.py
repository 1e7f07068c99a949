"""Classes that are not there yet have no part in a training: by JAX and optax over the known ones, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.metrics import mean_absolute_error, mean_squared_error, roc_auc_score, top_k_accuracy_score

from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.training.losses import named_loss
from jax_frontend import Model
from tests.runtime.session.class_nets import INPUTS, LATER, OWN, built, rows_of_classes, small_model

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
        pytest.param(lambda scores, y: ((scores - y) ** 2).mean(1), id="own function"),
    ],
    ids=lambda loss: getattr(loss, "name", None) or loss,
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


@pytest.mark.parametrize("link", [True, False])
def test_metrics_are_of_the_classes_that_there_are(link: bool) -> None:
    """Classes 0 to 3 and 5, by scikit-learn over their columns; then two alone, of which there is a curve."""
    x, y = rows_of_classes()
    y = np.where(y == 3, 5, y)
    with TrainingSession(built(small_model(softmax=link), loss="categorical_crossentropy").data) as session:
        for name in ("five", "six"):
            session.add_class(name)
        session.forget_class("five")
        rng, known = np.random.default_rng(0), [0, 1, 2, 3, 5]
        begun = session.state()
        begun["last/w"] = begun["last/w"] + rng.normal(size=begun["last/w"].shape).astype(np.float32)
        session.set_state(begun)
        given, right = session.infer(x)[:, known], _one_hot(y)[:, known]
        asked = ["mae", "mse", "binary_accuracy", "top_2", "auc"]
        found = session.evaluate(x, _one_hot(y), metrics=asked)
        wanted = [
            mean_absolute_error(right, given),
            mean_squared_error(right, given),
            np.mean((given > 0.5) == (right > 0.5)),
            top_k_accuracy_score(right.argmax(1), given, k=2, labels=range(5)),
            roc_auc_score(right.ravel(), given.ravel()),
        ]
        np.testing.assert_allclose([found[name] for name in asked], wanted, rtol=1e-5)
        seen = session.evaluate(x, _one_hot(y), metrics=lambda y, output: float(output.shape[1]))
        assert OWN + LATER in seen.values(), "a function sees what infer gives"


def test_two_known_classes_have_a_curve() -> None:
    x, y = rows_of_classes()
    params = {"w": np.random.default_rng(1).normal(size=(INPUTS, 2)).astype(np.float32), "b": np.zeros(2, np.float32)}
    frozen = np.eye(INPUTS, dtype=np.float32)
    model = Model(
        lambda p, x: (x @ p["first"]) @ p["last"]["w"] + p["last"]["b"],
        {"first": frozen, "last": params},
        [jax.ShapeDtypeStruct((1, INPUTS), "float32")],
    )
    with TrainingSession(built(model, classes="2+3", labels=None).data) as session:
        scores = session.infer(x)
        wanted = roc_auc_score(y % 2, scores[:, 1] - scores[:, 0])
        assert session.evaluate(x, y % 2, metrics="auc")["auc"] == pytest.approx(wanted)
        with pytest.raises(UsageError, match="auc: all 30 rows are of class 1"):
            session.fit(x, y % 2, validation=(x, np.ones_like(y)), metrics="auc", epochs=1, progress=False)
        with pytest.raises(UsageError, match=r"mae: y \[rows\] is not like the output \[rows, 2\]"):
            session.evaluate(x, y % 2, metrics="mae")
