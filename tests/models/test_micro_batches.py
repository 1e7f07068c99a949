"""Steps on micro-batches against JAX and optax on whole batches, and against the same program without them."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

import converter
from converter.runtime import TrainingSession, UnderflowWarning
from converter.runtime.interpreters.entry import SignatureEntry
from converter.support.errors import DeviceError, NumericError, UsageError
from tests.models.oracle import Oracle
from tests.models.test_recurrent import batch as recurrent_batch
from tests.models.test_recurrent import keras_model
from tests.models.zoo import CASES

BATCH, STEPS = 4, 4
STATES = ("variables", "stateless", "split")
#: Clipping looks at the gradient of the whole batch: wrong if an update saw that of a micro-batch.
OPTIMIZERS = {
    "sgd": optax.sgd(1.0),
    "clipped adamw": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1.0, eps=1e-5)),
    "biases stay": optax.multi_transform(
        {"moves": optax.sgd(1.0), "stays": optax.set_to_zero()},
        lambda params: jax.tree.map(lambda leaf: "moves" if leaf.ndim > 1 else "stays", params),
    ),
}
RATES = {"sgd": 0.05, "clipped adamw": 3e-4, "biases stay": 0.05}


def built(name: str = "mlp", micro_batch: int | None = 2, **options: Any) -> converter.Program:
    case = CASES[name]
    given = {"optimizer": OPTIMIZERS["sgd"], "update": case.update("full"), "batch": BATCH, "check": False} | options
    return converter.build(case.model(), micro_batch=micro_batch, **given)


def weights(step: int) -> np.ndarray:
    """Rows count differently; in some steps the last micro-batch, or half of one, not at all."""
    weight = np.linspace(0.5, 2, BATCH, dtype=np.float32)
    weight[BATCH - step % 3 :] = 0
    return weight


@pytest.mark.parametrize(
    ("name", "micro_batch", "state", "optimizer"),
    [
        *(("mlp", 2, "variables", optimizer) for optimizer in OPTIMIZERS),
        *(("lenet", 1, state, "clipped adamw") for state in ("variables", "stateless")),
        ("encoder", 1, "variables", "clipped adamw"),
        ("flax-cnn", 2, "stateless", "sgd"),
        *(("mlp", rows, "split", "clipped adamw") for rows in (1, 2, 4)),
        *(("mlp", 2, state, "biases stay") for state in ("stateless", "split")),
        ("lenet", 2, "split", "sgd"),
        pytest.param("mobilenetv2-0.35", 1, "variables", "sgd", marks=pytest.mark.slow),
    ],
)
def test_steps_equal_jax_and_optax(name: str, micro_batch: int, state: str, optimizer: str) -> None:
    case, rule = CASES[name], OPTIMIZERS[optimizer]
    program = built(name, micro_batch, optimizer=rule, state=state, signatures=("train",))
    oracle = Oracle(case.model(), {row.parameter: row.fraction for row in program.table}, rule)
    start = oracle.whole
    with TrainingSession(program.data) as session:
        for i in range(STEPS):
            x, y = case.batch(BATCH, i)
            wanted = oracle.train(x, y, RATES[optimizer], weights(i))
            assert session.train(x, y, RATES[optimizer], weights(i)) == pytest.approx(wanted, rel=1e-4)
        found = session.parameters()
    moved = 0.0
    for parameter, array in oracle.parameters().items():
        scale = np.abs(array).max()
        assert np.abs(found[parameter] - array).max() <= 1e-4 * scale, parameter
        moved = max(moved, np.abs(array - start[parameter]).max() / (scale or 1))
    assert moved > 1e-3, "the test would pass without training"


def test_a_short_batch_and_evaluation_are_those_of_the_whole_batch() -> None:
    case = CASES["mlp"]
    with TrainingSession(built(micro_batch=None).data) as whole, TrainingSession(built().data) as parts:
        x, y = case.batch(BATCH, 0)
        for session in (whole, parts):
            session.train(x[:3], y[:3], 0.1)
        assert_same_weights(whole, parts)
        many = [np.concatenate(a) for a in zip(*(case.batch(BATCH, i) for i in range(3)), strict=True)]
        assert whole.fit(*many, epochs=2, learning_rate=0.1, progress=False)["loss"] == pytest.approx(
            parts.fit(*many, epochs=2, learning_rate=0.1, progress=False)["loss"], rel=1e-5
        )
        assert_same_weights(whole, parts)
        assert whole.evaluate(x[:3], y[:3]) == pytest.approx(parts.evaluate(x[:3], y[:3]), rel=1e-5)
        np.testing.assert_allclose(whole.infer(many[0][:5]), parts.infer(many[0][:5]), rtol=1e-5, atol=1e-6)


def test_cached_features_are_trained_on_in_micro_batches() -> None:
    case = CASES["mlp"]
    x, y = (np.concatenate(a) for a in zip(*(case.batch(BATCH, i) for i in range(2)), strict=True))
    options = {"update": "head", "signatures": ("train", "evaluate", "features")}
    with (
        TrainingSession(built(micro_batch=None, **options).data) as whole,
        TrainingSession(built(**options).data) as parts,
    ):
        assert {"accumulate_features", "apply"} <= parts.manifest.signatures.keys()
        for session in (whole, parts):
            session.fit(x, y, epochs=3, progress=False)
        assert_same(whole, parts)


@pytest.mark.parametrize("state", STATES)
def test_a_step_that_ends_in_the_middle_leaves_nothing_behind(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, program = CASES["mlp"], built(state=state)
    x, y = case.batch(BATCH, 0)
    with TrainingSession(program.data) as undisturbed, TrainingSession(program.data) as session:
        undisturbed.train(x, y, 0.1)
        before = session.state()
        with monkeypatch.context() as patch:
            patch.setattr(SignatureEntry, "invoke", failing_at(program.manifest.step, 2, SignatureEntry.invoke))
            with pytest.raises(DeviceError):
                session.train(x, y, 0.1)
        assert all(np.array_equal(array, before[name]) for name, array in session.state().items())
        session.train(x, y, 0.1)
        assert_same(undisturbed, session, exactly=True)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("back", ["reset", "restore"])
def test_a_diverged_step_is_gone_after(back: str, state: str, tmp_path: Any) -> None:
    case, program = CASES["mlp"], built(state=state)
    x, y = case.batch(BATCH, 0)
    with TrainingSession(program.data) as undisturbed, TrainingSession(program.data) as session:
        session.save(tmp_path / "state")
        huge = x.copy()
        huge[-1] = 3e38
        with pytest.raises(NumericError):
            session.train(huge, y, 0.1)
        session.reset() if back == "reset" else session.restore(tmp_path / "state")
        for each in (undisturbed, session):
            each.train(x, y, 0.1)
        assert_same(undisturbed, session, exactly=True)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *(("mlp", optimizer) for optimizer in ("sgd", "momentum", "rmsprop", "lion")),
        ("lenet", "adam"),
        ("encoder", "adamw"),
        ("gru", "adagrad"),
    ],
)
def test_fifty_split_steps_are_those_of_a_whole_step(name: str, optimizer: str) -> None:
    """Every named optimizer; in small programs the gradients are scaled on their way too, which changes no bit."""
    model = keras_model("gru", length=10) if name == "gru" else CASES[name].model()
    options: dict[str, Any] = {"optimizer": optimizer, "batch": BATCH, "signatures": ("train",), "check": False}
    kinds: list[dict[str, Any]] = [{"state": "stateless"}, {"state": "split"}]
    kinds += [{"state": "split", "loss_scale": 1024}] if name == "mlp" else []
    sessions = [TrainingSession(converter.build(model, **options, **kind).data) for kind in kinds]
    rate = {"lion": 1e-4, "adagrad": 0.01}.get(optimizer, 1e-3)
    for i in range(50):
        x, y = recurrent_batch(10) if name == "gru" else CASES[name].batch(BATCH, i)
        losses = [session.train(x, y, rate, weights(i)) for session in sessions]
        np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
    whole, *others = (session.state() for session in sessions)
    for tensor, array in whole.items():
        assert np.abs(others[0][tensor] - array).max() <= 1e-6 * np.abs(array).max(), tensor
        np.testing.assert_array_equal(others[0][tensor], others[-1][tensor])


def in_float16(invoke: Callable[[SignatureEntry], None]) -> Callable[[SignatureEntry], None]:
    """`Entry.invoke` of an engine that rounds to float16 and stays at 131008 where that ends."""

    def rounding(entry: SignatureEntry) -> None:
        invoke(entry)
        for spec in entry.signature.giving("gradient"):
            exact = entry.output(spec.name).copy()
            with np.errstate(over="ignore"):
                rounded = exact.astype(np.float16).astype(np.float32)
            entry.output(spec.name)[...] = np.where(np.abs(exact) < 65520, rounded, np.copysign(131008, exact))

    return rounding


def test_gradients_beyond_float16_are_seen_and_a_loss_scale_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = CASES["mlp"].batch(BATCH, 0)
    with TrainingSession(built(state="split").data) as session:  # an engine of float32 has no such bounds
        expected = {factor: session.train(x * factor, y, 0.0) for factor in (1e7, 1e-9)}
    monkeypatch.setattr(SignatureEntry, "invoke", in_float16(SignatureEntry.invoke))
    monkeypatch.setattr(SignatureEntry, "rounds_to_float16", True)
    for factor, scale in ((1e7, 2.0**-12), (1e-9, 2.0**16)):
        with TrainingSession(built(state="split", update={"layers/0/w": 1}).data) as session:
            before = session.state()
            if factor > 1:
                with pytest.raises(NumericError, match=r"gradient of layers/0/w overflows, .* 131008: .* loss_scale"):
                    session.train(x * factor, y, 0.1)
            else:
                with pytest.warns(UnderflowWarning, match="gradient of layers/0/w is zero in float16"):
                    session.train(x * factor, y, 0.1)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # it is said once
                    session.train(x * factor, y, 0.1)
            assert all(np.array_equal(array, before[name]) for name, array in session.state().items())
        scaled = built(state="split", update={"layers/0/w": 1}, loss_scale=scale)
        assert scaled.manifest.loss_scale == scale
        with TrainingSession(scaled.data) as session, warnings.catch_warnings():
            warnings.simplefilter("error")
            assert session.train(x * factor, y, 0.1) == pytest.approx(expected[factor], rel=1e-5)
            assert not np.array_equal(session.state()["layers/0/w"], before["layers/0/w"])


def test_both_exports_are_one_program(tmp_path: Any) -> None:
    """A state goes from one to the other and trains on."""
    case, programs = CASES["mlp"], [built(state=state) for state in ("variables", "stateless")]
    assert programs[0].manifest.graph_hash == programs[1].manifest.graph_hash
    x, y = case.batch(BATCH, 0)
    with TrainingSession(programs[0].data) as one, TrainingSession(programs[1].data) as other:
        one.train(x, y, 0.1)
        one.save(tmp_path / "state")
        other.restore(tmp_path / "state")
        for session in (one, other):
            session.train(x, y, 0.1)
        assert_same(one, other)


@pytest.mark.parametrize("micro_batch", [0, 3, 8, 1.5, "2"])
def test_a_micro_batch_divides_the_batch(micro_batch: Any) -> None:
    with pytest.raises(UsageError, match="micro_batch"):
        built(micro_batch=micro_batch)


def test_memory_is_that_of_a_micro_batch() -> None:
    whole, parts = built("lenet", None).costs, built("lenet", 1).costs
    assert parts["residual_bytes"] * BATCH == pytest.approx(whole["residual_bytes"], rel=0.01)
    assert parts["flops_forward"] == pytest.approx(whole["flops_forward"], rel=1e-3)
    assert parts["trained_parameters"] == whole["trained_parameters"]


def assert_same(a: TrainingSession, b: TrainingSession, exactly: bool = False) -> None:
    """The state of both; a sum in another order may differ in the last bits."""
    for (name, one), other in zip(a.state().items(), b.state().values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if exactly else 1e-6, err_msg=name)


def assert_same_weights(a: TrainingSession, b: TrainingSession) -> None:
    """As the model has them: programs for other numbers of rows may keep a matrix the other way round."""
    for (name, one), other in zip(a.parameters().items(), b.parameters().values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6, err_msg=name)


def failing_at(signature: str, call: int, invoke: Callable[[SignatureEntry], None]) -> Callable[[SignatureEntry], None]:
    """`Entry.invoke` that gives up at the n-th call of a signature, after the runtime has done its work."""
    calls = 0

    def failing(entry: SignatureEntry) -> None:
        nonlocal calls
        invoke(entry)
        calls += entry.name == signature
        if calls == call:
            raise DeviceError("out of memory")

    return failing
