"""Products, convolutions and pooling in all layouts, against JAX."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from converter.ir import evaluate
from converter.support.errors import UnsupportedError
from tests.jax_frontend.common import check, close, narrowed, op_names, traced

RNG = np.random.default_rng(0)
quick = settings(max_examples=15, deadline=None)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


@quick
@given(data=st.data())
def test_dot_general_with_any_axes(data: st.DataObject) -> None:
    """Batch, contracted and free axes of both operands in any order."""
    batch, contracted, left, right = (data.draw(st.integers(0, most)) for most in (2, 2, 2, 2))
    sizes = {"b": [2, 3][:batch], "k": [4, 2][:contracted]}
    axes_x = data.draw(
        st.permutations(
            [("b", i) for i in range(batch)] + [("k", i) for i in range(contracted)] + [("m", i) for i in range(left)]
        )
    )
    axes_y = data.draw(
        st.permutations(
            [("b", i) for i in range(batch)] + [("k", i) for i in range(contracted)] + [("n", i) for i in range(right)]
        )
    )
    free = {"m": [3, 5], "n": [2, 6]}
    x = floats(*((sizes | free)[kind][i] for kind, i in axes_x))
    y = floats(*((sizes | free)[kind][i] for kind, i in axes_y))
    numbers = tuple(
        (tuple(axes_x.index((kind, i)) for i in range(count)), tuple(axes_y.index((kind, i)) for i in range(count)))
        for kind, count in (("k", contracted), ("b", batch))
    )
    check(partial(lax.dot_general, dimension_numbers=numbers), x, y, gradients=data.draw(st.booleans()))


@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,kj->ki", [(3, 4), (5, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bthd,bshd->bhts", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("bhts,bshd->bthd", [(2, 2, 3, 5), (2, 5, 2, 4)]),
        ("btd,dhk->bthk", [(2, 3, 6), (6, 2, 4)]),
        ("bthk,hkd->btd", [(2, 3, 2, 4), (2, 4, 6)]),
        ("i,i->", [(4,), (4,)]),
        ("i,j->ij", [(4,), (3,)]),
        ("ij,j->i", [(3, 4), (4,)]),
        ("ii->i", [(4, 4)]),
        ("ijk->kji", [(2, 3, 4)]),
        ("ijk->j", [(2, 3, 4)]),
        ("bi,ij,bj->b", [(3, 4), (4, 5), (3, 5)]),
    ],
)
def test_einsum(formula: str, shapes: list[tuple[int, ...]]) -> None:
    check(partial(jnp.einsum, formula), *(floats(*s) for s in shapes))


def test_products_need_no_transposes() -> None:
    """A dense layer and attention's four projections stand as they are."""
    assert op_names(check(lambda x, w: x @ w, floats(2, 3, 4), floats(4, 5))) == ["MatMul"]
    assert op_names(check(lambda x, w: x @ w.T, floats(3, 4), floats(5, 4))) == ["MatMul"]
    assert op_names(check(lambda w, x: w @ x, floats(3, 4), floats(4, 2))) == ["MatMul"]
    into_heads = check(partial(jnp.einsum, "btd,dhk->bthk"), floats(2, 3, 6), floats(6, 2, 4))
    assert op_names(into_heads).count("MatMul") == 1
    assert "Transpose" not in op_names(into_heads)


@pytest.mark.quick
@quick
@given(data=st.data())
def test_convolutions_of_all_layouts(data: st.DataObject) -> None:
    integers = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    spatial = data.draw(st.sampled_from([1, 2, 2, 2]))
    groups = data.draw(st.sampled_from([1, 1, 2, 4]))
    inputs, features = 4, groups * integers(1, 2)
    size = [integers(5, 7) for _ in range(spatial)]
    kernel = [integers(1, 3) for _ in range(spatial)]
    layout: tuple[str, ...] = data.draw(
        st.sampled_from([("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OIHW", "NCHW")])
    )
    if spatial == 1:
        layout = tuple(names.replace("H", "") for names in layout)
    extents = dict(zip("HW" if spatial == 2 else "W", zip(size, kernel, strict=True), strict=True))
    x = floats(*({"N": 2, "C": inputs, **{k: v[0] for k, v in extents.items()}}[c] for c in layout[0]))
    w = floats(*({"O": features, "I": inputs // groups, **{k: v[1] for k, v in extents.items()}}[c] for c in layout[1]))
    spread = data.draw(st.sampled_from([1, 1, 2]))
    padding = data.draw(st.sampled_from(["SAME", "VALID", [(integers(0, 2), integers(0, 2))] * spatial]))
    if spread > 1 and isinstance(padding, str):
        padding = [(1, 1)] * spatial
    convolution = partial(
        lax.conv_general_dilated,
        window_strides=[integers(1, 2) for _ in range(spatial)],
        padding=padding,
        lhs_dilation=[spread] * spatial,
        rhs_dilation=[integers(1, 2) for _ in range(spatial)],
        dimension_numbers=layout,
        feature_group_count=groups,
    )
    check(convolution, x, w, gradients=data.draw(st.booleans()))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 2)])
def test_transposed_convolutions(padding: str, strides: tuple[int, int]) -> None:
    graph = check(
        lambda x, w: lax.conv_transpose(x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")),
        floats(2, 4, 5, 3), floats(3, 2, 3, 4),
    )  # fmt: skip
    assert "Dilate" not in op_names(graph)


def test_negative_padding_crops() -> None:
    """Asked for directly XLA reads outside of the input here, so the oracle crops by itself."""
    x, w = narrowed(floats(2, 6, 5, 3)), narrowed(floats(3, 2, 3, 4))
    convolution = partial(lax.conv_general_dilated, window_strides=(2, 1), dimension_numbers=("NHWC", "HWIO", "NHWC"))
    graph = traced(partial(convolution, padding=[(-1, 1), (1, -2)]), x, w)
    expected = convolution(x[:, 1:, :-2], w, padding=[(0, 1), (1, 0)])
    close(evaluate(graph, [x, w])[0]["output"], expected, 1e-5)


def test_kinds_of_convolutions() -> None:
    x, numbers = floats(2, 6, 6, 4), ("NHWC", "HWIO", "NHWC")
    call = partial(lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=numbers)
    assert "Conv2D" in op_names(check(call, x, floats(3, 3, 4, 5)))
    depthwise = check(partial(call, feature_group_count=4), x, floats(3, 3, 1, 8))
    assert {"DepthwiseConv2D"} <= set(op_names(depthwise)) <= {"DepthwiseConv2D", "Transpose", "Reshape"}
    grouped = check(partial(call, feature_group_count=2), x, floats(3, 3, 2, 6))
    assert op_names(grouped).count("Conv2D") == 2


def test_four_axes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="convolution over more than three axes"):
        check(lambda x, w: lax.conv(x, w, (1,) * 4, "SAME"), floats(1, 2, *(3,) * 4), floats(2, 2, *(2,) * 4))


def _min_pool(x: jax.Array, window: tuple[int, ...], strides: tuple[int, ...], padding: str) -> jax.Array:
    return lax.reduce_window(x, jnp.inf, lax.min, (1, *window, 1), (1, *strides, 1), padding)


@quick
@given(data=st.data())
def test_pooling(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([nn.max_pool, nn.avg_pool, _min_pool]))
    window = tuple(data.draw(st.integers(1, 3)) for _ in range(2))
    strides = tuple(data.draw(st.integers(1, 3)) for _ in range(2))
    padding = data.draw(st.sampled_from(["SAME", "VALID"]))
    check(lambda x: kind(x, window, strides, padding), floats(2, 7, 6, 3), gradients=kind is not _min_pool)


@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [
        ((1, 2, 2), (1, 2, 2), "VALID"),  # [C, H, W]
        ((1, 1, 3, 3), (1, 1, 2, 2), "SAME"),  # NCHW
        ((1, 3, 1), (1, 2, 1), "SAME"),  # [N, T, C]
        ((2, 1, 1, 2), (2, 1, 1, 1), "VALID"),
        ((5,), (3,), "SAME"),
        ((1, 1), (1, 1), "VALID"),
    ],
)
def test_pooling_over_other_axes(window: tuple[int, ...], strides: tuple[int, ...], padding: str) -> None:
    x = floats(*[7, 6, 5, 4][: len(window)])
    check(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding), x)
    check(lambda x: lax.reduce_window(x, 0.0, lax.add, window, strides, padding), x, gradients=False)


def test_attention() -> None:
    q = floats(2, 3, 2, 4)
    check(lambda q, k, v: jax.nn.dot_product_attention(q, k, v), q, q + 1, q * 2)
    graph = check(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), q, q + 1, q * 2)
    assert "Softmax" in op_names(graph)
