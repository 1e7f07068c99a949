"""The losses that have a name, against Keras' own: value and gradient, with weights of the rows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.ir import Builder, Parameter, TensorType, Value, evaluate
from converter.passes.autodiff import differentiate
from converter.runtime import TrainingSession
from converter.support.errors import UnsupportedError, UsageError
from converter.training.losses import LOSSES, Penalty, attach_loss, loss_from_table, named_loss

BATCH, PLACES, CLASSES = 4, 3, 5
WEIGHT = np.array([1, 0.5, 0, 2], np.float32)
RNG = np.random.default_rng(0)
X = 2 * RNG.standard_normal((BATCH, PLACES, CLASSES)).astype(np.float32)
VALUES = RNG.standard_normal(X.shape).astype(np.float32)
BITS = RNG.integers(0, 2, X.shape).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, X.shape[:-1]).astype(np.int32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
SOFT = RNG.dirichlet(np.ones(CLASSES), X.shape[:-1]).astype(np.float32)
MASKED = np.where(np.arange(BATCH * PLACES).reshape(BATCH, PLACES) % 5 < 2, -100, LABELS).astype(np.int32)
MASKED[1] = -1  # a row without any
k = keras.losses


def over_tokens(mask: Any, y: Any, x: Any, smoothing: float = 0.0) -> Any:
    """The mean over the tokens of each row that are not masked."""
    targets = optax.smooth_labels(jax.nn.one_hot(y, CLASSES), smoothing)
    rows = jnp.where(mask, optax.softmax_cross_entropy(x, targets), 0).sum(1)
    return rows / jnp.maximum(mask.sum(1), 1)


#: Name, options, targets, Keras' loss of (y, x).
CASES: list[tuple[str, dict[str, float], np.ndarray, Callable[[Any, Any], Any]]] = [
    ("sparse_categorical_crossentropy", {}, LABELS, lambda y, x: k.sparse_categorical_crossentropy(y, x, True)),
    (
        "sparse_categorical_crossentropy",
        {"label_smoothing": 0.2},
        LABELS,
        lambda y, x: k.categorical_crossentropy(jax.nn.one_hot(y, CLASSES), x, True, 0.2),
    ),
    ("categorical_crossentropy", {}, SOFT, lambda y, x: k.categorical_crossentropy(y, x, True)),
    (
        "categorical_crossentropy",
        {"label_smoothing": 0.1},
        SOFT,
        lambda y, x: k.categorical_crossentropy(y, x, True, 0.1),
    ),
    ("binary_crossentropy", {}, BITS, lambda y, x: k.binary_crossentropy(y, x, True)),
    ("binary_crossentropy", {"label_smoothing": 0.1}, BITS, lambda y, x: k.binary_crossentropy(y, x, True, 0.1)),
    ("binary_focal_crossentropy", {}, BITS, lambda y, x: k.binary_focal_crossentropy(y, x, from_logits=True)),
    (
        "binary_focal_crossentropy",
        {"gamma": 1.5, "alpha": 0.3, "label_smoothing": 0.1},
        BITS,
        lambda y, x: k.binary_focal_crossentropy(y, x, True, 0.3, 1.5, from_logits=True, label_smoothing=0.1),
    ),
    (
        "categorical_focal_crossentropy",
        {},
        ONE_HOT,
        lambda y, x: k.categorical_focal_crossentropy(y, x, from_logits=True),
    ),
    (
        "categorical_focal_crossentropy",
        {"gamma": 3.0, "alpha": 0.5, "label_smoothing": 0.1},
        ONE_HOT,
        lambda y, x: k.categorical_focal_crossentropy(y, x, 0.5, 3.0, from_logits=True, label_smoothing=0.1),
    ),
    ("kl_divergence", {}, SOFT, lambda y, x: optax.losses.kl_divergence(jax.nn.log_softmax(x), y)),
    ("kl_divergence", {}, ONE_HOT, lambda y, x: k.kl_divergence(y, jax.nn.softmax(x))),
    ("mse", {}, VALUES, k.mean_squared_error),
    ("mae", {}, VALUES, k.mean_absolute_error),
    ("mape", {}, VALUES, k.mean_absolute_percentage_error),
    ("msle", {}, SOFT, k.mean_squared_logarithmic_error),
    ("poisson", {}, SOFT, k.poisson),
    ("huber", {}, VALUES, k.huber),
    ("huber", {"delta": 0.3}, VALUES, lambda y, x: k.huber(y, x, 0.3)),
    ("quantile", {}, VALUES, lambda y, x: jnp.maximum(0.5 * (y - x), -0.5 * (y - x)).mean(-1)),
    ("quantile", {"q": 0.9}, VALUES, lambda y, x: jnp.maximum(0.9 * (y - x), -0.1 * (y - x)).mean(-1)),
    ("log_cosh", {}, VALUES, k.log_cosh),
    ("cosine_similarity", {}, VALUES, k.cosine_similarity),
    ("next_token", {}, MASKED, lambda y, x: over_tokens(y >= 0, y, x)),
    (
        "next_token",
        {"ignore": 1, "label_smoothing": 0.1},
        MASKED,
        lambda y, x: over_tokens((y >= 0) & (y != 1), y, x, 0.1),
    ),
    ("distillation", {}, VALUES, lambda y, x: 4 * k.kl_divergence(jax.nn.softmax(y / 2), jax.nn.softmax(x / 2))),
    (
        "distillation",
        {"temperature": 3.0},
        VALUES,
        lambda y, x: 9 * optax.losses.kl_divergence(jax.nn.log_softmax(x / 3), jax.nn.softmax(y / 3)),
    ),
    ("hinge", {}, 2 * BITS - 1, k.hinge),
    ("squared_hinge", {}, 2 * BITS - 1, k.squared_hinge),
    ("categorical_hinge", {}, ONE_HOT, k.categorical_hinge),
    (
        "categorical_generalized_cross_entropy",
        {"q": 0.7},
        LABELS,
        lambda y, x: k.categorical_generalized_cross_entropy(y, jax.nn.softmax(x), 0.7),
    ),
    ("dice", {}, BITS, lambda y, x: jnp.full(BATCH, k.dice(y, x))),
    ("dice", {"axis": [1, -1]}, BITS, lambda y, x: k.dice(y, x, axis=(1, 2))),
    ("dice", {"axis": (0, 1)}, BITS, lambda y, x: jnp.full(BATCH, k.dice(y, x, axis=(0, 1)).mean())),
    ("tversky", {"alpha": 0.3, "beta": 0.7, "axis": 1}, BITS, lambda y, x: k.tversky(y, x, 0.3, 0.7, axis=1)),
]


of_every_loss = pytest.mark.parametrize(
    ("name", "options", "y", "theirs"), CASES, ids=[f"{c[0]}-{'-'.join(c[1])}" for c in CASES]
)


@of_every_loss
def test_value_and_gradient_are_those_of_keras(
    name: str, options: dict[str, float], y: np.ndarray, theirs: Callable[[Any, Any], Any]
) -> None:
    compare(name, options, np.abs(X) if name in ("poisson", "dice", "tversky") else X, y, theirs)


@of_every_loss
def test_value_and_gradient_at_kinks_are_those_of_keras(
    name: str, options: dict[str, float], y: np.ndarray, theirs: Callable[[Any, Any], Any]
) -> None:
    """Outputs that are equal, 0, the target or a margin from it, and rows of zeros."""
    numbers = np.array([0.0, -1.0, 1.0, 2.0, 0.5], np.float32)
    places = np.arange(X.size).reshape(X.shape)
    if y is VALUES:
        y = numbers[places * 3 % 5]
    compare(name, options, numbers[places % 7 % 5], y, theirs)
    if name == "cosine_similarity":
        return  # the derivative of Keras' is NaN in rows of zeros
    compare(name, options, X * (places % 15 > 4), y, theirs)
    if y.shape == X.shape:
        compare(name, options, np.clip(y, -1, 1), y, theirs)


def compare(
    name: str, options: dict[str, float], given: np.ndarray, y: np.ndarray, theirs: Callable[[Any, Any], Any]
) -> None:
    """Asserts that loss and gradient of the outputs `given` are those of Keras."""

    def total(x: Any) -> Any:
        rows = theirs(jnp.asarray(y), x).reshape(BATCH, -1).mean(1)
        return (rows * WEIGHT).sum() / WEIGHT.sum()

    value, gradient = jax.value_and_grad(total)(jnp.asarray(given))
    b = Builder()
    b.graph.outputs["output"] = x = b.input("x", TensorType(X.shape))
    scored = attach_loss(b.graph, named_loss(name, **options))
    graph, gradients = differentiate(scored, scored.outputs["loss"], [x])
    graph.outputs = {"loss": scored.outputs["loss"], "gradient": gradients[x]}
    found, _ = evaluate(graph, {"x": given, "y": y, "weight": WEIGHT}, np.float64)
    np.testing.assert_allclose(found["loss"], value, rtol=2e-6, atol=5e-7)
    np.testing.assert_allclose(found["gradient"], gradient, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_a_binary_head_that_begins_with_zeros_goes_the_way_of_keras(activation: str | None) -> None:
    """Every logit is 0 at first, where the parts of the loss have corners."""
    head = keras.layers.Dense(1, activation, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((3,)), head])
    model.compile(keras.optimizers.SGD(1.0), keras.losses.BinaryCrossentropy(from_logits=activation is None))
    x, y = X[:, 0, :3], np.array([[1], [0], [0], [0]], np.float32)
    with TrainingSession(converter.build(model, batch=BATCH, check=False).data) as session:
        session.train(x, y)
        found = session.parameters()
    model.fit(x, y, batch_size=BATCH, verbose=0)
    for part, theirs in zip(("kernel", "bias"), model.get_weights(), strict=True):
        (mine,) = (array for name, array in found.items() if name.endswith(part))
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_every_name_is_tested() -> None:
    assert {case[0] for case in CASES} | {"contrastive", "triplet"} == set(LOSSES)


def test_answers_to_masked_labels_are_not_counted() -> None:
    b = Builder()
    b.graph.outputs["output"] = b.input("x", TensorType(X.shape))
    found, _ = evaluate(attach_loss(b.graph, named_loss("next_token")), {"x": X, "y": MASKED, "weight": WEIGHT})
    right = [(x.argmax(-1) == y)[y >= 0].mean() if (y >= 0).any() else 0 for x, y in zip(X, MASKED, strict=True)]
    np.testing.assert_allclose(found["correct"], (right * WEIGHT).sum(), rtol=1e-6)


def separate(x: Any, y: Any) -> Any:
    return jnp.sqrt(((x - y) ** 2).sum(-1) + 1e-6)


def embeddings(count: int) -> tuple[Builder, list[Value], dict[str, np.ndarray]]:
    b, rng = Builder(), np.random.default_rng(1)
    values = [b.input(f"x_{i}", TensorType((BATCH, CLASSES))) for i in range(count)]
    b.graph.outputs = {f"output_{i}": v for i, v in enumerate(values)}
    data = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in values}
    data["x_1"][0], data["x_1"][3] = data["x_0"][0], data["x_0"][3] + 0.1  # no distance, and less than the margin
    return b, values, data


@pytest.mark.parametrize(
    ("name", "count", "theirs"),
    [
        ("triplet", 3, lambda y, *e: optax.losses.triplet_margin_loss(*e, margin=0.8)),
        (
            "contrastive",
            2,
            lambda y, a, c: y * separate(a, c) ** 2 + (1 - y) * jax.nn.relu(0.8 - separate(a, c)) ** 2,
        ),
    ],
)
def test_distances_of_embeddings(name: str, count: int, theirs: Callable[..., Any]) -> None:
    b, values, data = embeddings(count)
    y = np.array([1, 1, 0, 0], np.float32)

    def total(*arrays: Any) -> Any:
        return (theirs(y, *arrays) * WEIGHT).sum() / WEIGHT.sum()

    value, expected = jax.value_and_grad(total, tuple(range(count)))(*map(jnp.asarray, data.values()))
    scored = attach_loss(b.graph, named_loss(name, margin=0.8))
    graph, gradients = differentiate(scored, scored.outputs["loss"], values)
    graph.outputs = {"loss": scored.outputs["loss"], **{v.name: gradients[v] for v in values}}
    given = data | {"weight": WEIGHT} | ({} if name == "triplet" else {"y": y})
    found, _ = evaluate(graph, given, np.float64)
    np.testing.assert_allclose(found["loss"], value, rtol=1e-5)
    for v, gradient in zip(values, expected, strict=True):
        np.testing.assert_allclose(found[v.name], gradient, rtol=1e-4, atol=1e-5)


def test_triplets_train_without_y() -> None:
    w = RNG.standard_normal((3, 2)).astype(np.float32)
    specs = [jax.ShapeDtypeStruct((1, 3), jnp.float32)] * 3
    model = jax_frontend.Model(lambda p, *x: tuple(a @ p["w"] for a in x), {"w": w}, specs)
    x = [RNG.standard_normal((6, 3)).astype(np.float32) for _ in specs]
    with TrainingSession(converter.build(model, loss="triplet", batch=4).data) as session:
        history = session.fit(x, epochs=5, learning_rate=0.1)
        expected = optax.losses.triplet_margin_loss(*session.infer(x)).mean()
        assert session.evaluate(x, None)["loss"] == pytest.approx(float(expected), rel=1e-5)
        with pytest.raises(UsageError, match="takes no y"):
            session.train(x, np.zeros(6))
    assert history["loss"][-1] < history["loss"][0]


def test_distillation_with_labels() -> None:
    w, x = RNG.standard_normal((3, CLASSES)).astype(np.float32), RNG.standard_normal((4, 3)).astype(np.float32)
    model = jax_frontend.Model(lambda p, x: x @ p["w"], {"w": w}, [jax.ShapeDtypeStruct((1, 3), jnp.float32)])
    built = converter.build(model, loss=named_loss("distillation", temperature=4, alpha=0.7), batch=4)
    y = {"teacher": VALUES[:, 0], "label": LABELS[:, 0]}

    def total(w: Any) -> Any:
        z = x @ w
        soft = optax.losses.kl_divergence(jax.nn.log_softmax(z / 4), jax.nn.softmax(y["teacher"] / 4))
        return (0.7 * 16 * soft + 0.3 * optax.softmax_cross_entropy_with_integer_labels(z, y["label"])).mean()

    value, gradient = jax.value_and_grad(total)(w)
    with TrainingSession(built.data) as session:
        assert session.train(x, y, 0.1) == pytest.approx(float(value), rel=1e-5)
        np.testing.assert_allclose(session.parameters()["w"], w - 0.1 * gradient, rtol=1e-5, atol=1e-6)
        assert session.evaluate(x, y).keys() == {"loss", "accuracy"}
        with pytest.raises(UsageError, match="y/label: labels go from 0 to 4"):
            session.train(x, y | {"label": y["label"] + CLASSES})


def test_tokens_beyond_the_vocabulary_are_refused_and_masked_ones_are_not() -> None:
    model = jax_frontend.Model(
        lambda p, x: x @ p["w"], {"w": X[0]}, [jax.ShapeDtypeStruct((1, 4, PLACES), jnp.float32)]
    )
    x = RNG.standard_normal((2, 4, PLACES)).astype(np.float32)
    with TrainingSession(converter.build(model, loss="next_token", batch=2).data) as session:
        session.train(x, np.array([[-100, 0, 1, -1], [CLASSES - 1] * 4]))
        with pytest.raises(UsageError, match="labels go from 0 to 4"):
            session.train(x, np.full((2, 4), CLASSES))


def test_labels_are_checked_in_a_program_without_infer() -> None:
    """Of a label, of tokens one of which is left out though there is no such class, and beside a teacher's logits."""
    rows = jax_frontend.Model(lambda p, x: x @ p["w"], {"w": X[0]}, [jax.ShapeDtypeStruct((1, PLACES), jnp.float32)])
    words = replace(rows, inputs=[jax.ShapeDtypeStruct((1, 4, PLACES), jnp.float32)])
    x = RNG.standard_normal((2, 4, PLACES)).astype(np.float32)
    teacher = RNG.standard_normal((2, CLASSES)).astype(np.float32)
    good = np.array([0, CLASSES - 1])
    for model, loss, inputs, y, wrong in (
        (rows, "sparse_categorical_crossentropy", x[:, 0], good, good + 1),
        (words, named_loss("next_token", ignore=255), x, np.array([[255, 1, 2, -7]] * 2), np.full((2, 4), 254)),
        (rows, named_loss("distillation", alpha=0.5), x[:, 0], (good, teacher), (good - 1, teacher)),
    ):
        program = converter.build(model, loss=loss, batch=2, signatures=("train",), check=False)
        with TrainingSession(program.data) as session:
            session.train(inputs, y, 0.1)
            with pytest.raises(UsageError, match="labels go from 0 to 4"):
                session.train(inputs, wrong, 0.1)


@pytest.mark.parametrize("name", ["mae", "huber", "log_cosh", "cosine_similarity", "binary_crossentropy"])
def test_no_gradient_is_lost_where_the_answer_is_right_or_far_off(name: str) -> None:
    far = np.array([[0.0, 60.0, -60.0], [0.0, 0.0, 0.0]], np.float32)
    y = np.array([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]], np.float32)
    b = Builder()
    b.graph.outputs["output"] = x = b.input("x", TensorType(far.shape))
    scored = attach_loss(b.graph, named_loss(name))
    graph, gradients = differentiate(scored, scored.outputs["loss"], [x])
    graph.outputs = {"loss": scored.outputs["loss"], "gradient": gradients[x]}
    found, _ = evaluate(graph, {"x": far, "y": y, "weight": np.ones(2, np.float32)})
    assert all(np.isfinite(array).all() for array in found.values())


def test_right_answers_of_a_binary_classifier_are_counted() -> None:
    b = Builder()
    b.graph.outputs["output"] = b.input("x", TensorType(X.shape))
    graph = attach_loss(b.graph, named_loss("binary_crossentropy"))
    found, _ = evaluate(graph, {"x": X, "y": BITS, "weight": WEIGHT})
    right = ((X > 0) == (BITS > 0.5)).reshape(BATCH, -1).mean(1)
    np.testing.assert_allclose(found["correct"], (right * WEIGHT).sum(), rtol=1e-6)


def test_penalties_are_those_of_keras_and_count_once_whatever_the_weights() -> None:
    w = RNG.standard_normal((CLASSES, CLASSES)).astype(np.float32)
    b = Builder()
    x = b.input("x", TensorType((BATCH, CLASSES)))
    weight = b.input("w", TensorType(w.shape))
    b.graph.inputs.remove(weight)
    b.graph.parameters[weight] = Parameter("w", w)
    b.graph.outputs["output"] = x
    loss, both = named_loss("mse"), keras.regularizers.L1L2(0.01, 0.02)
    data = {"x": X[:, 0], "y": VALUES[:, 0], "weight": WEIGHT}
    plain, _ = evaluate(attach_loss(b.graph, loss), data)
    for mean, factor in ((True, 1.0), (False, WEIGHT.sum())):
        penalized = attach_loss(b.graph, replace(loss, penalties={"w": Penalty(0.01, 0.02)}), mean)
        found, _ = evaluate(penalized, data)
        expected = (plain["loss"] + float(both(w))) * factor
        np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "hubber"}, "Did you mean 'huber'"),
        ({"name": "huber", "detla": 1.0}, "has no option 'detla'. Did you mean 'delta'"),
        ({"name": "huber", "delta": "1"}, "delta is a number that is not negative"),
        ({"name": "huber", "delta": float("nan")}, "delta is a number"),
        ({"name": "quantile", "q": 1}, "q is a share between 0 and 1, got 1"),
        ({"name": "categorical_crossentropy", "label_smoothing": True}, "label_smoothing is a number"),
        ({"name": "distillation", "alpha": 1.5}, "alpha at most 1"),
        ({"name": "distillation", "temperature": 0}, "temperature is above 0"),
        ({"delta": 1.0}, "expected a name, or a table"),
    ],
)
def test_what_is_no_loss(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loss_from_table(table)


def test_ctc_is_that_of_keras_and_reads_the_logits_before_a_softmax() -> None:
    frames, length = 5, 3
    w = RNG.standard_normal((4, CLASSES)).astype(np.float32)
    x = RNG.standard_normal((2, frames, 4)).astype(np.float32)
    y = np.array([[1, 2, 2], [3, 0, 0]], np.int32)

    def total(w: Any) -> Any:
        lengths = jnp.array([3, 1]), jnp.array([frames, frames])
        return keras.ops.ctc_loss(y, x @ w, *lengths).mean()

    value, gradient = jax.value_and_grad(total)(w)
    specs = [jax.ShapeDtypeStruct((1, frames, 4), jnp.float32)]
    model = jax_frontend.Model(lambda p, x: jax.nn.softmax(x @ p["w"]), {"w": w}, specs)
    kind = jax.ShapeDtypeStruct((1, length), jnp.int32)
    with TrainingSession(converter.build(model, loss="ctc", y=kind, batch=2, check=False).data) as session:
        assert session.train(x, y, 0.1) == pytest.approx(float(value), rel=1e-5)
        np.testing.assert_allclose(session.parameters()["w"], w - 0.1 * gradient, rtol=1e-4, atol=1e-5)
        with pytest.raises(UsageError, match="labels go from 0 to 4"):
            session.train(x, y + CLASSES)
    with pytest.raises(UsageError, match="ctc needs to know how long the labels are"):
        converter.build(model, loss="ctc", batch=2)
    with pytest.raises(UnsupportedError, match=r"loss: web has no WHILE") as caught:
        converter.build(model, loss="ctc", y=kind, batch=2, target="web", check=False)
    assert {site.layer for site in caught.value.sites} == {"loss"}
    assert caught.value.sites[0].advice == "Unroll the loop, or build for a newer runtime or the CPU."
