"""Depthwise convolutions and their cotangents: in the stock interpreter, against jax."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from converter.backend import builtins as tfl
from converter.backend.builtins.conv import DEPTHWISE_TAPS
from converter.backend.lowering.forms import FormChoice
from converter.backend.lowering.lower import lower
from converter.backend.targets import Target, target
from converter.ir import Builder, Graph, TensorType, described, fingerprint, ops
from tests.backend.stock import file, run

X86 = target("litert-2/x86-64")
#: Of more taps than XNNPACK's depthwise kernels hold, cut by rows or by columns; the last in no way.
LARGE = ((7, 7), (5, 6), (9, 3), (3, 9), (31, 1), (1, 31), (6, 5), (26, 26))
Case = tuple[ops.DepthwiseConv2D, np.ndarray, np.ndarray]


@st.composite
def convolutions(draw: st.DrawFn, kernels: tuple[tuple[int, int], ...] = ()) -> Case:
    """One to three images, any strides, dilation, padding up to the kernel's size and image that it fits."""
    four = st.tuples(st.integers(1, 4), st.integers(1, 4))
    kernel, strides = draw(st.sampled_from(kernels) if kernels else four), draw(four)
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3)]))
    padding = tuple((draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in kernel)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [draw(st.integers(max(1, s - sum(p)), max(11, s))) for s, p in zip(span, padding, strict=True)]
    images, channels = draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 16, 19]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    x = rng.standard_normal((images, *size, channels)).astype(np.float32)
    w = rng.standard_normal((1, *kernel, channels)).astype(np.float32)
    return ops.DepthwiseConv2D(strides, (padding[0], padding[1]), dilation), x, w


def backward(
    op: ops.DepthwiseConv2D,
    x: np.ndarray,
    w: np.ndarray,
    dy: np.ndarray,
    on: Target = X86,
    frozen: bool = False,
    report: list[FormChoice] | None = None,
) -> Graph:
    """The convolution and both of its cotangents, the filter fed or frozen."""
    b = Builder()
    dims = op.strides, op.padding, op.dilation
    vx, vdy = (b.input(name, TensorType(a.shape)) for name, a in (("x", x), ("dy", dy)))
    vw = b.constant(w) if frozen else b.input("w", TensorType(w.shape))
    b.graph.outputs = {
        "y": b(op, vx, vw),
        "dx": b(ops.DepthwiseInputGrad(*dims, size=x.shape[1:3]), vdy, vw),
        "dw": b(ops.DepthwiseFilterGrad(*dims, kernel=w.shape[1:3]), vx, vdy),
    }
    return lower(b.graph, on, report)


def by_jax(op: ops.DepthwiseConv2D, x: np.ndarray, w: np.ndarray) -> tuple[jax.Array, Callable]:
    """The convolution, and what gives the cotangents of x and w from that of the result."""
    reference = partial(
        lax.conv_general_dilated, window_strides=op.strides, padding=op.padding, rhs_dilation=op.dilation,
        dimension_numbers=("NHWC", "OHWI", "NHWC"), feature_group_count=x.shape[3],
    )  # fmt: skip
    return jax.vjp(lambda x, w: reference(x, w.transpose(3, 1, 2, 0)), x, w)


@settings(max_examples=25, deadline=None)
@given(case=convolutions())
def test_all_shapes_are_right(case: Case) -> None:
    op, x, w = case
    y, back = by_jax(op, x, w)
    dy = np.random.default_rng(0).standard_normal(y.shape).astype(np.float32)
    found = run(file(backward(op, x, w, dy)), {"x": x, "w": w, "dy": dy}, xnnpack=True)
    for name, expected in zip(("y", "dx", "dw"), (y, *back(dy)), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


@settings(max_examples=25, deadline=None)
@given(case=convolutions(LARGE))
def test_a_frozen_filter_of_many_taps_is_right_in_parts(case: Case) -> None:
    """Forward, and the input's cotangent, with the filter turned."""
    op, x, w = case
    y, back = by_jax(op, x, w)
    dy = np.random.default_rng(0).standard_normal(y.shape).astype(np.float32)
    choices: list[FormChoice] = []
    graph = backward(op, x, w, dy, replace(X86, forced=frozenset({"taps apart"})), True, choices)
    assert any(choice.form == "taps apart" for choice in choices) == (w.shape[1:3] != (26, 26))
    found = run(file(graph), {"x": x, "dy": dy}, xnnpack=True)
    for name, expected in (("y", y), ("dx", back(dy)[0])):
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize(
    ("on", "kernel", "frozen", "separate"),
    [
        ("litert-2", (7, 7), True, True),
        ("litert-2/x86-64", (7, 7), True, True),
        ("litert-2/x86-64", (5, 5), True, False),
        ("litert-2/x86-64", (7, 7), False, False),
        ("tflite-2.16", (7, 7), True, False),
        ("gpu", (7, 7), True, False),
    ],
)
def test_where_taps_are_apart(on: str, kernel: tuple[int, int], frozen: bool, separate: bool) -> None:
    """Where XNNPACK has no kernel for as many: no filter is left that has more."""
    padding = tuple((k // 2, k // 2) for k in kernel)
    op = ops.DepthwiseConv2D((1, 1), (padding[0], padding[1]))
    x, w = np.ones((2, 14, 14, 32), np.float32), np.ones((1, *kernel, 32), np.float32)
    graph = backward(op, x, w, x, target(on), frozen)
    read = [n.inputs[1] for n in graph.nodes if isinstance(n.op, tfl.DepthwiseConv2D)]
    taps = [np.prod(v.shape[1:3]) for v in read if v in graph.constants]
    assert len(taps) == frozen * (6 if separate else 2)
    assert not separate or max(taps) <= DEPTHWISE_TAPS


@pytest.mark.parametrize("kernel", [(5, 5), (7, 7)])
def test_the_turned_filter_of_a_model_of_shapes_is_another(kernel: tuple[int, int]) -> None:
    """What is planned with shapes alone is as large as the program."""
    op = ops.DepthwiseConv2D((1, 1), ((kernel[0] // 2,) * 2, (kernel[1] // 2,) * 2))
    x, w = np.ones((2, 14, 14, 32), np.float32), np.arange(32.0 * kernel[0] * kernel[1], dtype=np.float32)
    w = w.reshape(1, *kernel, 32)
    sizes = []
    for filter in (w, described(w.shape, "filter")):
        constants = backward(op, x, filter, x, target("litert-2"), True).constants.values()
        stored = {(array.shape, fingerprint(array)): array.nbytes for array in constants}
        sizes.append(sum(stored.values()))
    assert sizes[0] == sizes[1]


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
