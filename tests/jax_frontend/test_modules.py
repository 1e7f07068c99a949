"""Modules of nnx, linen, Equinox and Haiku as they are: trained as the libraries themselves train them."""

from __future__ import annotations

from typing import Any

import equinox
import haiku
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.errors import ScopeParamShapeError

import converter
from converter.support.errors import UnsupportedError, UsageError
from jax_frontend import Model
from tests.steps import Stepped, assert_alike, stepped

IMAGE = [jax.ShapeDtypeStruct((1, 6, 6, 2), "float32")]
ROW = [jax.ShapeDtypeStruct((1, 4), "float32")]
RNG = np.random.default_rng(0)
BATCH, RATE = 4, 0.2


class Block(nnx.Module):
    def __init__(self, channels: int, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(channels, channels, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(channels, momentum=0.8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + nnx.relu(self.norm(self.conv(x)))


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float = 0.0) -> None:
        self.stem = nnx.Conv(2, 4, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([Block(4, rngs) for _ in range(2)])
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.head = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(x.mean((1, 2))))


class LinenNet(nn.Module):
    rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for _ in range(2):
            x = nn.Conv(4, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.8)(x))
        x = nn.Dropout(self.rate, deterministic=not train)(x.mean((1, 2)))
        return nn.Dense(3)(x)


def examples(rows: int = 3 * BATCH) -> tuple[np.ndarray, np.ndarray]:
    return RNG.standard_normal((rows, 6, 6, 2)).astype(np.float32), RNG.integers(0, 3, rows).astype(np.int32)


def batches(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]


def mean_loss(logits: jax.Array, y: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(y)).mean()


def by_nnx(net: Net, x: np.ndarray, y: np.ndarray, in_training: bool) -> tuple[list[float], dict[str, np.ndarray]]:
    """The same steps by nnx and optax."""
    (net.train if in_training else net.eval)()
    optimizer = nnx.Optimizer(net, optax.sgd(RATE), wrt=nnx.Param)
    losses = []
    for a, b in batches(x, y):
        loss, gradients = nnx.value_and_grad(lambda n, a=a, b=b: mean_loss(n(jnp.asarray(a)), b))(net)
        optimizer.update(net, gradients)
        losses.append(float(loss))
    state = nnx.state(net, (nnx.Param, nnx.BatchStat))
    return losses, {"/".join(map(str, path)): np.asarray(v[...]) for path, v in nnx.to_flat_state(state)}


def assert_same(found: Stepped, expected: tuple[list[float], dict[str, np.ndarray]]) -> None:
    """All that a program trains is what another trains, which may name more."""
    losses, weights = expected
    np.testing.assert_allclose(found.losses, losses, rtol=2e-5)
    assert_alike(found.parameters, {name: weights[name] for name in found.parameters}, rtol=2e-4, atol=2e-6)


@pytest.mark.quick
@pytest.mark.parametrize("batch_norm", ["fixed", "train"])
def test_an_nnx_module_trains_as_nnx_trains_it(batch_norm: str) -> None:
    net, (x, y) = Net(nnx.Rngs(0)), examples()
    program = converter.build(net, optimizer=optax.sgd(RATE), batch=BATCH, batch_norm=batch_norm, inputs=IMAGE)
    assert program.manifest.name == "Net"
    found = stepped(program, batches(x, y), RATE)
    assert "blocks/1/norm/scale" in found.parameters
    assert ("blocks/1/norm/mean" in found.parameters) == (batch_norm == "train")
    assert not net.drop.deterministic, "the module itself stays as it was"
    assert_same(found, by_nnx(net, x, y, batch_norm == "train"))


def test_a_function_of_an_nnx_module() -> None:
    net = Net(nnx.Rngs(0), rate=0.5)
    x, _ = examples(BATCH)
    model = Model(lambda m, x: jax.nn.softmax(m(x)), net, IMAGE, name="mine")
    program = converter.build(model, loss="categorical_crossentropy", batch=BATCH)
    assert program.manifest.name == "mine"
    with converter.runtime.TrainingSession(program.data) as session:
        net.eval()
        np.testing.assert_allclose(session.infer(x), jax.nn.softmax(net(jnp.asarray(x))), rtol=1e-4, atol=1e-6)


def linen(rate: float = 0.0) -> tuple[LinenNet, Any]:
    net = LinenNet(rate)
    return net, net.init(jax.random.key(0), jnp.zeros((1, 6, 6, 2)))


@pytest.mark.parametrize(
    ("spelling", "batch_norm"),
    [("module", "train"), ("apply", "fixed"), ("function", "train"), ("bound", "fixed"), ("bound", "train")],
)
def test_a_linen_module_trains_as_flax_trains_it(spelling: str, batch_norm: str) -> None:
    net, variables = linen()
    model = {
        "module": lambda: Model(net, variables, IMAGE),
        "apply": lambda: Model(net.apply, variables, IMAGE),
        "function": lambda: Model(lambda v, x: net.apply(v, x, train=False), variables, IMAGE),
        "bound": lambda: Model(net.bind(variables), inputs=IMAGE),
    }[spelling]()
    x, y = examples()
    program = converter.build(model, optimizer=optax.sgd(RATE), batch=BATCH, batch_norm=batch_norm)
    found = stepped(program, batches(x, y), RATE)
    in_training = batch_norm == "train"
    params, stats, losses = variables["params"], variables["batch_stats"], []
    for a, b in batches(x, y):

        def loss(p: Any, stats: Any = stats, a: Any = a, b: Any = b) -> Any:
            out = net.apply({"params": p, "batch_stats": stats}, a, in_training, mutable=["batch_stats"])
            return mean_loss(out[0], b), out[1]

        (value, updated), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
        stats = updated["batch_stats"] if in_training else stats
        losses.append(float(value))
    leaves = jax.tree_util.tree_flatten_with_path({"params": params, "batch_stats": stats})[0]
    assert_same(found, (losses, {"/".join(k.key for k in path): leaf for path, leaf in leaves}))


def test_a_build_without_statistics_among_the_parameters_says_so() -> None:
    net, variables = linen()
    rest = {"batch_stats": variables["batch_stats"]}
    model = Model(lambda p, x: net.apply({"params": p, **rest}, x), variables["params"], IMAGE)
    with pytest.raises(UsageError, match="batch_stats"):
        converter.build(model, batch=BATCH, batch_norm="train")


def test_dropout_of_modules_acts_in_a_step() -> None:
    """At rate 1 - 1/1000 next to nothing is left of what feeds the head, whose kernel then hardly moves."""
    x, y = examples(BATCH)
    net, variables = linen(0.999)
    for model in (Net(nnx.Rngs(0), rate=0.999), net.bind(variables)):
        moved = []
        for dropout in ("off", "train"):
            program = converter.build(
                model, optimizer=optax.sgd(RATE), batch=BATCH, dropout=dropout, inputs=IMAGE, check=False
            )
            assert any("Dropout(rate=0.999)" in note.why for note in program.notes)
            with converter.runtime.TrainingSession(program.data) as session:
                before = session.infer(x)
                session.train(x, y)
                kernels = {name: v for name, v in session.parameters().items() if name.endswith("kernel")}
                head = kernels.get("head/kernel", kernels.get("params/Dense_0/kernel"))
                moved.append(np.abs(head - _head(model)).max())
                assert np.isfinite(before).all()
        assert moved[0] > 0
        assert moved[1] != moved[0]


def _head(model: Any) -> np.ndarray:
    if isinstance(model, nnx.Module):
        return np.asarray(model.head.kernel[...])
    return np.asarray(model.variables["params"]["Dense_0"]["kernel"])


def test_an_attention_that_drops_weights_is_noted() -> None:
    class Attends(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.mha = nnx.MultiHeadAttention(2, 4, dropout_rate=0.3, decode=False, rngs=rngs)
            self.head = nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.head(self.mha(x).mean(1))

    program = converter.build(
        Attends(nnx.Rngs(0)), batch=2, inputs=[jax.ShapeDtypeStruct((1, 5, 4), "float32")], check=False
    )
    assert any(note.subject == "mha" and "rate=0.3" in note.why for note in program.notes)


def test_a_masked_batch_norm_is_not_trained_by_the_batch() -> None:
    class Masked(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.head = nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.head(self.norm(x, mask=x[:, :1] > 0))

    net = Masked(nnx.Rngs(0))
    assert {n.subject: n.status for n in converter.build(net, batch=2, inputs=ROW).notes}["norm"] == "fixed"
    with pytest.raises(UnsupportedError, match="called with a mask"):
        converter.build(net, batch=2, inputs=ROW, batch_norm="train")


class Perceptron(equinox.Module):
    first: equinox.nn.Linear
    drop: equinox.nn.Dropout
    rest: equinox.nn.MLP

    def __init__(self, key: Any) -> None:
        one, two = jax.random.split(key)
        self.first, self.drop = equinox.nn.Linear(4, 8, key=one), equinox.nn.Dropout(0.5)
        self.rest = equinox.nn.MLP(8, 3, 6, 1, key=two)

    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        return self.rest(self.drop(jax.nn.gelu(self.first(x)), key=key))


def test_an_equinox_module_is_called_for_each_example() -> None:
    net = Perceptron(jax.random.key(0))
    x = RNG.standard_normal((3 * BATCH, 4)).astype(np.float32)
    y = RNG.integers(0, 3, len(x)).astype(np.int32)
    program = converter.build(net, optimizer=optax.sgd(RATE), batch=BATCH, inputs=ROW)
    assert any("Dropout(rate=0.5)" in note.why for note in program.notes)
    found = stepped(program, batches(x, y), RATE)
    quiet, losses = equinox.nn.inference_mode(net), []
    for a, b in batches(x, y):
        loss, gradients = equinox.filter_value_and_grad(lambda m, a=a, b=b: mean_loss(jax.vmap(m)(a), b))(quiet)
        quiet = equinox.apply_updates(quiet, jax.tree.map(lambda g: -RATE * g, gradients))
        losses.append(float(loss))
    expected = {"first/weight": quiet.first.weight, "rest/layers/1/bias": quiet.rest.layers[1].bias}
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
    assert_alike(found.parameters, expected, rtol=1e-4, atol=1e-6)


def test_a_haiku_function_is_a_function() -> None:
    net = haiku.without_apply_rng(haiku.transform(lambda x: haiku.nets.MLP([8, 3])(x)))
    params = net.init(jax.random.key(0), jnp.zeros((1, 4)))
    x = RNG.standard_normal((BATCH, 4)).astype(np.float32)
    program = converter.build(Model(net.apply, params, ROW), batch=BATCH)
    with converter.runtime.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(x), net.apply(params, x), rtol=1e-5, atol=1e-6)


def test_what_a_module_lacks_is_said() -> None:
    net, variables = linen()
    with pytest.raises(UsageError, match=r"build\(Net, inputs="):
        converter.build(Net(nnx.Rngs(0)))
    with pytest.raises(UsageError, match="holds no weights"):
        converter.build(net, inputs=IMAGE)
    with pytest.raises(UsageError, match="does not say what it takes"):
        Model(net.bind(variables))
    with pytest.raises(UsageError, match="leave params out"):
        Model(Net(nnx.Rngs(0)), {}, IMAGE)
    with pytest.raises(UsageError, match="inputs is a list"):
        converter.build(Net(nnx.Rngs(0)), inputs=[(1, 6, 6, 2)])
    with pytest.raises(UsageError, match="the Model says what it takes"):
        converter.build(Model(net, variables, IMAGE), inputs=IMAGE)
    with pytest.raises(ScopeParamShapeError) as raised:
        converter.build(net.bind(variables), inputs=[jax.ShapeDtypeStruct((6, 6, 2), "float32")])
    assert any("write (1, 6, 6, 2)" in note for note in raised.value.__notes__)


def test_a_batch_norm_that_is_masked_once_is_masked() -> None:
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            norm = nn.BatchNorm(use_running_average=True)
            return nn.Dense(3)(norm(norm(x, mask=x[:, :1] > 0)))

    net = Twice()
    model = Model(net, net.init(jax.random.key(0), jnp.zeros((1, 4))), ROW)
    with pytest.raises(UnsupportedError, match="called with a mask"):
        converter.build(model, batch=2, batch_norm="train")
