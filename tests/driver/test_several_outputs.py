"""Models of several outputs: steps against Keras' and optax' own, figures, and what is refused with a sentence."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from keras import layers, losses, optimizers

import converter
import jax_frontend
from converter.driver.program import Program
from converter.program.manifest import manifest_of_bytes
from converter.runtime import TrainingSession
from converter.support.errors import UnsupportedError, UsageError
from scripts.harness.batches import batches_from, random_batches, read_batches
from tests.keras_frontend.compiled import weights_of
from tests.steps import assert_alike, stepped

BATCH, FEATURES, CLASSES, VALUES, STEPS = 6, 5, 3, 2, 10
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, FEATURES)).astype(np.float32)
Y = {
    "size": RNG.standard_normal((BATCH, VALUES)).astype(np.float32),
    "kind": RNG.integers(0, CLASSES, BATCH).astype(np.int32),
}
FROM_LOGITS = losses.SparseCategoricalCrossentropy(from_logits=True)


def net(as_dict: bool = False, activation: str | None = None) -> Any:
    """Its outputs are not in the order of the alphabet; the third has no loss in most tests."""
    keras.utils.set_random_seed(1)
    x = keras.Input((FEATURES,))
    h = layers.Dense(7, activation="tanh")(x)
    heads = {"size": VALUES, "kind": CLASSES, "extra": 2}
    outputs = {name: layers.Dense(n, activation if name == "kind" else None, name=name)(h) for name, n in heads.items()}
    return keras.Model(x, outputs if as_dict else list(outputs.values()))


def keras_targets(as_dict: bool) -> Any:
    return {**Y, "extra": None} if as_dict else [Y["size"], Y["kind"], np.zeros((BATCH, 2), np.float32)]


@pytest.mark.parametrize(
    ("as_dict", "activation", "loss", "weights"),
    [
        (False, None, {"size": "mse", "kind": FROM_LOGITS, "extra": None}, {"size": 0.3, "kind": 2.0, "extra": 1.0}),
        (False, "softmax", ["mae", "sparse_categorical_crossentropy", None], None),
        (True, None, {"size": "huber", "kind": FROM_LOGITS}, {"size": 0.5, "kind": 1.5}),
    ],
    ids=["dict, weights", "list, softmax", "outputs in a dict"],
)
def test_what_was_compiled_trains_as_keras_does(
    as_dict: bool, activation: str | None, loss: Any, weights: Any, tmp_path: Path
) -> None:
    model = net(as_dict, activation)
    model.compile(optimizers.SGD(0.1), loss, loss_weights=weights)
    model.save(tmp_path / "model.keras")
    program = converter.build(tmp_path / "model.keras", batch=BATCH)
    assert [(n.subject, n.status) for n in program.notes if "extra/kernel" in n.why] == [("extra", "fixed")]
    targets = Y if as_dict else keras_targets(False)
    expected = [float(np.ravel(model.train_on_batch(X, targets))[0]) for _ in range(STEPS)]
    found = stepped(program, [(X, Y)] * STEPS, 0.1)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    assert_alike(found.parameters, weights_of(model, found.parameters), rtol=1e-4, atol=1e-6)


def test_a_loss_that_counts_0_is_evaluated_and_trains_nothing() -> None:
    model, y = net(True), {**Y, "extra": np.ones((BATCH, 2), np.float32)}
    loss = {"size": "mse", "kind": FROM_LOGITS, "extra": "mae"}
    model.compile(optimizers.SGD(0.1), loss, loss_weights={"size": 0.3, "kind": 2.0, "extra": 0.0})
    program = converter.build(model, batch=BATCH)
    heads = converter.build(model, update="head", batch=BATCH, check=False).manifest.update.table
    for table in (program.manifest.update.table, heads):
        assert {row.parameter for row in table if "counts" in row.why} == {"extra/kernel", "extra/bias"}
    with TrainingSession(program.data) as session:
        error = np.abs(model.predict(X, verbose=0)["extra"] - 1).mean()
        assert session.evaluate(X, y)["extra_loss"] == pytest.approx(error, rel=1e-5)
    expected = [float(np.ravel(model.train_on_batch(X, y))[0]) for _ in range(STEPS)]
    found = stepped(program, [(X, y)] * STEPS, 0.1)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    assert_alike(found.parameters, weights_of(model, found.parameters), rtol=1e-4, atol=1e-6)
    with pytest.raises(UsageError, match="every loss is multiplied by 0"):
        converter.build(jax_model(), loss=LOSS, loss_weights={"size": 0, "kind": 0.0}, batch=BATCH)


def test_one_compiled_loss_is_that_of_every_output() -> None:
    model = net()
    model.compile("sgd", "mse")
    program = converter.build(model, batch=2, check=False)
    assert program.manifest.loss == {"size": "mse", "kind": "mse", "extra": "mse"}


# -- JAX ---------------------------------------------------------------------------------------------------------------

PARAMS = {
    name: RNG.standard_normal((FEATURES, n)).astype(np.float32) for name, n in (("size", VALUES), ("kind", CLASSES))
}
LOSS = {"size": "mse", "kind": "sparse_categorical_crossentropy"}


def as_dict(params: Mapping[str, Any], x: Any) -> Any:
    return {name: x @ w for name, w in params.items()}


def as_tuple(params: Mapping[str, Any], x: Any) -> Any:
    return x @ params["size"], x @ params["kind"]


def jax_model(apply: Any = as_dict) -> jax_frontend.Model:
    return jax_frontend.Model(apply, PARAMS, [jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)])


@functools.cache
def program(batch: int = BATCH, **options: Any) -> Program:
    return converter.build(jax_model(), loss=LOSS, loss_weights={"size": 0.5}, batch=batch, check=False, **options)


def total(params: Any, weight: Any) -> tuple[Any, dict[str, Any]]:
    """The joint loss of all rows, and the mean of each."""
    out = as_dict(params, X)
    rows = {
        "size": ((out["size"] - Y["size"]) ** 2).mean(-1),
        "kind": optax.softmax_cross_entropy_with_integer_labels(out["kind"], Y["kind"]),
    }
    means = {name: (row * weight).sum() / weight.sum() for name, row in rows.items()}
    return 0.5 * means["size"] + means["kind"], means


@pytest.mark.quick
@pytest.mark.parametrize(
    "options",
    [{}, {"micro_batch": 2}, {"state": "stateless"}, {"state": "split", "micro_batch": 2}],
    ids=["", "micro", "stateless", "split"],
)
def test_steps_are_those_of_jax(options: dict[str, Any]) -> None:
    weight = RNG.random(BATCH).astype(np.float32)
    params = jax.tree.map(jnp.asarray, PARAMS)
    with TrainingSession(program(**options).data) as session:
        for _ in range(STEPS):
            (expected, _), gradients = jax.value_and_grad(total, has_aux=True)(params, weight)
            assert session.train(X, Y, 0.1, weight) == pytest.approx(float(expected), rel=1e-5)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        for name, array in session.parameters().items():
            np.testing.assert_allclose(array, params[name], rtol=1e-5, atol=1e-6)


def test_evaluate_gives_the_figures_of_each_output_and_infer_what_the_model_gives() -> None:
    weight = np.arange(BATCH, dtype=np.float32)
    with TrainingSession(program(batch=4).data) as session:  # a short last batch
        found, outputs = session.evaluate(X, Y, weight), session.infer(X)
    expected, means = total(PARAMS, weight)
    right = as_dict(PARAMS, X)["kind"].argmax(-1) == Y["kind"]
    assert found == pytest.approx(
        {
            "loss": float(expected),
            "size_loss": float(means["size"]),
            "kind_loss": float(means["kind"]),
            "kind_accuracy": float((right * weight).sum() / weight.sum()),
        },
        rel=1e-5,
    )
    assert outputs.keys() == LOSS.keys()
    for name, array in as_dict(PARAMS, X).items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-5, atol=1e-6)


def test_fit_takes_dicts_tuples_and_streams() -> None:
    ways = [
        lambda s: s.fit(X, Y, epochs=2, seed=0, validation=(X, Y)),
        lambda s: s.fit(X, (Y["kind"], Y["size"]), epochs=2, seed=0),  # in the order of the outputs
        lambda s: s.fit(
            [(X[:4], {n: a[:4] for n, a in Y.items()}), (X[4:], {n: a[4:] for n, a in Y.items()})], epochs=2
        ),
    ]
    losses = []
    for way in ways:
        with TrainingSession(program().data) as session:
            losses.append(way(session)["loss"])
    np.testing.assert_allclose(losses, [losses[0]] * 3, rtol=1e-5)
    assert losses[0][1] < losses[0][0]


def test_a_tuple_of_outputs_takes_a_tuple_of_losses() -> None:
    options = {"batch": BATCH, "check": False}
    built = converter.build(jax_model(as_tuple), loss=tuple(LOSS.values()), loss_weights=[0.5, 1], **options)
    with TrainingSession(program().data) as one, TrainingSession(built.data) as other:
        y = Y["size"], Y["kind"]
        assert other.train(X, y, 0.1) == pytest.approx(one.train(X, Y, 0.1), rel=1e-6)
        assert isinstance(other.infer(X), tuple)


def test_a_function_of_all_outputs_and_targets() -> None:
    def joint(outputs: Any, y: Any) -> Any:
        size = ((outputs["size"] - y["size"]) ** 2).mean(-1)
        return 0.5 * size + optax.softmax_cross_entropy_with_integer_labels(outputs["kind"], y["kind"])

    kinds = {"size": jax.ShapeDtypeStruct((1, VALUES), "float32"), "kind": jax.ShapeDtypeStruct((1,), "int32")}
    built = converter.build(jax_model(), loss=joint, y=kinds, batch=BATCH)
    with TrainingSession(program().data) as one, TrainingSession(built.data) as other:
        assert other.train(X, Y, 0.1) == pytest.approx(one.train(X, Y, 0.1), rel=1e-6)
        assert list(other.evaluate(X, Y)) == ["loss"]


def test_a_function_for_one_output_of_a_keras_model() -> None:
    def squared(output: Any, y: Any) -> Any:
        return ((output - y) ** 2).mean(-1)

    model = net()  # whose outputs are not in the order in which JAX flattens a dict
    named = converter.build(model, loss=["mse", None, None], update="head", batch=BATCH, check=False)
    assert [p.name for p in named.manifest.parameters] == ["size/bias", "size/kernel"]
    own = converter.build(model, loss={"size": squared}, update={"*": 0, "size/*": 1}, batch=BATCH, check=False)

    def of_all(outputs: Any, y: Any) -> Any:
        return squared(outputs["size"], y)

    size = jax.ShapeDtypeStruct((1, VALUES), "float32")
    whole = converter.build(model, loss=of_all, y=size, update={"*": 0, "size/*": 1}, batch=BATCH, check=False)
    found = []
    for built, y in ((named, {"size": Y["size"]}), (own, Y["size"]), (whole, Y["size"])):
        with TrainingSession(built.data) as session:
            found.append(session.train(X, y, 0.1))
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"y/kind"', '"y"', "neither y nor y/"),
        ('"y/kind"', '"y/king"', "loss: those of kind, size"),
        ('"loss": {"kind"', '"loss": {"more": "mse", "kind"', "loss: those of more"),
        ('"loss": {"kind": "', '"loss": {"kind": 1, "x": "', "manifest.loss.kind: expected a string"),
        ('"name": "kind_loss", "shape": [1]', '"name": "kind_loss", "shape": [2]', "a figure is one float32"),
        ('"role": "figure"', '"role": "input"', "role 'input' among the outputs"),
    ],
)
def test_a_manifest_that_contradicts_itself(old: str, new: str, message: str) -> None:
    stated = program().manifest.to_json()
    text = json.dumps(stated | {"loss": dict(sorted(stated["loss"].items()))})
    assert manifest_of_bytes(text.encode()) == program().manifest
    assert old in text
    with pytest.raises(UsageError, match=message):
        manifest_of_bytes(text.replace(old, new).encode())


def test_the_harness_reads_and_makes_batches_of_several_targets(tmp_path: Path) -> None:
    manifest = program().manifest
    np.savez(tmp_path / "data.npz", x=X, **{f"y/{name}": array for name, array in Y.items()})
    (tmp_path / "given").write_bytes(batches_from(manifest, tmp_path / "data.npz", 1))
    (batch,) = read_batches(tmp_path / "given", manifest)
    assert isinstance(batch.target, dict)
    for name, array in Y.items():
        np.testing.assert_array_equal(batch.target[name], array)
    (tmp_path / "made").write_bytes(random_batches(manifest, 3, 0))
    made = np.concatenate([b.target["kind"] for b in read_batches(tmp_path / "made", manifest)])
    assert set(made) == set(range(CLASSES))


def test_int8_layers_in_front_of_several_outputs() -> None:
    rng = np.random.default_rng(2)
    params = {
        "body": rng.standard_normal((FEATURES, 256)).astype(np.float32) / 2,
        **{
            name: rng.standard_normal((256, n)).astype(np.float32) / 16
            for name, n in (("size", VALUES), ("kind", CLASSES))
        },
    }

    def apply(p: Any, x: Any) -> Any:
        h = jnp.tanh(x @ p["body"])
        return {"size": h @ p["size"], "kind": h @ p["kind"]}

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)])
    options = {"update": {"*": 1, "body": 0}, "batch": BATCH, "check": False, "frozen": "int8"}
    built = converter.build(model, loss=LOSS, calibration=(X, Y), **options)
    assert built.quantization is not None
    assert built.quantization.before.keys() == {"loss"}
    assert built.quantization.output_error < 0.05


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": {"sise": "mse"}}, r"loss: the model has no output 'sise'. Did you mean 'size'\? It has kind, size"),
        ({"loss": ["mse"]}, "loss: the model has 2 outputs, kind, size: pass a dict by these names"),
        ({"loss": {"size": None}}, "every output has None"),
        ({"loss": "mse", "loss_weights": [1, 2]}, "loss_weights is for losses by output"),
        ({"loss": LOSS, "loss_weights": {"size": "1"}}, "loss_weights: that of size must be a number"),
        ({"loss": LOSS, "loss_weights": {"a": 1}}, "loss_weights: the model has no output 'a'"),
        ({"loss": LOSS, "y": jax.ShapeDtypeStruct((1,), "int32")}, "y: the model has 2 outputs"),
        ({"loss": lambda o, y: y["a"], "y": {"a": "int32"}}, "y= describes y"),
    ],
)
def test_what_is_no_loss_of_outputs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converter.build(jax_model(), batch=2, **options)


def test_one_name_for_several_outputs_says_how_to_name_each() -> None:
    with pytest.raises(UnsupportedError, match=r"loss={'kind': \.\.\., 'size': \.\.\.} .*or pass a function"):
        converter.build(jax_model(), loss="mse", batch=2)


def test_a_function_that_fails_is_told_what_it_was_given() -> None:
    with pytest.raises(KeyError) as caught:
        converter.build(jax_model(), loss=lambda outputs, y: outputs[0] - y, batch=2)
    assert "It was given the 2 outputs of the model as a dict with the keys kind, size." in caught.value.__notes__


def test_an_output_that_has_a_name_of_the_step() -> None:
    def apply(params: Any, x: Any) -> Any:
        return {"loss": x @ params["size"], "b": x @ params["kind"]}

    with pytest.raises(UsageError, match=r"output named 'loss'.*rename the key"):
        converter.build(jax_model(apply), loss={"b": "mse"}, batch=2)


def test_an_output_that_is_not_row_by_row_has_no_loss() -> None:
    def apply(params: Any, x: Any) -> Any:
        return {"a": x @ params["size"], "mean": jnp.mean(x @ params["kind"], 0, keepdims=True)}

    with pytest.raises(UsageError, match=r"output mean has the shape \[1, 3\], which is not one row for each"):
        converter.build(jax_model(apply), loss={"a": "mse", "mean": "mse"}, batch=2)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "y: missing; pass a tuple or a dict with kind, size"),
        (Y["kind"], "y: the program takes 2 targets: pass a tuple or a dict with kind, size"),
        ({"kind": Y["kind"]}, "y: the target size is missing"),
        ({**Y, "sise": 1}, r"y: the program takes no target 'sise'. Did you mean 'size'\?"),
        ({**Y, "kind": Y["kind"] + CLASSES}, "y/kind: labels go from 0 to 2"),
        ({**Y, "kind": Y["kind"][None]}, r"y/kind: expected int32 \[rows\], got int32 \[1, 6\]"),
        ({**Y, "size": Y["size"][:3]}, "y/size has 3"),
    ],
)
def test_targets_that_do_not_fit(y: Any, message: str) -> None:
    with TrainingSession(program().data) as session, pytest.raises(UsageError, match=message):
        session.train(X, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([Y["kind"], Y["size"]], "y/kind: .* A list is read as rows, and the program takes one target, kind: pass its"),
        ([Y["kind"], Y["kind"]], "y/kind: .*got int32 .* A list is read as rows, .* takes one target, kind"),
        (Y, "y: the program takes no target 'size'. It has kind; an output without a loss has none"),
    ],
)
def test_targets_for_an_output_without_a_loss(y: Any, message: str) -> None:
    built = converter.build(net(), loss={"kind": "sparse_categorical_crossentropy"}, batch=BATCH, check=False)
    with TrainingSession(built.data) as session:
        with pytest.raises(UsageError, match=message):
            session.train(X, y)
        assert session.evaluate(X, Y["kind"]) == session.evaluate(X, {"kind": Y["kind"]})


def test_one_weight_a_row_for_all_outputs() -> None:
    weight = {name: np.ones(BATCH) for name in Y}
    message = r"weight: one number a row, which counts for all outputs, and not a dict \(size, kind\): .*loss_weights"
    with TrainingSession(program().data) as session:
        for method in (session.train, session.evaluate, session.fit):
            with pytest.raises(UsageError, match=message):
                method(X, Y, weight=weight)


def test_a_dict_where_the_program_takes_one_target() -> None:
    built = converter.build(jax_model(lambda p, x: x @ p["kind"]), batch=2, update={"kind": 1}, check=False)
    message = "y: the program takes one target, not a dict of them: pass its array"
    with TrainingSession(built.data) as session, pytest.raises(UsageError, match=message):
        session.train(X[:2], {"kind": Y["kind"][:2]})


def test_weights_of_classes_are_for_one_target() -> None:
    with (
        TrainingSession(program().data) as session,
        pytest.raises(UsageError, match="needs a program of one target; this one has 2"),
    ):
        session.fit(X, Y, class_weight={0: 2.0})


def test_nothing_adapts_what_only_an_output_without_a_loss_depends_on() -> None:
    built = converter.build(net(), loss={"size": "mse"}, update={"*kernel": converter.LoRA(1)}, batch=BATCH)
    adapted = {name for name in (p.name for p in built.manifest.parameters) if "lora" in name}
    assert adapted
    assert not [name for name in adapted if name.startswith(("kind/", "extra/"))]
