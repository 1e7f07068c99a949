"""Feed-forward parts some inner features at a time give what they give whole, and the same gradients."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converter.backend.prepare import hidden_in_parts as module
from converter.backend.prepare.hidden_in_parts import hidden_in_parts
from converter.ir import INT4, Builder, Graph, Parameter, TensorType, Value, evaluate, ops
from converter.ir.analysis.verify import verify
from converter.passes.autodiff import differentiate

TOKENS, WIDTH, HIDDEN, RANK = 6, 32, 200, 2
RNG = np.random.default_rng(0)
X, COTANGENT = (RNG.standard_normal((1, TOKENS, WIDTH)).astype(np.float32) for _ in range(2))
GATE, UP, DOWN = (RNG.integers(-7, 8, shape) for shape in ((WIDTH, HIDDEN), (HIDDEN, WIDTH), (HIDDEN, WIDTH)))
SCALES, BIASES = (RNG.standard_normal(HIDDEN).astype(np.float32) / 8 for _ in range(2))
A, B, AFTER = (RNG.standard_normal(s).astype(np.float32) / 4 for s in ((WIDTH, RANK), (RANK, HIDDEN), (HIDDEN, RANK)))
TRAINED = {"a": A, "b": B, "after": AFTER, "back": np.ascontiguousarray(B[:, :WIDTH])}


class Built:
    """A graph from x [1, tokens, width], with what trains."""

    def __init__(self) -> None:
        self.b = Builder()
        self.x = self.b.input("x", TensorType(X.shape))
        self.weights = {name: Value(TensorType(w.shape), name) for name, w in TRAINED.items()}
        self.b.graph.parameters = {v: Parameter(name, TRAINED[name]) for name, v in self.weights.items()}

    def __call__(self, op: ops.Op, *operands: Value | np.ndarray) -> Value:
        return self.b(op, *(self.b.constant(v) if isinstance(v, np.ndarray) else v for v in operands))


def gated(of: Built, down_transposed: bool = False) -> Value:
    """SwiGLU of int4 with adapters: one on the gate, one on the way back; scales of inputs and of outputs."""
    w = of.weights
    gate = of(ops.Mul(), of(ops.CastMatMul(), of.x, GATE.astype(INT4)), SCALES)
    gate = of(ops.Add(), gate, of(ops.MatMul(), of(ops.MatMul(), of.x, w["a"]), w["b"]))
    up = of(ops.CastMatMul(adj_y=True), of.x, UP.astype(INT4))
    inner = of(ops.Mul(), of(ops.Silu(), gate), up)
    down = np.ascontiguousarray(DOWN.T) if down_transposed else DOWN
    y = of(ops.CastMatMul(adj_y=down_transposed), of(ops.Mul(), inner, SCALES), down.astype(INT4))
    return of(ops.Add(), y, of(ops.MatMul(), of(ops.MatMul(), inner, w["after"]), w["back"]))


def jax_gated(w: dict, x: jax.Array) -> jax.Array:
    gate = x @ GATE * SCALES + x @ w["a"] @ w["b"]
    inner = jax.nn.silu(gate) * (x @ UP.T)
    return (inner * SCALES) @ DOWN + inner @ w["after"] @ w["back"]


def biased(of: Built) -> Value:
    """Two dense layers of float32 with a bias and a ReLU between."""
    inner = of(ops.Add(), of(ops.CastMatMul(), of.x, GATE.astype(np.float32)), BIASES)
    return of(ops.CastMatMul(), of(ops.Relu(), inner), DOWN.astype(np.float32))


def jax_biased(w: dict, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ GATE + BIASES) @ DOWN


def rounded(of: Built) -> Value:
    """Two dense layers of int4 that round what they read."""
    inner = of(ops.Relu(), of(ops.DynamicRangeMatMul(), of.x, UP.astype(INT4)))
    return of(ops.DynamicRangeMatMul(), inner, np.ascontiguousarray(DOWN.T).astype(INT4))


def jax_rounded(w: dict, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ UP.T) @ DOWN


def lengths(of: Built, product: Value) -> Value:
    """What DoRA asks for: of a product [rank, outputs] the root of a sum over the rank; no gradient."""
    root = of(ops.Sqrt(), of(ops.Sum((0,)), of(ops.Mul(), product, product)))
    return of.b.node(ops.CustomGradient(0, 0, Graph()), root).output


def with_lengths(of: Built) -> Value:
    """First and last products with adapters, divided by lengths that these decide, as of DoRA."""
    w = of.weights
    rows, after = (of(ops.Transpose((1, 0)), w[name]) for name in ("a", "after"))
    first, last = of.b.constant(GATE.astype(INT4)), of.b.constant(DOWN.astype(INT4))
    columns = lengths(of, of(ops.Mul(), of(ops.Mul(), of(ops.CastMatMul(), rows, first), SCALES), w["b"]))
    gains = of(ops.Div(), BIASES, columns)
    gate = of(ops.Mul(), of(ops.CastMatMul(), of.x, first), of(ops.Mul(), SCALES, gains))
    change = of(ops.MatMul(), of(ops.MatMul(), of.x, w["a"]), of(ops.Mul(), w["b"], gains))
    inner = of(ops.Silu(), of(ops.Add(), gate, change))
    gains = of(ops.Div(), BIASES[:WIDTH], lengths(of, of(ops.CastMatMul(), after, last)))
    change = of(ops.MatMul(), of(ops.MatMul(), inner, w["after"]), of(ops.Mul(), w["back"], gains))
    return of(ops.Add(), of(ops.Mul(), of(ops.CastMatMul(), inner, last), gains), change)


def jax_with_lengths(w: dict, x: jax.Array) -> jax.Array:
    first = jax.lax.stop_gradient(jnp.linalg.norm(w["a"].T @ (GATE * SCALES) * w["b"], axis=0))
    last = jax.lax.stop_gradient(jnp.linalg.norm(w["after"].T @ DOWN, axis=0))
    inner = jax.nn.silu((x @ GATE * SCALES + x @ w["a"] @ w["b"]) * BIASES / first)
    return (inner @ DOWN + inner @ w["after"] @ w["back"]) * BIASES[:WIDTH] / last


#: Of blocks of 40 inner features, of 8 inputs, and of 40 inner features.
BLOCKS = [RNG.standard_normal(shape).astype(np.float32) / 8 for shape in ((WIDTH, 5), (HIDDEN, 4), (WIDTH, 5))]


def in_blocks(of: Built) -> Value:
    """SwiGLU of int4 with a scale for each block, along the inner features and across them."""
    gate = of(ops.CastMatMul(), of.x, GATE.astype(INT4), BLOCKS[0])
    up = of(ops.CastMatMul(adj_y=True), of.x, UP.astype(INT4), BLOCKS[1])
    inner = of(ops.Mul(), of(ops.Silu(), gate), up)
    return of(ops.CastMatMul(adj_y=True), inner, np.ascontiguousarray(DOWN.T).astype(INT4), BLOCKS[2])


def jax_in_blocks(w: dict, x: jax.Array) -> jax.Array:
    gate, up, down = (
        m * np.repeat(of, m.shape[1] // of.shape[1], 1) for m, of in zip((GATE, UP, DOWN.T), BLOCKS, strict=True)
    )
    return (jax.nn.silu(x @ gate) * (x @ up.T)) @ down.T


CASES: dict[str, tuple[Callable[[Built], Value], Callable]] = {
    "gated": (gated, jax_gated),
    "gated, down turned": (lambda of: gated(of, True), jax_gated),
    "biased": (biased, jax_biased),
    "rounded": (rounded, jax_rounded),
    "in blocks": (in_blocks, jax_in_blocks),
    "with lengths": (with_lengths, jax_with_lengths),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OF_MATRIX", 64 * WIDTH)


def widest(graph: Graph) -> int:
    return max(v.shape[-1] for node in graph.nodes for v in node.outputs if v.shape[:2] == (1, TOKENS))


@pytest.mark.parametrize("name", CASES)
def test_parts_are_the_whole(name: str) -> None:
    make, oracle = CASES[name]
    of = Built()
    of.b.graph.outputs = {"y": make(of)}
    used = {v for node in of.b.graph.nodes for v in node.inputs}
    of.b.graph.parameters = {v: p for v, p in of.b.graph.parameters.items() if v in used}
    parts = verify(hidden_in_parts(of.b.graph), "parts")
    assert widest(of.b.graph) == HIDDEN
    assert widest(parts) == (width := 80 if name == "in blocks" else 64)
    assert max(v.type.size for n in parts.nodes for v in n.inputs if v in parts.constants) == width * WIDTH
    loss = Builder(parts)
    weighed = loss(ops.Mul(), parts.outputs["y"], loss.constant(COTANGENT))
    parts.outputs["loss"] = loss(ops.Sum((0, 1, 2)), weighed)
    wanted = {p.name: v for v, p in parts.parameters.items()} | {"x": of.x}
    step, gradients = differentiate(parts, parts.outputs["loss"], wanted.values())
    step.outputs |= {f"d{key}": gradients[value] for key, value in wanted.items()}
    given, _ = evaluate(step, {"x": X})
    y, back = jax.vjp(oracle, TRAINED, X)
    d_weights, d_x = back(jnp.asarray(COTANGENT))
    expected = {"y": y, "dx": d_x} | {f"d{key}": d_weights[key] for key in wanted if key != "x"}
    for key, array in expected.items():
        np.testing.assert_allclose(given[key], array, rtol=0, atol=2e-5 * float(np.abs(array).max()), err_msg=key)


def seen_outside(of: Built) -> Value:
    inner = of(ops.Relu(), of(ops.CastMatMul(), of.x, GATE.astype(np.float32)))
    of.b.graph.outputs["inner"] = inner
    return of(ops.CastMatMul(), inner, DOWN.astype(np.float32))


def normalized(of: Built) -> Value:
    inner = of(ops.Softmax(), of(ops.CastMatMul(), of.x, GATE.astype(np.float32)))
    return of(ops.CastMatMul(), inner, DOWN.astype(np.float32))


def trained(of: Built) -> Value:
    large = Value(TensorType((WIDTH, HIDDEN)), "large")
    of.b.graph.parameters[large] = Parameter("large", GATE.astype(np.float32))
    return of(ops.CastMatMul(), of(ops.Relu(), of(ops.MatMul(), of.x, large)), DOWN.astype(np.float32))


@pytest.mark.parametrize("make", [seen_outside, normalized, trained], ids=lambda make: make.__name__)
def test_what_is_read_otherwise_or_trains_stays_whole(make: Callable[[Built], Value]) -> None:
    of = Built()
    of.b.graph.outputs["y"] = make(of)
    assert hidden_in_parts(of.b.graph) is of.b.graph
