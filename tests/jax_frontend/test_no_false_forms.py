"""What only looks like a named form stays as it is written; raising never changes a value or a derivative."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import jax_frontend
from converter.ir import Builder, Graph, TensorType, Value, evaluate, ops
from converter.ir.folding import FoldingBuilder
from converter.passes.idioms import with_idioms
from converter.passes.idioms.recognize import recognize_idioms
from tests.jax_frontend.common import check, op_names, with_gradients

N = 4
X = np.random.default_rng(0).standard_normal((N, N)) * 3
FORMS = {
    "Softmax", "LogSoftmax", "LogSumExp", "Gelu", "Silu", "Relu", "Relu6", "HardSwish", "LeakyRelu", "Elu",
    "LayerNorm", "RMSNorm", "OneHot", "SoftmaxCrossEntropy", "LabelCrossEntropy",
}  # fmt: skip


def _mean(x: jax.Array) -> jax.Array:
    return x.mean(-1, keepdims=True)


def _deviation(x: jax.Array) -> jax.Array:
    return jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


LOOKALIKES: dict[str, Callable] = {
    "plus epsilon": lambda x: x + 1e-6,
    "a slope": lambda x: jnp.where(x > 0, 0.99 * x, 0.1 * x),
    "identity": lambda x: jnp.where(x > 0, x, x),
    "clip at 5.9": lambda x: jnp.clip(x, 0, 5.9),
    "clip at 65504": lambda x: jnp.minimum(lax.max(x, jnp.float32(1e-7)), 65504.0),
    "quick gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "other tanh gelu": lambda x: 0.5 * x * (1 + jnp.tanh(0.79 * (x + 0.044 * x**3))),
    "softplus": jax.nn.softplus,
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "softmax over columns": lambda x: jnp.exp(x) / jnp.exp(x).sum(0, keepdims=True),
    "softmax over all": lambda x: jnp.exp(x) / jnp.exp(x).sum(),
    "softmax of others": lambda x: jnp.exp(x) / jnp.exp(x.T).sum(-1, keepdims=True),
    "rows against columns": lambda x: jnp.exp(x) / jnp.exp(x).sum(-1),
    "plus one below": lambda x: jnp.exp(x) / (1 + jnp.exp(x).sum(-1, keepdims=True)),
    "held denominator": lambda x: jnp.exp(x) / lax.stop_gradient(jnp.exp(x).sum(-1, keepdims=True)),
    "mean against columns": lambda x: (x - x.mean(-1)) / _deviation(x),
    "deviation against columns": lambda x: (x - _mean(x)) / jnp.sqrt(x.var(-1) + 1e-5),
    "held mean": lambda x: (x - lax.stop_gradient(_mean(x))) / _deviation(x),
    "held deviation": lambda x: (x - _mean(x)) / lax.stop_gradient(_deviation(x)),
    "sample variance": lambda x: (x - _mean(x)) / jnp.sqrt(x.var(-1, keepdims=True, ddof=1) + 1e-5),
    "over columns": lambda x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5),
    "over all": lambda x: (x - x.mean()) / jnp.sqrt(x.var() + 1e-5),
    "variance of others": lambda x: (x - _mean(x)) / jnp.sqrt((x * x).var(-1, keepdims=True) + 1e-5),
    "epsilon outside": lambda x: (x - _mean(x)) / (jnp.sqrt(x.var(-1, keepdims=True)) + 1e-5),
    "root mean square of columns": lambda x: x / jnp.sqrt((x * x).mean(-1) + 1e-5),
    "euclidean norm": lambda x: x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-5),
    "logsumexp of others": lambda x: x - jax.nn.logsumexp(x.T, -1, keepdims=True),
}  # fmt: skip
#: What they do hold.
PARTS = {"clip at 5.9": {"Relu"}, "softplus": {"Relu"}, "mish": {"Relu"}, "logsumexp of others": {"LogSumExp"}}
FALSE_ROWS: dict[str, Callable] = {
    "from one": lambda i: (i[..., None] == jnp.arange(1, 7)).astype(jnp.float32),
    "turned": lambda i: (i[..., None] == jnp.arange(6)[::-1]).astype(jnp.float32),
    "columns": lambda i: (i[None] == jnp.arange(4)[:, None, None]).astype(jnp.float32),
    "doubled": lambda i: (2 * jnp.eye(6))[i],
    "shifted": lambda i: jnp.eye(6, k=1)[i],
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_lookalikes_stay(name: str) -> None:
    graph = check(LOOKALIKES[name], X)
    assert FORMS & set(op_names(graph)) <= PARTS.get(name, set())


@pytest.mark.parametrize("name", FALSE_ROWS)
def test_rows_that_are_not_one_hot(name: str) -> None:
    graph = check(FALSE_ROWS[name], np.random.default_rng(0).integers(0, 6, (3, 4)))
    assert not FORMS & set(op_names(graph))


def test_small_offsets_are_kept() -> None:
    """The offset decides where a logarithm or a quotient follows."""
    x = np.array([[-2.0, 0.0, 1e-7, 3.0]])
    check(lambda x: jnp.log(jax.nn.relu(x) + 1e-9), x)
    check(lambda x: 1 / (jnp.maximum(x, 0) + 1e-6), x, gradients=False)
    check(lambda x: jnp.log(jax.nn.sigmoid(50 * x) + 1e-12), x, tolerance=1e-4, gradients=False)


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 6.0, 1 / 6, 1e-6, 0.1, 1.702, 0.044715, 0.7978846])
UNARY = [
    ops.Neg(), ops.Exp(), ops.Log(), ops.Sqrt(), ops.Rsqrt(), ops.Tanh(), ops.Logistic(), ops.Erf(), ops.Abs(),
    ops.Relu(), ops.Relu6(),
]  # fmt: skip
BINARY = [ops.Add(), ops.Sub(), ops.Mul(), ops.Div(), ops.Maximum(), ops.Minimum()]
REDUCTIONS = [ops.Sum, ops.Mean, ops.Max]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random graph of what forms are made of; rows and columns of a square, which are easily confused."""
    b = FoldingBuilder()
    known: list[Value] = [b.input("x", TensorType((N, N)))]

    def pick() -> Value:
        return known[draw(st.integers(max(0, len(known) - 4), len(known) - 1))]

    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["unary", "number", "binary", "binary", "reduction", "norm", "square"]))
        x = pick()
        if kind == "unary":
            known.append(b(draw(st.sampled_from(UNARY)), x))
        elif kind == "number":
            operands = [x, b.constant(draw(NUMBERS))]
            known.append(b(draw(st.sampled_from(BINARY)), *(operands if draw(st.booleans()) else operands[::-1])))
        elif kind == "binary":
            known.append(b(draw(st.sampled_from(BINARY)), x, pick()))
        elif kind == "square":
            known.append(b(ops.Mul(), x, x))
        elif kind == "norm":
            known.append(
                b(ops.Sub(), x, b(ops.Mean((-1,), keepdims=draw(st.booleans())), x)) if x.shape == (N, N) else x
            )
        elif x.shape:
            known.append(b(draw(st.sampled_from(REDUCTIONS))((-1,), draw(st.booleans())), x))
    graph = b.graph
    graph.outputs = {"output": Builder(graph).broadcast_to(known[-1], (N, N)) if known[-1].shape == () else known[-1]}
    return graph


@settings(max_examples=150, deadline=None)
@given(graph=graphs())
def test_raising_keeps_values_and_derivatives(graph: Graph) -> None:
    with_idioms = recognize_idioms(graph)
    for x in (X, np.abs(X) / 3):
        before, after = (evaluate(with_gradients(g), [x], np.float64)[0] for g in (graph, with_idioms))
        if any(not np.isfinite(v).all() or np.abs(v).max() > 1e8 for v in before.values()):
            continue
        for name, value in before.items():
            made = after.get(name, np.zeros(value.shape))
            np.testing.assert_allclose(
                made, value, rtol=1e-4, atol=1e-6 * max(1, np.abs(value).max()), err_msg=str(graph)
            )


def test_a_training_step_has_no_leaky_relu() -> None:
    """An optimizer's `+ epsilon` was once taken for one."""
    import optax

    from converter.training.optim.trace import trace_optimizer

    program = trace_optimizer(optax.adamw(1.0), {"w": np.ones((N, N), np.float32)})
    assert not FORMS & set(op_names(program.graph))
    model = jax_frontend.Model(
        lambda p, x: jnp.tanh(x @ p["w"]) + 1e-6, {"w": X}, [jax.ShapeDtypeStruct((1, N), "float32")]
    )
    assert not FORMS & set(op_names(with_idioms(jax_frontend.trace(model, 2))))
