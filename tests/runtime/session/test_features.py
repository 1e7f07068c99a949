"""Training on what the frozen first layers gave, instead of running them in every step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from tests.models.zoo import CASES

ALL = ("train", "evaluate", "infer", "features")


def build(name: str, update, state: str = "variables", signatures=ALL) -> converter.Program:
    return converter.build(CASES[name].model(), update=update, batch=4, state=state, signatures=signatures)


@pytest.mark.parametrize(
    ("name", "update", "state"),
    [
        *((name, "head", state) for name in ("mlp", "lenet") for state in ("variables", "stateless")),
        *(("lenet", {"conv2/w": 0.5, "fc*": 1}, state) for state in ("variables", "stateless", "split")),
        *(("encoder", {"layers/1/*": "bias", "classifier/*": 1}, state) for state in ("variables", "stateless")),
    ],
)
def test_fit_gives_the_same_with_and_without_features(name: str, update, state: str) -> None:
    x, y = CASES[name].batch(10, 0)
    results = []
    for signatures in (ALL, ("train", "evaluate", "infer")):
        with TrainingSession(build(name, update, state, signatures).data) as session:
            history = session.fit(x, y, epochs=2, learning_rate=0.05, progress=False)
            results.append((history["loss"], session.parameters()))
    (with_features, trained), (without, expected) = results
    np.testing.assert_allclose(with_features, without, rtol=1e-5)
    for parameter, array in expected.items():
        np.testing.assert_allclose(trained[parameter], array, rtol=1e-4, atol=1e-6, err_msg=parameter)


@pytest.mark.parametrize("frozen", ["float32", "int8"])
def test_single_rows_keep_features_that_have_no_axis_for_the_row(frozen: str) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) / 10 for shape in ((64, 3, 32), (48, 64), (2, 48))]

    def row(params, x):  # as Equinox' layers are written: of one row, and mapped over the batch
        hidden = jax.nn.relu(jax.lax.conv(x.T[None], params[0].transpose(0, 2, 1), (1,), "VALID"))
        return params[2] @ jax.nn.relu(params[1] @ hidden[0].mean(-1))

    model = jax_frontend.Model(jax.vmap(row, (None, 0)), weights, [jax.ShapeDtypeStruct((1, 16, 32), jnp.float32)])
    x, y = rng.normal(size=(10, 16, 32)).astype(np.float32), rng.integers(0, 2, 10).astype(np.int32)
    trained = []
    for signatures in (ALL, ("train", "evaluate", "infer")):
        options = {} if frozen == "float32" else {"frozen": frozen, "calibration": x}
        built = converter.build(model, update={"2": 1}, batch=4, micro_batch=1, signatures=signatures, **options)
        with TrainingSession(built.data) as session:
            session.fit(x, y, epochs=2, learning_rate=0.05, seed=0, progress=False)
            trained.append(session.parameters()["2"])
    np.testing.assert_allclose(*trained, rtol=1e-5)
    assert np.abs(trained[0] - weights[2]).max() > 0.01, "the test would pass without training"


def test_features_in_integers_and_others_are_taken_in_the_order_in_which_they_are_given() -> None:
    x, y = CASES["lenet"].batch(10, 0)
    results = []
    for signatures in (ALL, ("train", "evaluate", "infer")):
        options = {"update": "skip-lora-2", "frozen": "int8", "calibration": x, "signatures": signatures}
        program = converter.build(CASES["lenet"].model(), batch=4, **options)
        if "features" in program.manifest.signatures:
            kept = program.manifest.signatures["features"].outputs
            assert {spec.dtype for spec in kept} == {"int8", "float32"}
        with TrainingSession(program.data) as session:
            history = session.fit(x, y, epochs=3, learning_rate=0.05, seed=0, progress=False)
            results.append((history["loss"], session.parameters()))
    (with_features, trained), (without, expected) = results
    np.testing.assert_allclose(with_features, without, rtol=1e-5)
    for parameter, array in expected.items():
        np.testing.assert_allclose(trained[parameter], array, rtol=1e-4, atol=1e-6, err_msg=parameter)


def test_a_step_on_features_does_only_the_rest_of_the_work() -> None:
    program = build("lenet", "head")
    kinds = {node.op.code for node in program.signatures["train_features"].nodes}
    assert "CONV_2D" not in kinds
    assert "CONV_2D" in {node.op.code for node in program.signatures["features"].nodes}
    assert not program.signatures["features"].parameters


def test_features_of_any_number_of_rows() -> None:
    x, _ = CASES["lenet"].batch(7, 0)
    with TrainingSession(build("lenet", "head").data) as session:
        features = session.features(x)
        assert features.shape == (7, 84)
        np.testing.assert_array_equal(features[:4], session.features(x[:4]))


def test_signatures_that_are_not_there() -> None:
    x, y = CASES["mlp"].batch(4, 0)
    with TrainingSession(build("mlp", "full", signatures=("train",)).data) as session:
        assert np.isfinite(session.train(x, y, learning_rate=0.01))
        with pytest.raises(UsageError, match="no signature 'features'"):
            session.features(x)
        with pytest.raises(UsageError, match="no signature 'infer'"):
            session.infer(x)
        with pytest.raises(UsageError, match="no signature 'evaluate'"):
            session.evaluate(x, y)
    with pytest.raises(UsageError, match="first layer trains"):
        build("mlp", "full")
    with pytest.raises(UsageError, match="Did you mean"):
        build("mlp", "full", signatures=("train", "evaluat"))
    with pytest.raises(UsageError, match="'train' is missing"):
        build("mlp", "full", signatures=("infer",))


@pytest.mark.quick
def test_what_is_read_with_rows_on_another_axis_is_kept_with_them_on_the_first() -> None:
    rng = np.random.default_rng(0)
    weights = {"frozen": rng.normal(size=(6, 6)), "trained": rng.normal(size=(6, 5, 2))}

    def apply(params, x):
        known = (x != 0).any(-1)  # [B, 5], read with the rows behind an axis of one as Keras' attention reads masks
        hidden = jnp.tanh(x @ params["frozen"])
        moved = jnp.moveaxis(hidden, 0, 2)  # [5, 6, B]
        told = jnp.einsum("tcb,ctk->btk", moved, params["trained"])
        return jnp.where(known[None, :, :, None], told[None], 0.0).sum((0, 2))

    params = {name: array.astype(np.float32) / 4 for name, array in weights.items()}
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((4, 5, 6), jnp.float32)])
    x, y = rng.normal(size=(10, 5, 6)).astype(np.float32), rng.integers(0, 2, 10).astype(np.int32)
    x[::3, 2:] = 0
    built = converter.build(model, update={"trained": 1}, optimizer="sgd", batch=4, signatures=("train", "features"))
    with TrainingSession(built.data) as session:
        kept = session.features(x)
        session.fit(x, y, epochs=2, learning_rate=0.05, shuffle=False, progress=False)
        trained = session.parameters()["trained"]
    assert [array.shape for array in kept] == [(10, 5, 6), (10, 5)]

    def loss(trained, x, y):
        logits = apply(params | {"trained": trained}, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    expected = params["trained"]
    for _ in range(2):
        for start in range(0, 10, 4):
            rows = slice(start, start + 4)
            expected = expected - 0.05 * jax.grad(loss)(expected, x[rows], y[rows])
    np.testing.assert_allclose(trained, expected, rtol=1e-5, atol=1e-6)
