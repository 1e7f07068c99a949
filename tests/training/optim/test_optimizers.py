"""Optimizers as graphs against optax itself: ten steps on random gradients, run by the NumPy evaluator."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from converter.ir import FLOAT32, Builder, Graph, Parameter, TensorType, Value, View, evaluate, ops, verify
from converter.support.errors import UnsupportedError, UsageError
from converter.training.optim import apply_updates
from converter.training.optim.named import NAMED, resolve
from converter.training.optim.trace import trace_optimizer, tree_of

RNG = np.random.default_rng(0)
PARAMETERS = {
    "encoder/layers/0/w": RNG.standard_normal((4, 3)),
    "encoder/layers/0/b": RNG.standard_normal(3),
    "encoder/layers/1/w": RNG.standard_normal((3, 3)),
    "head/w": RNG.standard_normal((3, 2, 2)),
    "scale": RNG.standard_normal(1),
}
RATES = [0.1, 0.1, 0.05, 0.2, 0.0, 0.1, 0.01, 0.3, 0.1, 0.1]


def training_step(optimizer: Any) -> Graph:
    """A graph that takes one gradient a parameter and does one update."""
    graph = Graph()
    b = Builder(graph)
    gradients = {}
    for name, array in PARAMETERS.items():
        value = Value(TensorType(array.shape), name)
        graph.parameters[value] = Parameter(name, array.astype(np.float32))
        gradients[value] = b.input(f"gradient of {name}", value.type)
    rate = b.input("learning_rate", TensorType((1,)))
    program = trace_optimizer(optimizer, {name: array.astype(np.float32) for name, array in PARAMETERS.items()})
    return verify(apply_updates(graph, gradients, program, rate))


def compare(optimizer: Any, steps: int = 10, tolerance: float = 2e-5) -> Graph:
    """Runs both for some steps; returns the graph."""
    graph, rng = training_step(optimizer), np.random.default_rng(1)
    tx = resolve(optimizer)
    tree = tree_of({name: jnp.asarray(a, jnp.float32) for name, a in PARAMETERS.items()})
    state = tx.init(tree)
    stored: dict[str, np.ndarray] = {}
    update = jax.jit(tx.update, compiler_options={"xla_backend_optimization_level": 0})
    for rate in RATES[:steps]:
        gradients = {name: (rng.standard_normal(a.shape) * 2).astype(np.float32) for name, a in PARAMETERS.items()}
        updates, state = update(tree_of(gradients), state, tree)
        tree = jax.tree.map(lambda p, u, rate=rate: p + jnp.float32(rate) * u, tree, updates)
        fed = {f"gradient of {name}": a for name, a in gradients.items()}
        stored = evaluate(graph, {**fed, "learning_rate": np.array([rate])}, **stored)[1]
    expected = {"/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path): leaf
                for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}  # fmt: skip
    assert set(expected) == set(PARAMETERS)
    for name, leaf in expected.items():
        np.testing.assert_allclose(stored[name], leaf, rtol=tolerance, atol=tolerance, err_msg=name)
    return graph


def is_matrix(tree: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, tree)


def by_part(tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: "head" if path[0].key == "head" else "rest", tree)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "nesterov": lambda: optax.sgd(0.5, momentum=0.9, nesterov=True),
    "adam with nesterov": lambda: optax.adam(0.5, b1=0.8, nesterov=True),
    "nadamw": lambda: optax.nadamw(1.0, weight_decay=0.1),
    "rmsprop with momentum": lambda: optax.rmsprop(1.0, momentum=0.9, centered=True),
    "clipping by the norm of all": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1.0)),
    "clipping by element": lambda: optax.chain(optax.clip(0.3), optax.sgd(1.0)),
    "clipping block by block": lambda: optax.chain(optax.clip_by_block_rms(0.3), optax.sgd(1.0)),
    "trace and decay": lambda: optax.chain(optax.trace(0.9), optax.add_decayed_weights(0.1), optax.scale(-1.0)),
    "decay of matrices": lambda: optax.adamw(1.0, weight_decay=0.1, mask=is_matrix),
    "a fixed mask": lambda: optax.masked(optax.sgd(1.0), is_matrix(tree_of(PARAMETERS))),
    "average": lambda: optax.chain(optax.ema(0.9), optax.scale(-1.0)),
    "cosine schedule": lambda: optax.adam(optax.cosine_decay_schedule(1.0, 6)),
    "warm-up": lambda: optax.sgd(optax.warmup_cosine_decay_schedule(0.0, 1.0, 3, 8)),
    "steps of a schedule": lambda: optax.sgd(optax.piecewise_constant_schedule(1.0, {2: 0.5, 5: 0.1})),
    "exponential schedule": lambda: optax.sgd(optax.exponential_decay(1.0, 3, 0.5, staircase=True)),
    "two optimizers": lambda: optax.multi_transform({"head": optax.adam(1.0), "rest": optax.sgd(0.1)}, by_part),
    "one frozen": lambda: optax.multi_transform({"head": optax.adam(1.0), "rest": optax.set_to_zero()}, by_part),
    "lamb": lambda: optax.lamb(1.0),
    "adadelta": lambda: optax.adadelta(1.0),
    "amsgrad": lambda: optax.amsgrad(1.0),
    "adamax": lambda: optax.adamax(1.0),
    "yogi": lambda: optax.yogi(1.0),
    "radam": lambda: optax.radam(1.0),
    "sign": lambda: optax.sign_sgd(1.0),
    "every second step": lambda: optax.MultiSteps(optax.adam(1.0), 2),
    "only finite": lambda: optax.apply_if_finite(optax.adam(1.0), 3),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1.0),
    "centralised": lambda: optax.chain(optax.centralize(), optax.sgd(1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_named_optimizers(name: str) -> None:
    graph = compare(name)
    assert not {"LeakyRelu", "Relu"} & {n.op.name for n in graph.nodes}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_optax(name: str) -> None:
    compare(OPTIMIZERS[name]())


def test_the_state_is_float32_and_of_rank_one_at_least() -> None:
    program = trace_optimizer("adam", {"a/w": np.ones((2, 3), np.float32), "b": np.ones(2, np.float32)})
    assert {name: (a.shape, a.dtype) for name, a in program.slots.items()} == {
        "optimizer/0/count": ((1,), FLOAT32),
        "optimizer/0/mu/a/w": ((2, 3), FLOAT32),
        "optimizer/0/mu/b": ((2,), FLOAT32),
        "optimizer/0/nu/a/w": ((2, 3), FLOAT32),
        "optimizer/0/nu/b": ((2,), FLOAT32),
    }
    assert trace_optimizer("sgd", {"b": np.ones(2, np.float32)}).slots == {}


def test_a_state_may_be_made_with_what_only_arrays_of_jax_have() -> None:
    def begin(params: Any) -> Any:
        return jax.tree.map(lambda p: p.at[0].set(5.0), params)

    tx = optax.GradientTransformation(begin, lambda updates, state, params=None: (updates, state))
    program = trace_optimizer(tx, {"b": np.ones(2, np.float32)})
    assert [slot.tolist() for slot in program.slots.values()] == [[5.0, 1.0]]


def test_a_learning_rate_of_zero_moves_nothing() -> None:
    graph = training_step("adam")
    fed = {f"gradient of {name}": np.ones(a.shape) for name, a in PARAMETERS.items()}
    after = evaluate(graph, {**fed, "learning_rate": np.zeros(1)})[1]
    for name, array in PARAMETERS.items():
        np.testing.assert_array_equal(after[name], array.astype(np.float32))


@pytest.mark.parametrize(("name", "most"), [("sgd", 2), ("momentum", 4), ("adam", 13), ("adamw", 15), ("lion", 12)])
def test_updates_are_lean(name: str, most: int) -> None:
    """Factors meet before they meet a tensor: an update of Adam is thirteen operations on one."""
    graph = training_step(name)
    big = [n for n in graph.nodes if n.output.shape == (4, 3)]
    assert len(big) <= most
    assert not any(isinstance(n.op, ops.BroadcastTo | ops.Cast) for n in big)


def test_which_updates_may_change_the_layout_of_a_weight() -> None:
    values = {"w": np.ones((4, 3), np.float32)}
    for optimizer in ("adamw", "lion", optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1.0))):
        assert trace_optimizer(optimizer, values).layout_invariant
    rows = optax.adafactor(1.0, min_dim_size_to_factor=2)
    assert not trace_optimizer(rows, values).layout_invariant


def test_masks_see_the_layout_of_the_model() -> None:
    """A bias that is stored as [1, 3, 1] is still a vector to the mask; slots are stored as their parameter is."""
    values = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.ones(3, np.float32)}
    views = {"w": View((("transpose", (1, 0)), ("slice", 0, 0, 1))), "b": View((("reshape", (1, 3, 1)),))}
    program = trace_optimizer(optax.adamw(1.0, weight_decay=0.5, mask=is_matrix), values, views)
    verify(program.graph)
    shapes = {value.name: value.shape for value in program.graph.inputs}
    assert program.gradient("w").shape == shapes["optimizer/0/mu/w"] == (1, 3)
    assert program.gradient("b").shape == shapes["optimizer/0/mu/b"] == (1, 3, 1)
    assert {program.views[f"optimizer/0/mu/{name}"] for name in views} == set(views.values())
    stored = {f"parameter/{n}": views[n].apply(a) for n, a in values.items()}
    fed = {v.name: stored.get(v.name, np.zeros(v.shape)) for v in program.graph.inputs}
    made = evaluate(program.graph, fed)[0]
    np.testing.assert_allclose(made["update/w"], -0.5 * stored["parameter/w"])
    assert not made["update/b"].any()
    weights = jnp.asarray(RNG.uniform(0.5, 1, (3, 2)), jnp.float32)  # one for each element: no layout but the model's
    scaled = optax.stateless(lambda g, p: jax.tree.map(lambda g: g * weights, g))
    assert not trace_optimizer(scaled, {"w": values["w"]}).layout_invariant


def test_nodes_know_their_layer() -> None:
    graph = training_step(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)))
    assert {n.origin.phase for n in graph.nodes} == {"update"}
    assert {"encoder/layers/0", "head", "optimizer"} <= {n.origin.layer for n in graph.nodes}


def test_trees() -> None:
    flat = {"b/1": 1, "b/0": 0, "a/x/w": 2, "a/3": 3}
    assert tree_of(flat) == {"b": [0, 1], "a": {"x": {"w": 2}, "3": 3}}
    assert tree_of({"a": 1, "a/b": 2}) == {"a": 1, "a/b": 2}
    assert tree_of({"a/b": 2, "a": 1}) == {"a/b": 2, "a": 1}
    many = {f"layers/{i}/w": np.full(2, i, np.float32) for i in range(12)}  # "10" sorts before "2"
    assert trace_optimizer("adam", many).parameters == tuple(many)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adm", r"unknown optimizer 'adm'. Did you mean 'adam'"),
        ("Adam", "Did you mean 'adam'"),
        ("x", f"Known: {', '.join(NAMED)}, or an optax.GradientTransformation"),
        (optax.adam, "or an optax.GradientTransformation, not <function adam"),
        (3, "not 3"),
    ],
)
def test_what_is_no_optimizer(optimizer: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(optimizer)


def _next(gradient: jax.Array) -> jax.Array:
    return jnp.nextafter(gradient, 0.0)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (optax.masked(optax.sgd(1.0), {"other": True}), "masks and labels as functions of the parameters"),
        (optax.add_noise(0.1, 0.5, key=jax.random.PRNGKey(0)), "scalar seed.*Its init raises this"),
        (contrib.scale_by_muon(), "its update raises: pytree structure error"),
        (optax.GradientTransformation(lambda p: jnp.zeros(3, jnp.int32), lambda g, s, p=None: (g, s)), "of type int32"),
        (optax.GradientTransformation(lambda p: (), lambda g, s, p=None: (jax.tree.map(_next, g), s)), "nextafter"),
    ],
)
def test_what_cannot_be_compiled(optimizer: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        trace_optimizer(optimizer, {"w": np.ones((2, 2), np.float32)})
