"""Depthwise convolutions whose filter trains, and their cotangents: in the stock interpreter, against jax."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from converter.ir import Builder, Graph, TensorType, ops
from converter.targets import target
from converter.tflite.lower import lower
from tests.tflite.stock import file, run

Case = tuple[ops.DepthwiseConv2D, np.ndarray, np.ndarray]


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """One to three images, any strides, dilation, padding up to the kernel's size and image that it fits."""
    kernel, strides = (draw(st.tuples(st.integers(1, 4), st.integers(1, 4))) for _ in range(2))
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3)]))
    padding = tuple((draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in kernel)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [draw(st.integers(max(1, s - sum(p)), 11)) for s, p in zip(span, padding, strict=True)]
    images, channels = draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 16, 19]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    x = rng.standard_normal((images, *size, channels)).astype(np.float32)
    w = rng.standard_normal((1, *kernel, channels)).astype(np.float32)
    return ops.DepthwiseConv2D(strides, (padding[0], padding[1]), dilation), x, w


def backward(op: ops.DepthwiseConv2D, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> Graph:
    """The convolution and both of its cotangents, the filter fed."""
    b = Builder()
    dims = op.strides, op.padding, op.dilation
    vx, vw, vdy = (b.input(name, TensorType(a.shape)) for name, a in (("x", x), ("w", w), ("dy", dy)))
    b.graph.outputs = {
        "y": b(op, vx, vw),
        "dx": b(ops.DepthwiseInputGrad(*dims, size=x.shape[1:3]), vdy, vw),
        "dw": b(ops.DepthwiseFilterGrad(*dims, kernel=w.shape[1:3]), vx, vdy),
    }
    return lower(b.graph, target("litert-2/x86-64"))


@settings(max_examples=25, deadline=None)
@given(case=convolutions())
def test_all_shapes_are_right(case: Case) -> None:
    op, x, w = case
    reference = partial(
        lax.conv_general_dilated, window_strides=op.strides, padding=op.padding, rhs_dilation=op.dilation,
        dimension_numbers=("NHWC", "OHWI", "NHWC"), feature_group_count=x.shape[3],
    )  # fmt: skip
    y, back = jax.vjp(lambda x, w: reference(x, w.transpose(3, 1, 2, 0)), x, w)
    dy = np.random.default_rng(0).standard_normal(y.shape).astype(np.float32)
    found = run(file(backward(op, x, w, dy)), {"x": x, "w": w, "dy": dy}, xnnpack=True)
    for name, expected in zip(("y", "dx", "dw"), (y, *back(dy)), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("images", [1, 2])
def test_a_batch_of_one_image_is_not_copied(images: int) -> None:
    """The filter's gradient goes image by image; only where there are several are they cut out."""
    op = ops.DepthwiseConv2D((1, 1), ((1, 1), (1, 1)))
    x, w = np.zeros((images, 5, 6, 4), np.float32), np.zeros((1, 3, 3, 4), np.float32)
    codes = [node.op.code for node in backward(op, x, w, x).nodes]
    assert codes.count("SLICE") == (0 if images == 1 else 2 * images)
    assert codes.count("PAD") == images


def test_a_trained_filter_of_one_position_is_a_product() -> None:
    """As is one of the four phases of a strided convolution's cotangent: XNNPACK computes it, the other three not."""
    op = ops.DepthwiseConv2D((2, 2), ((0, 1), (0, 1)))
    x, w, dy = (np.zeros(shape, np.float32) for shape in ((1, 8, 6, 4), (1, 3, 3, 4), (1, 4, 3, 4)))
    codes = [node.op.code for node in backward(op, x, w, dy).nodes]
    assert (codes.count("MUL"), codes.count("DEPTHWISE_CONV_2D")) == (1, 1 + 3 + 1)
