"""Live models: the traced graph computes what Keras computes, with Keras' names and layout."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import converter
from converter.frontends import keras as keras_frontend
from converter.ir import Graph, evaluate
from converter.runtime import TrainingSession
from converter.support.errors import NumericError, UsageError
from tests.keras_frontend.models import KINDS, functional, predict, randomized, samples, sequential, two_inputs


def outputs(graph: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return list(evaluate(graph, arrays)[0].values())


def parameters(graph: Graph) -> dict[str, Any]:
    return {p.name: p for p in graph.parameters.values()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_any_kind_computes_the_same_under_keras_names_and_layout(kind: str) -> None:
    build, specs = KINDS[kind]
    model = randomized(build())
    arrays = samples(specs)
    graph = keras_frontend.trace(model, 3)
    found = parameters(graph)
    assert set(found) == {v.path for v in model.weights}
    for variable in model.weights:
        np.testing.assert_array_equal(found[variable.path].value, np.asarray(variable.value))
    for ours, theirs in zip(outputs(graph, arrays), predict(model, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_the_batch_is_the_first_axis_of_every_input() -> None:
    graph = keras_frontend.trace(two_inputs(), 7)
    assert [(v.name, v.shape, v.dtype.name) for v in graph.inputs] == [
        ("image", (7, 4, 4, 2), "float32"),
        ("tag", (7, 3), "int32"),
    ]
    assert [v.name for v in keras_frontend.trace(functional(), 2).inputs] == ["x"]


def test_moving_statistics_do_not_train_gamma_and_beta_do() -> None:
    found = parameters(keras_frontend.trace(functional(), 2))
    trainable = {name for name, p in found.items() if p.trainable}
    assert set(found) - trainable == {
        f"{layer}/moving_{statistic}" for layer in ("stem_bn", "depth_bn") for statistic in ("mean", "variance")
    }


def test_what_is_not_trainable_in_keras_is_not_trainable_here() -> None:
    model = functional()
    model.get_layer("stem").trainable = False
    model.get_layer("depth_bn").trainable = False
    found = parameters(keras_frontend.trace(model, 2))
    assert {name for name, p in found.items() if p.trainable} == {v.path for v in model.trainable_variables}
    program = converter.build(model, update="full", batch=2)
    assert {p.name for p in program.manifest.parameters} == {v.path for v in model.trainable_variables}


@pytest.mark.quick
def test_what_is_not_trainable_stays_so_in_a_file(tmp_path: Path) -> None:
    """Keras makes the parts of an attention anew when it loads one, and these say that they are trainable."""
    x = keras.Input((4, 6))
    attention = layers.MultiHeadAttention(2, 3, kernel_regularizer="l2", name="attention")
    hidden = layers.TimeDistributed(layers.BatchNormalization(), name="each")(layers.Add()([x, attention(x, x)]))
    model = keras.Model(x, layers.Dense(3, name="head")(layers.Flatten()(hidden)))
    attention.trainable = model.get_layer("each").trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for given in (model, loaded, tmp_path / "model.keras"):
        program = converter.build(given, batch=2, check=False, batch_norm="fixed")
        assert {p.name for p in program.manifest.parameters} == {"head/kernel", "head/bias"}
        assert not any(note.status == "in the loss" for note in program.notes), program.notes


def test_a_part_of_a_frozen_base_that_is_trainable_again_trains() -> None:
    """As one fine-tunes: the base is frozen, then its last layers are not; against Keras' own steps."""
    keras.utils.set_random_seed(0)
    parts = [layers.Conv2D(4, 3, name="c1"), layers.BatchNormalization(), layers.ReLU(), layers.Conv2D(6, 3, name="c2")]
    base = keras.Sequential([keras.Input((8, 8, 3)), *parts, layers.GlobalAveragePooling2D()], name="base")
    base.trainable = False
    base.get_layer("c2").trainable = True
    model = keras.Sequential([keras.Input((8, 8, 3)), base, layers.Dense(3, name="head")])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    program = converter.build(model, batch=4, check=False)
    assert {p.name for p in program.manifest.parameters} == {v.path for v in model.trainable_variables}
    x, y = np.random.default_rng(0).standard_normal((4, 8, 8, 3)).astype(np.float32), np.array([0, 1, 2, 0])
    with TrainingSession(program.data) as session:
        for _ in range(5):
            assert session.train(x, y) == pytest.approx(float(model.train_on_batch(x, y)), rel=1e-4)


def test_a_built_program_has_gamma_and_beta_but_no_moving_statistics() -> None:
    program = converter.build(randomized(functional()), update="full", batch=2)
    assert {p.name for p in program.manifest.parameters} == {
        *("stem/kernel", "stem_bn/gamma", "stem_bn/beta", "depth/kernel", "depth/bias"),
        *("depth_bn/gamma", "depth_bn/beta", "head/kernel", "head/bias"),
    }


def test_a_compiled_and_trained_model_brings_neither_metrics_nor_optimizer() -> None:
    model = sequential()
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(np.zeros((4, 8, 8, 1)), np.zeros((4, 5)), verbose=0)
    assert set(parameters(keras_frontend.trace(model, 2))) == {v.path for v in model.weights}


def test_tracing_leaves_the_model_as_it_was() -> None:
    model = randomized(functional())
    before = [np.asarray(v.value) for v in model.variables]
    keras_frontend.trace(model, 2)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable.value), value)


def test_nodes_know_their_layer() -> None:
    graph = keras_frontend.trace(functional(), 2)
    layers_of = {str(node.op.name): node.origin.layer for node in graph.nodes}
    assert layers_of["Conv2D"] == "stem"
    assert layers_of["DepthwiseConv2D"] == "depth"
    assert layers_of["MatMul"] == "head"


def test_two_variables_of_one_path_get_names_of_their_own() -> None:
    inputs = keras.Input((4,))
    x = keras.Sequential([layers.Dense(4, name="dense")], name="same")(inputs)
    y = keras.Sequential([layers.Dense(4, name="dense")], name="same")(inputs)

    class Pair(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="pair")
            self.first, self.second = keras.Model(inputs, x), keras.Model(inputs, y)

        def call(self, x: Any) -> Any:
            return self.first(x) - self.second(x)

    model = Pair()
    model(np.zeros((1, 4), np.float32))
    model = randomized(model)
    graph = keras_frontend.trace(model, 2)
    assert sorted(parameters(graph)) == [
        *("same/dense/bias", "same/dense/kernel", "same/dense_1/bias", "same/dense_1/kernel")
    ]
    arrays = samples([((4,), "float32")], 2)
    np.testing.assert_allclose(outputs(graph, arrays)[0], predict(model, arrays)[0], rtol=1e-5, atol=1e-5)


def test_a_lambda_layer_of_a_live_model_is_the_persons_own_code() -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(2)(layers.Lambda(lambda x: x * 3.0)(inputs)))
    arrays = samples([((4,), "float32")])
    np.testing.assert_allclose(
        outputs(keras_frontend.trace(model, 3), arrays)[0], predict(model, arrays)[0], rtol=1e-5, atol=1e-6
    )


def test_a_jax_function_of_the_variables_by_name() -> None:
    model = randomized(functional())
    pure = keras_frontend.to_jax_model(model)
    arrays = samples([((8, 8, 3), "float32")])
    np.testing.assert_allclose(pure.apply(pure.params, *arrays), predict(model, arrays)[0], rtol=1e-5, atol=1e-5)
    doubled = dict(pure.params) | {"head/kernel": 0 * pure.params["head/kernel"]}
    bias = np.broadcast_to(np.asarray(pure.params["head/bias"]), (3, 5))
    np.testing.assert_allclose(pure.apply(doubled, *arrays), bias, rtol=1e-6)


# -- what cannot be traced ---------------------------------------------------------------------------------------------


def test_weights_that_are_not_finite_are_named() -> None:
    model = functional()
    kernel = np.asarray(model.get_layer("head").kernel.value).copy()
    kernel[0, :2] = np.nan, np.inf
    model.get_layer("head").kernel.assign(kernel)
    with pytest.raises(NumericError, match=r"head/kernel: 2 elements"):
        keras_frontend.trace(model, 2)


def test_a_model_without_weights_yet() -> None:
    with pytest.raises(UsageError, match="call it once on a batch"):
        keras_frontend.trace(keras.Sequential([layers.Dense(3)], name="unbuilt"), 2)


def test_an_open_axis_needs_a_size() -> None:
    model = keras.Sequential([keras.Input((None, 4)), layers.Dense(3)], name="open")
    with pytest.raises(UsageError, match=r"\(None, None, 4\).*fixed size"):
        keras_frontend.trace(model, 2)
    import jax

    graph = keras_frontend.trace(model, 2, inputs=[jax.ShapeDtypeStruct((1, 5, 4), "float32")])
    assert graph.inputs[0].shape == (2, 5, 4)


def test_the_number_of_described_inputs() -> None:
    with pytest.raises(UsageError, match="has 2 inputs, 0 are described"):
        keras_frontend.trace(two_inputs(), 2, inputs=[])


def test_a_call_of_several_arguments_is_to_be_wrapped() -> None:
    class Adder(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, a: Any, b: Any) -> Any:
            return self.dense(a + b)

    model = Adder()
    model(np.zeros((1, 3)), np.zeros((1, 3)))
    with pytest.raises(UsageError, match=r"a, \.\.\. = keras.Input"):
        keras_frontend.trace(model, 2)


def test_a_dict_of_inputs_is_taken_by_the_models_own_keys() -> None:
    first, second = keras.Input((3,), name="one"), keras.Input((3,), name="two")
    model = keras.Model({"b": first, "a": second}, layers.Dense(2)(first - 2 * second))
    x = {"a": np.ones((4, 3), np.float32), "b": np.zeros((4, 3), np.float32)}
    program = converter.build(model, "mse", "sgd", batch=4)
    with converter.runtime.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(x), model(x), rtol=1e-5)


def test_a_build_says_what_the_model_leaves_open(tmp_path: Path) -> None:
    image = keras.Input((None, None, 3))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(image))
    model = keras.Model(image, layers.Dense(2)(pooled))
    with pytest.raises(UsageError, match="inputs="):
        converter.build(model)
    model.save(tmp_path / "open.keras")
    for given in (model, tmp_path / "open.keras"):
        program = converter.build(given, inputs=[np.zeros((1, 8, 9, 3), np.float32)], batch=2, check=False)
        assert program.manifest.signatures["infer"].inputs[0].shape == (2, 8, 9, 3)
