"""`keep_base`: steps minimize the loss and how far the model's probabilities are from the base's, as JAX has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pocketune
from converter.support.errors import UsageError
from tests.steps import assert_alike, stepped

WEIGHT, RATE, STEPS = 0.7, 0.05, 5
RNG = np.random.default_rng(0)
Params = dict[str, Any]


def drawn(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(max(np.prod(shape[:-1]), 1))).astype(np.float32)


DENSE: Params = {"first": drawn(5, 16), "bias": drawn(16), "head": drawn(16, 4)}
CONV: Params = {"first": drawn(3, 3, 2, 6), "second": drawn(3, 3, 6, 8), "head": 4 * drawn(8, 4)}
WORDS: Params = {
    "table": drawn(20, 16),
    "q": drawn(16, 16),
    "k": drawn(16, 16),
    "v": drawn(16, 16),
    "head": drawn(16, 20),
}
Y = RNG.integers(0, 4, 6).astype(np.int32)
ROW_WEIGHTS = np.array([1, 2, 0, 1, 0.5, 1], np.float32)


def dense(p: Params, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["first"] + p["bias"]) @ p["head"]


def convolved(x: jax.Array, filters: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv(p: Params, x: jax.Array) -> jax.Array:
    return jnp.tanh(convolved(jnp.tanh(convolved(x, p["first"])), p["second"])).mean((1, 2)) @ p["head"]


def words(p: Params, ids: jax.Array) -> jax.Array:
    x = p["table"][ids]
    q, k, v = (x @ p[name] for name in "qkv")
    scores = jnp.where(np.tri(ids.shape[1], dtype=bool), q @ k.transpose(0, 2, 1) / 4, -1e9)
    return (x + jax.nn.softmax(scores) @ v) @ p["head"]


class Case:
    """A model with rows of it."""

    def __init__(self, apply: Callable, params: Params, x: np.ndarray, y: np.ndarray, loss: str) -> None:
        self.apply, self.params, self.x, self.y, self.loss = apply, params, x, y, loss

    def build(self, **options: Any) -> pocketune.Program:
        model = pocketune.Model(self.apply, self.params, [jax.ShapeDtypeStruct(self.x.shape, self.x.dtype)])
        asked = {"batch": len(self.x), "loss": self.loss, "optimizer": "adam", "keep_base": WEIGHT}
        return pocketune.build(model, **(asked | options))


CASES = {
    "dense": Case(dense, DENSE, drawn(6, 5), Y, "sparse_categorical_crossentropy"),
    "conv": Case(conv, CONV, drawn(6, 5, 5, 2), Y, "sparse_categorical_crossentropy"),
    "words": Case(
        words,
        WORDS,
        RNG.integers(0, 20, (6, 7)).astype(np.int32),
        np.where(RNG.random((6, 7)) < 0.4, -1, RNG.integers(0, 20, (6, 7))).astype(np.int32),
        "next_token",
    ),
}


def of_rows(separate: jax.Array, y: np.ndarray) -> jax.Array:
    """Return the mean over the places of each row that have a label."""
    if y.ndim == 1:
        return separate
    counts = (y >= 0).astype(np.float32)
    return (separate * counts).sum(1) / np.maximum(counts.sum(1), 1)


def divergence(base: jax.Array, logits: jax.Array) -> jax.Array:
    p, q = jax.nn.log_softmax(base), jax.nn.log_softmax(logits)
    return (jnp.exp(p) * (p - q)).sum(-1)


def merged(case: Case, trained: Mapping[str, jax.Array]) -> Params:
    """Return the weights of the model that JAX computes with, from what a program trains."""
    whole = {name: jnp.asarray(array) for name, array in case.params.items()}
    for name, value in trained.items():
        weight, _, part = name.partition("/")
        if not part:
            whole[weight] = value
        elif part == "lora_b":
            whole[weight] += 2 * jnp.tensordot(trained[f"{weight}/lora_a"], value, 1)
        elif part == "change":
            whole[weight] = whole[weight].at[..., : value.shape[-2], :].add(value)
    for name in (name for name in trained if name.endswith("lora_magnitude")):
        weight = name.partition("/")[0]
        lengths = jnp.sqrt((whole[weight] ** 2).sum(tuple(range(whole[weight].ndim - 1))))
        whole[weight] *= trained[name] / jax.lax.stop_gradient(lengths)
    return whole


def in_jax(case: Case, trained: Mapping[str, np.ndarray], weight: float = WEIGHT) -> tuple[list[float], Params]:
    """Return the losses of the same steps, and what trains behind them."""
    base = case.apply(case.params, case.x)

    def minimized(values: Params) -> jax.Array:
        logits = case.apply(merged(case, values), case.x)
        surprise = -jnp.take_along_axis(jax.nn.log_softmax(logits), np.maximum(case.y, 0)[..., None], -1)[..., 0]
        rows = of_rows(surprise + weight * divergence(base, logits), case.y)
        return (rows * ROW_WEIGHTS).sum() / ROW_WEIGHTS.sum()

    values: Any = {name: jnp.asarray(array) for name, array in trained.items()}
    adam = optax.adam(RATE)
    state, losses, step = adam.init(values), [], jax.jit(jax.value_and_grad(minimized))
    for _ in range(STEPS):
        loss, gradients = step(values)
        updates, state = adam.update(gradients, state)
        values = optax.apply_updates(values, updates)
        losses.append(float(loss))
    return losses, values


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dense", {}),
        ("dense", {"update": "head"}),
        ("dense", {"update": {"*": 0, "first": pocketune.LoRA(2, 4), "bias": 1}, "micro_batch": 2}),
        ("dense", {"update": {"*": 0, "first": pocketune.LoRA(2, 4, dora=True)}}),
        ("dense", {"update": {"*": 0, "head": pocketune.Channels(0.5)}, "state": "split"}),
        ("conv", {}),
        ("conv", {"update": {"*": 0, "first": pocketune.LoRA(2, 4), "second": pocketune.LoRA(2, 4, dora=True)}}),
        ("words", {"state": "stateless"}),
        ("words", {"update": {"*": 0, "[qkv]": pocketune.LoRA(2, 4)}}),
        ("words", {"update": {"*": 0, "[qkv]": pocketune.LoRA(2, 4), "head": 1}, "micro_batch": 3}),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(map(str, one)) or "full",
)
def test_steps_are_those_of_jax(name: str, options: dict[str, Any]) -> None:
    case = CASES[name]
    program = case.build(**options)
    before = stepped(program, []).parameters
    found = stepped(program, [(case.x, case.y, ROW_WEIGHTS)] * STEPS, RATE)
    wanted, values = in_jax(case, before)
    np.testing.assert_allclose(found.losses, wanted, rtol=2e-5)
    assert_alike(found.parameters, values, rtol=1e-3, atol=2e-4)
    plain, _ = in_jax(case, before, 0)
    assert abs(plain[-1] - found.losses[-1]) > 1e-4  # the penalty is seen


def kl(base: Any, logits: Any) -> np.ndarray:
    """Return the divergence of two arrays of logits, along the last axis."""
    p, q = (np.asarray(jax.nn.log_softmax(np.asarray(v, np.float64))) for v in (base, logits))
    return (np.exp(p) * (p - q)).sum(-1)


def test_train_gives_the_plain_loss_and_the_penalty_and_evaluate_the_plain_one() -> None:
    """Of frozen weights in int8, int4 and float16 the base is the model that is built, not the one before."""
    rng = np.random.default_rng(3)
    wide = {"first": 3 * drawn(64, 256), "bias": drawn(256), "head": drawn(256, 64)}
    x, y = rng.standard_normal((4, 64)).astype(np.float32), rng.integers(0, 64, 4).astype(np.int32)
    case = Case(dense, wide, x, y, "sparse_categorical_crossentropy")
    for frozen in ("int4-blockwise", "float16", "int8"):
        samples = {"calibration": (x, y)} if frozen == "int8" else {}
        program = case.build(update={"*": 0, "first": pocketune.LoRA(4, 8)}, frozen=frozen, optimizer="sgd", **samples)
        with pocketune.TrainingSession(program.data) as session:
            base = session.infer(x)
            for step in range(4):
                wanted = session.evaluate(x, y)["loss"] + WEIGHT * kl(base, session.infer(x)).mean()
                assert session.train(x, y, 0.5) == pytest.approx(wanted, rel=1e-4), (frozen, step)
            assert kl(base, session.infer(x)).mean() > 1e-3


def test_a_sigmoid_is_kept_number_by_number() -> None:
    case = Case(dense, DENSE, CASES["dense"].x, RNG.integers(0, 2, (6, 4)).astype(np.float32), "binary_crossentropy")
    program = case.build(optimizer="sgd")
    with pocketune.TrainingSession(program.data) as session:
        base = np.asarray(session.infer(case.x), np.float64)
        for _ in range(3):
            now = np.asarray(session.infer(case.x), np.float64)
            p, q = 1 / (1 + np.exp(-base)), 1 / (1 + np.exp(-now))
            separate = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
            wanted = session.evaluate(case.x, case.y)["loss"] + WEIGHT * separate.mean()
            assert session.train(case.x, case.y, 1.0) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.filterwarnings("ignore:the learning rate is 0")
def test_a_keras_model_with_a_softmax_and_dropout_keeps_the_base_without_dropout() -> None:
    """Of two classes and one row the loss tells what the model said, dropout and all."""
    import keras

    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(2, "softmax")]
    )
    x, y = np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32), np.zeros(1, np.int32)
    given = []
    for weight in (0.0, WEIGHT):
        options: dict[str, Any] = {"loss": "sparse_categorical_crossentropy", "dropout": "train", "optimizer": "sgd"}
        program = pocketune.build(model, batch=1, keep_base=weight, **options)
        given.append(stepped(program, [(x, y)] * 4, 0.0).losses)
    base = np.log(np.asarray(model(x), np.float64))[0]
    plain, kept = np.array(given, np.float64)
    said = np.stack([-plain, np.log(-np.expm1(-plain))], -1)
    np.testing.assert_allclose(kept - plain, WEIGHT * kl(base, said), rtol=1e-3, atol=1e-6)
    assert np.ptp(plain) > 0.01  # masks were drawn


@pytest.mark.filterwarnings("ignore:the learning rate is 0")
def test_batch_norm_by_the_batch_is_kept_near_what_the_base_infers() -> None:
    import keras

    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(9), keras.layers.BatchNormalization(), keras.layers.Dense(2, "softmax")]
    )
    x, y = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32), np.zeros(5, np.int32)
    almost = np.array([1, *[1e-9] * 4], np.float32)  # all rows count in the statistics, and one in the loss
    given = []
    for weight in (0.0, WEIGHT):
        program = pocketune.build(model, batch=5, keep_base=weight, batch_norm="train", optimizer="sgd")
        given.append(stepped(program, [(x, y, almost)] * 2, 0.0).losses)
    base = np.log(np.asarray(model(x[:1]), np.float64))[0]
    (plain, _), (kept, _) = given
    said = np.array([-plain, np.log(-np.expm1(-plain))])
    assert kept - plain == pytest.approx(WEIGHT * float(kl(base, said)), rel=1e-4)
    assert given[1][0] == pytest.approx(given[1][1], rel=1e-5)  # moving statistics went on, the base stayed


def test_pytorch_takes_the_same_steps() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.GELU(), torch.nn.Linear(12, 4))
    x, y = CASES["dense"].x, Y
    program = pocketune.build(
        module,
        inputs=(torch.from_numpy(x),),
        loss=torch.nn.CrossEntropyLoss(),
        batch=6,
        optimizer="sgd",
        keep_base=WEIGHT,
    )
    losses = stepped(program, [(x, y)] * STEPS, 0.5).losses
    rows, labels = torch.from_numpy(x), torch.from_numpy(y).long()
    base = module(rows).log_softmax(-1).detach()
    optimizer, wanted = torch.optim.SGD(module.parameters(), 0.5), []
    for _ in range(STEPS):
        now = module(rows).log_softmax(-1)
        loss = torch.nn.functional.nll_loss(now, labels) + WEIGHT * torch.nn.functional.kl_div(
            now, base, log_target=True, reduction="batchmean"
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)


def products(program: pocketune.Program) -> int:
    """Return how many matrix products and convolutions a step has."""
    kinds = ("FullyConnected", "BatchMatmul", "Conv2D")
    return sum(node.op.name.endswith(kinds) for node in program.signatures["train"].nodes)


def test_the_frozen_prefix_is_computed_once() -> None:
    case = CASES["conv"]
    for update, again in (("head", 1), ("full", 3), ({"*": 0, "second": pocketune.LoRA(2, 4)}, 1)):
        kept, plain = (case.build(update=update, keep_base=weight) for weight in (WEIGHT, 0))
        assert products(kept) - products(plain) == again, update


def test_features_and_states_are_those_of_a_build_without_it(tmp_path: Path) -> None:
    """What is trained is the same, so a state goes on in the other program; the manifest says the weight."""
    case = CASES["conv"]
    options: dict[str, Any] = {"update": "head", "signatures": ("train", "evaluate", "infer", "features")}
    kept, plain = case.build(**options), case.build(**options, keep_base=0)
    assert (kept.manifest.keep_base, plain.manifest.keep_base) == (WEIGHT, 0)
    with pocketune.TrainingSession(plain.data) as session:
        session.train(case.x, case.y, RATE)
        moved = np.asarray(session.infer(case.x))
        session.save(tmp_path / "trained.state")
    with pocketune.TrainingSession(kept.data) as session:
        base = np.asarray(session.infer(case.x))
        session.restore(tmp_path / "trained.state")
        np.testing.assert_array_equal(np.asarray(session.infer(case.x)), moved)
        wanted = session.evaluate(case.x, case.y)["loss"] + WEIGHT * kl(base, moved).mean()
        on_features = session.fit(case.x, case.y, epochs=1, learning_rate=RATE, progress=False, shuffle=False)
        assert on_features["loss"][0] == pytest.approx(wanted, rel=1e-4)
        session.restore(tmp_path / "trained.state")
        assert session.train(case.x, case.y, RATE) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": "mse"}, "the loss mse is not known to read any"),
        ({"loss": lambda outputs, y: (outputs - y).sum(-1)}, "is not known to read any"),
        ({"keep_base": -0.1}, "a number from 0"),
        ({"keep_base": True}, "a number from 0"),
        ({"keep_base": float("nan")}, "a number from 0"),
    ],
    ids=lambda one: one if isinstance(one, str) else ", ".join(one),
)
def test_what_has_no_base_to_keep_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CASES["dense"].build(**options)


def test_classes_that_come_later_are_refused() -> None:
    def with_bias(p: Params, x: jax.Array) -> jax.Array:
        return dense(p, x) + p["last"]

    case = Case(with_bias, DENSE | {"last": np.zeros(4, np.float32)}, CASES["dense"].x, Y, CASES["dense"].loss)
    with pytest.raises(UsageError, match="it knew neither the classes of a fresh head nor those that come later"):
        case.build(classes="4+3")


def test_several_losses_are_refused_and_one_of_several_outputs_is_not() -> None:
    def two(p: Params, x: jax.Array) -> dict[str, jax.Array]:
        hidden = jnp.tanh(x @ p["first"] + p["bias"])
        return {"kind": hidden @ p["head"], "size": hidden.sum(-1, keepdims=True)}

    x = CASES["dense"].x
    named = "sparse_categorical_crossentropy"
    with pytest.raises(UsageError, match="2 have a loss"):
        Case(two, DENSE, x, Y, {"kind": named, "size": "mse"}).build()  # type: ignore[arg-type]
    program = Case(two, DENSE, x, Y, {"kind": named, "size": None}).build()  # type: ignore[arg-type]
    assert program.manifest.keep_base == WEIGHT
