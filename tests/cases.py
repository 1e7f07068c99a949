"""Random applications of every semantic op, each with its JAX twin."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from converter.ir import Builder, Graph, Op, TensorType, ops
from converter.passes.autodiff import differentiate

Case = tuple[Op, list[np.ndarray], Callable]


def floats(rng: np.random.Generator, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return rng.uniform(low, high, shape)


def distinct(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """No ties, nothing near a kink."""
    return (rng.permutation(int(np.prod(shape))).reshape(shape) - np.prod(shape) / 2 + 0.5) * 0.13


UNARY = {
    ops.Neg(): jnp.negative, ops.Exp(): jnp.exp, ops.Sin(): jnp.sin, ops.Cos(): jnp.cos, ops.Abs(): jnp.abs,
    ops.Sign(): jnp.sign, ops.Floor(): jnp.floor, ops.Ceil(): jnp.ceil, ops.Round(): jnp.round,
    ops.Tanh(): jnp.tanh, ops.Logistic(): jax.nn.sigmoid,
    ops.Erf(): jax.scipy.special.erf, ops.Erfc(): jax.scipy.special.erfc, ops.Expm1(): jnp.expm1,
    ops.Relu(): jax.nn.relu, ops.Relu6(): jax.nn.relu6,
    ops.HardSwish(): jax.nn.hard_swish, ops.Silu(): jax.nn.silu, ops.Gelu(): partial(jax.nn.gelu, approximate=False),
    ops.Gelu(True): jax.nn.gelu, ops.Elu(): jax.nn.elu,
    ops.LeakyRelu(0.3): partial(jax.nn.leaky_relu, negative_slope=0.3),
}  # fmt: skip
POSITIVE = {ops.Log1p(): jnp.log1p, ops.Log(): jnp.log, ops.Sqrt(): jnp.sqrt, ops.Rsqrt(): lax.rsqrt}
ROWS = {
    ops.Softmax(): jax.nn.softmax, ops.LogSoftmax(): jax.nn.log_softmax,
    ops.LogSumExp(): partial(jax.nn.logsumexp, axis=-1, keepdims=True),
    ops.LayerNorm(1e-3): lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3),
    ops.RMSNorm(1e-3): lambda x: x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-3),
}  # fmt: skip
BINARY = {
    ops.Add(): jnp.add, ops.Sub(): jnp.subtract, ops.Mul(): jnp.multiply, ops.Div(): jnp.divide,
    ops.Maximum(): jnp.maximum, ops.Minimum(): jnp.minimum, ops.SquaredDifference(): lambda x, y: (x - y) ** 2,
    ops.Pow(): jnp.power, ops.Atan2(): jnp.arctan2, ops.BinaryCrossEntropy(): optax.sigmoid_binary_cross_entropy,
}  # fmt: skip


def conv_case(rng: np.random.Generator) -> Case:
    kernel, strides = rng.integers(1, 4, 2), tuple(map(int, rng.integers(1, 3, 2)))
    dilation = tuple(map(int, rng.integers(1, 3, 2)))
    padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (2, 2)))
    x, w = floats(rng, 2, 7, 8, 3), floats(rng, 4, *kernel, 3)
    reference = partial(
        lax.conv_general_dilated, window_strides=strides, padding=padding, rhs_dilation=dilation,
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
    )  # fmt: skip
    return ops.Conv2D(strides, padding, dilation), [x, w], reference


def depthwise_case(rng: np.random.Generator) -> Case:
    op, (x, _), _ = conv_case(rng)
    m, kernel = int(rng.integers(1, 3)), rng.integers(1, 4, 2)
    w = floats(rng, 1, *kernel, 3 * m)
    reference = partial(
        lax.conv_general_dilated, window_strides=op.strides, padding=op.padding, rhs_dilation=op.dilation,
        dimension_numbers=("NHWC", "IHWO", "NHWC"), feature_group_count=3,
    )  # fmt: skip
    return ops.DepthwiseConv2D(op.strides, op.padding, op.dilation), [x, w], reference


def transposed_conv_case(rng: np.random.Generator) -> Case:
    op, (x, w), forward = conv_case(rng)
    y = forward(x, w)

    def reference(dy, w):
        return jax.vjp(lambda x: forward(x, w), jnp.asarray(x))[1](dy)[0]

    return ops.Conv2DInputGrad(op.strides, op.padding, op.dilation, x.shape[1:3]), [floats(rng, *y.shape), w], reference


def matmul_case(rng: np.random.Generator) -> Case:
    m, k, n = map(int, rng.integers(1, 5, 3))
    batch = tuple(map(int, rng.integers(1, 4, rng.integers(0, 3))))
    adj_x, adj_y = map(bool, rng.integers(0, 2, 2))
    shared = bool(rng.integers(0, 2))
    x = floats(rng, *batch, *((k, m) if adj_x else (m, k)))
    w = floats(rng, *(() if shared else batch), *((n, k) if adj_y else (k, n)))

    def reference(x, w):
        return (x.swapaxes(-1, -2) if adj_x else x) @ (w.swapaxes(-1, -2) if adj_y else w)

    return ops.MatMul(adj_x, adj_y), [x, w], reference


def pool_case(rng: np.random.Generator, largest: bool) -> Case:
    window, strides = tuple(map(int, rng.integers(1, 4, 2))), tuple(map(int, rng.integers(1, 4, 2)))
    padding = tuple((int(rng.integers(0, k)), int(rng.integers(0, k))) for k in window)
    kind, start, combine = (ops.MaxPool2D, -jnp.inf, lax.max) if largest else (ops.SumPool2D, 0.0, lax.add)

    def reference(x):
        return lax.reduce_window(x, start, combine, (1, *window, 1), (1, *strides, 1), ((0, 0), *padding, (0, 0)))

    x = np.round(floats(rng, 2, 6, 7, 2), 0 if largest else 3)  # ties: the first takes all
    return kind(window, strides, padding), [x], reference


def reduction_case(rng: np.random.Generator) -> Case:
    x = distinct(rng, *map(int, rng.integers(1, 4, 3)))
    axes = tuple(int(a) for a in rng.permutation(3)[: rng.integers(1, 4)])
    kind, function = [(ops.Sum, jnp.sum), (ops.Mean, jnp.mean), (ops.Max, jnp.max), (ops.Min, jnp.min)][rng.integers(4)]
    keep = bool(rng.integers(0, 2))
    return kind(axes, keep), [x], partial(function, axis=axes, keepdims=keep)


def movement_case(rng: np.random.Generator) -> Case:
    x = floats(rng, 4, 5, 3)
    spread = lax.pad
    table: list[Case] = [
        (ops.Reshape((5, 12)), [x], lambda x: x.reshape(5, 12)),
        (ops.Transpose((2, 0, 1)), [x], lambda x: x.transpose(2, 0, 1)),
        (ops.BroadcastTo((2, 4, 5, 3)), [x[:, :1]], lambda x: jnp.broadcast_to(x, (2, 4, 5, 3))),
        (ops.Slice((1, 0, 1), (2, 3, 2)), [x], lambda x: x[1:3, :3, 1:]),
        (ops.Slice((0, 1, 0), (2, 2, 3), (3, 2, 1)), [x], lambda x: x[::3, 1:5:2]),
        (ops.Pad(((1, 0), (0, 2), (3, 1)), 1.5), [x],
         lambda x: jnp.pad(x, ((1, 0), (0, 2), (3, 1)), constant_values=1.5)),
        (ops.Dilate((2, 1, 3)), [x], lambda x: spread(x, 0.0, ((0, 0, 1), (0, 0, 0), (0, 0, 2)))),
        (ops.Concat(1), [x, floats(rng, 4, 2, 3)], lambda x, y: jnp.concatenate([x, y], 1)),
        (ops.Reverse((0, 2)), [x], lambda x: x[::-1, :, ::-1]),
        (ops.CumSum(1), [x], lambda x: jnp.cumsum(x, 1)),
        (ops.Select(), [x > 0, x, x[0]], jnp.where),
        (ops.Gather(1), [x, np.array([[4, 0], [1, 1]], np.int32)], lambda x, i: jnp.take(x, i, 1)),
        (ops.Gather(1, distinct=True), [x, np.array([4, 0, 1], np.int32)], lambda x, i: jnp.take(x, i, 1)),
        (ops.ScatterAdd(6), [np.array([3, 0, 3, 5], np.int32), x], lambda i, u: jnp.zeros((6, 5, 3)).at[i].add(u)),
        (ops.UpdateSlice(), [x, floats(rng, 2, 5, 1), np.array([1, 0, 2], np.int32)],
         lambda x, u, i: lax.dynamic_update_slice(x, u, i)),
        (ops.SoftmaxCrossEntropy(), [x, np.abs(floats(rng, 4, 5, 3))],
         lambda z, t: -(jax.nn.log_softmax(z) * t).sum(-1)),
        (ops.LabelCrossEntropy(), [x, rng.integers(-1, 4, (4, 5)).astype(np.int32)],
         lambda z, y: -(jax.nn.log_softmax(z) * jax.nn.one_hot(y, 3, dtype=z.dtype)).sum(-1)),
        (ops.LabelCrossEntropy(everywhere=True), [x, rng.integers(-1, 4, (4, 5)).astype(np.int32)],
         lambda z, y: jax.nn.logsumexp(z, -1) - (z * jax.nn.one_hot(y, 3, dtype=z.dtype)).sum(-1)),
        (ops.Pick(), [x, rng.integers(0, 3, (4, 5)).astype(np.int32)],
         lambda x, i: jnp.take_along_axis(x, i[..., None], -1)[..., 0]),
        (ops.IsClass(3), [rng.integers(-2, 5, (4, 5)).astype(np.int32)],
         lambda y: jax.nn.one_hot(y, 3).sum(-1)),
    ]  # fmt: skip
    return table[rng.integers(len(table))]


def binary_case(rng: np.random.Generator) -> Case:
    op = list(BINARY)[rng.integers(len(BINARY))]
    shapes = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 3)), ((2, 3), ())][rng.integers(5)]
    x, y = (floats(rng, *s, low=0.3) for s in shapes)
    return op, [x, y], BINARY[op]


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "conv": conv_case,
    "depthwise": depthwise_case,
    "transposed conv": transposed_conv_case,
    "matmul": matmul_case,
    "max pool": partial(pool_case, largest=True),
    "sum pool": partial(pool_case, largest=False),
    "reduction": reduction_case,
    "movement": movement_case,
    "binary": binary_case,
    "unary": lambda rng: (op := list(UNARY)[rng.integers(len(UNARY))], [distinct(rng, 3, 4)], UNARY[op]),
    "positive": lambda rng: (
        op := list(POSITIVE)[rng.integers(len(POSITIVE))],
        [floats(rng, 3, 4, low=0.2)],
        POSITIVE[op],
    ),
    "rows": lambda rng: (op := list(ROWS)[rng.integers(len(ROWS))], [floats(rng, 2, 3, 5)], ROWS[op]),
}


def narrowed(arrays: list) -> list[np.ndarray]:
    return [a.astype(np.float32) if a.dtype.kind == "f" else a for a in map(np.asarray, arrays)]


def with_gradients(op: Op, arrays: list[np.ndarray], dy: np.ndarray) -> Graph:
    """A graph with outputs `y` and, by operand number, the cotangent of each float operand."""
    b = Builder()
    values = [b.input(str(i), TensorType(a.shape, a.dtype)) for i, a in enumerate(arrays)]
    y = b(op, *values)
    b.graph.outputs["y"] = y
    loss = b(ops.Sum(tuple(range(len(y.shape)))), b(ops.Mul(), y, b.constant(dy)))
    graph, gradients = differentiate(b.graph, loss, [v for v in values if v.dtype.kind == "f"])
    graph.outputs |= {v.name: g for v, g in gradients.items()}
    return graph
