"""Models that once went wrong: small, each with the reason in its name."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.support.errors import NumericError, UsageError
from tests.models.oracle import Oracle

BATCH = 4


def trained_like_optax(model, update="full", shape=(6,), dtype=np.float32, optimizer=None) -> None:
    """Three steps, of SGD or of another optimizer built for a rate of 1, equal optax'."""
    rng, optimizer = np.random.default_rng(0), optimizer or optax.sgd(1.0)
    program = converter.build(model, optimizer=optimizer, update=update, batch=BATCH)
    oracle = Oracle(model, {row.parameter: row.fraction for row in program.table}, optimizer)
    with converter.runtime.TrainingSession(program.data) as session:
        for _ in range(3):
            x = rng.integers(0, 3, (BATCH, *shape)).astype(dtype)
            y = rng.integers(0, 5, BATCH).astype(np.int32)
            wanted = oracle.train(x, y, 0.1, np.ones(BATCH, np.float32))
            np.testing.assert_allclose(session.train(x, y, learning_rate=0.1), wanted, rtol=1e-5)
        found = session.parameters()
    for name, array in oracle.parameters().items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def jax_model(apply, params, dtype=jnp.float32) -> jax_frontend.Model:
    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 6), dtype)])


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@jax.custom_vjp
def quantized(x):
    return jnp.round(x * 4) / 4


quantized.defvjp(lambda x: (quantized(x), x), lambda x, g: (g * (jnp.abs(x) < 1.5),))


def test_a_custom_vjp_whose_fwd_calls_the_function_itself() -> None:
    params = {"a": weights(6, 8), "b": weights(8, 5)}
    trained_like_optax(jax_model(lambda p, x: quantized(x @ p["a"]) @ p["b"], params))


def test_parameters_named_like_inputs_and_outputs_of_the_step() -> None:
    params = {"weight": weights(6, 5), "y": np.zeros(5, np.float32), "loss": np.ones(5, np.float32)}
    trained_like_optax(jax_model(lambda p, x: (x @ p["weight"] + p["y"]) * p["loss"], params))


@pytest.mark.parametrize("rule", [optax.sgd(1.0), optax.lamb(1.0)], ids=["sgd", "lamb"])
def test_the_norm_of_weights_that_are_stored_in_fewer_axes(rule: optax.GradientTransformation) -> None:
    def attention(p, x):  # kernels with an axis for the heads, which the program keeps as matrices
        queries, keys = (jnp.einsum("bi,ihd->bhd", x, p[name]) for name in ("query", "key"))
        mixed = jax.nn.softmax(jnp.einsum("bhd,bgd->bhg", queries, keys)) @ queries
        return jnp.einsum("bhd,hdo->bo", mixed, p["out"])

    params = {"query": weights(6, 2, 3), "key": weights(6, 2, 3), "out": weights(2, 3, 5)}
    trained_like_optax(jax_model(attention, params), optimizer=optax.chain(optax.clip_by_global_norm(0.3), rule))


def test_integers_into_a_dense_layer() -> None:
    trained_like_optax(jax_model(lambda p, x: jax.lax.dot(x, p["w"]), {"w": weights(6, 5)}, jnp.int32), dtype=np.int32)


def test_the_diagonal_of_a_matrix() -> None:
    def contrastive(outputs, y):
        return -jnp.diag(jax.nn.log_softmax(outputs @ outputs.T))

    model = jax_model(lambda p, x: x @ p["w"], {"w": weights(6, 5)})
    target = jax.ShapeDtypeStruct((1,), jnp.int32)
    assert converter.build(model, loss=contrastive, y=target, batch=BATCH).manifest.loss == "contrastive"


@pytest.mark.parametrize(("multiplier", "channels", "fraction"), [(2, 3, 0.5), (3, 4, 0.4), (2, 2, 0.3)])
def test_a_fraction_of_a_depthwise_layer_with_a_multiplier(multiplier: int, channels: int, fraction: float) -> None:
    model = keras.Sequential(
        [
            keras.Input((6, 6, channels)),
            keras.layers.DepthwiseConv2D(3, depth_multiplier=multiplier, name="depthwise"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(5),
        ]
    )
    program = converter.build(model, update={"*depthwise/kernel": fraction}, batch=BATCH)
    row = next(row for row in program.table if row.fraction)
    assert (row.fraction * channels).is_integer()
    assert program.costs["trained_parameters"] == 9 * row.fraction * channels * multiplier


def test_layers_of_one_name_in_an_archive(tmp_path) -> None:
    body = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu", name="fc")], name="body")
    head = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5, name="fc")], name="classifier")
    x = keras.Input((6,))
    keras.Model(x, head(body(x))).save(tmp_path / "model.keras")
    for update in ("head", "last-1"):
        program = converter.build(tmp_path / "model.keras", update=update)
        assert sum(p.shape == (8, 5) or p.shape == (5,) for p in program.manifest.parameters) == 2
        assert len(program.manifest.parameters) == 2


@pytest.mark.parametrize("structure", [list, dict], ids=lambda kind: kind.__name__)
def test_a_subclassed_model_of_several_inputs(structure: type) -> None:
    class Both(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(5)

        def call(self, given):
            a, b = given.values() if isinstance(given, dict) else given
            return self.dense(a + b)

    model, row = Both(), np.zeros((1, 6), np.float32)
    model([row, row] if structure is list else {"a": row, "b": row})
    inputs = converter.build(model).manifest.signatures["train"].taking("input")
    assert [spec.shape for spec in inputs] == [(8, 6), (8, 6)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": 3}, "update must be"),
        ({"update": {3: 1}}, "patterns of update rules are strings"),
        ({"batch": 2.5}, "batch must be at least 1"),
        ({"batch": "8"}, "batch must be at least 1"),
        ({"target": None}, "target must be a name"),
        ({"y": (3,), "loss": lambda outputs, y: outputs.mean(-1)}, "y= describes y"),
    ],
)
def test_arguments_of_the_wrong_kind(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converter.build(jax_model(lambda p, x: x @ p["w"], {"w": weights(6, 5)}), **options)


def test_numbers_of_numpy_are_numbers() -> None:
    model = jax_model(lambda p, x: x @ p["w"], {"w": weights(6, 5)})
    assert converter.build(model, update={"w": np.float32(0.5)}, batch=np.int64(3)).manifest.batch == 3


def test_weights_that_cannot_be_trained() -> None:
    with pytest.raises(NumericError, match="w"):
        converter.build(jax_model(lambda p, x: x @ p["w"], {"w": np.full((6, 5), np.inf, np.float32)}))


def test_a_product_of_integers_is_exact() -> None:
    def apply(params, x):
        counts = x @ (jnp.arange(36, dtype=jnp.int32).reshape(6, 6) + 1_000_000)
        return counts.astype(jnp.float32) @ params["w"]

    converter.build(jax_model(apply, {"w": weights(6, 5)}, jnp.int32))
    x, w = np.arange(12, dtype=np.int32).reshape(2, 6) - 5, np.arange(36, dtype=np.int32).reshape(6, 6) + 1_000_000
    np.testing.assert_array_equal(converter.function(lambda x: x @ w, x).run(x)[0], x @ w)
