"""Every form of a convolution and of its cotangents is right: forced in turn, in the stock interpreter, against jax."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from converter.backend.lowering.forms import FormChoice
from converter.backend.lowering.lower import lower
from converter.backend.lowering.rules.winograd import WAYS
from converter.backend.peephole.fuse import fuse
from converter.backend.targets import Target, target
from converter.ir import Builder, Graph, TensorType, Value, ops
from converter.passes import fold_constants, merge_common_subexpressions
from tests.backend.stock import file, run

X86 = target("litert-2/x86-64")
#: Everything is beyond this one's cache, and operators are free: small images are cut into many blocks.
TINY_CACHE = replace(X86, cache_bytes=2048, shared_cache_bytes=16384, per_operator=0.0)
FORMS = ["builtin", "product", "flat product", "rows", "transpose_conv", "phases", "apart", "rows by inputs",
         "patches by inputs", "gathered", "gathered columns", *WAYS]  # fmt: skip
Case = tuple[ops.Conv2D, np.ndarray, np.ndarray, Callable]


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Half of them 3x3 with stride 1, the others with any strides and dilation; any padding and size."""
    three = st.integers(1, 3)
    common = draw(st.booleans())
    kernel = (3, 3) if common else draw(st.sampled_from([(1, 1), (2, 3), (3, 3), (3, 1), (4, 2)]))
    strides = (1, 1) if common else draw(st.tuples(three, three))
    dilation = (1, 1) if common else draw(st.sampled_from([(1, 1), (1, 1), (2, 1)]))
    # Less than the kernel: the cotangents of wider ones are convolutions that crop, where XLA's CPU gives garbage.
    padding = tuple((draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in kernel)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [draw(st.integers(max(1, s - sum(p)), 11)) for s, p in zip(span, padding, strict=True)]
    images, inputs, outputs = draw(three), draw(st.integers(1, 5)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    x = rng.standard_normal((images, *size, inputs)).astype(np.float32)
    w = rng.standard_normal((outputs, *kernel, inputs)).astype(np.float32)
    reference = partial(
        lax.conv_general_dilated, window_strides=strides, padding=padding, rhs_dilation=dilation,
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
    )  # fmt: skip
    return ops.Conv2D(strides, (padding[0], padding[1]), dilation), x, w, reference


@settings(max_examples=25, deadline=None)
@given(case=convolutions(), frozen=st.booleans(), machine=st.sampled_from([X86, TINY_CACHE]))
def test_every_form_is_right(case: Case, frozen: bool, machine: Target) -> None:
    op, x, w, reference = case
    y, back = jax.vjp(reference, x, w)
    dy = np.random.default_rng(0).standard_normal(y.shape).astype(np.float32)
    expected = dict(zip(("y", "dx", "dw"), (y, *back(dy)), strict=True))

    b, attributes = Builder(), (op.strides, op.padding, op.dilation)
    image, cotangent = b.input("image", TensorType(x.shape)), b.input("cotangent", TensorType(dy.shape))
    weight = b.constant(w) if frozen else b.input("weight", TensorType(w.shape))
    b.graph.outputs = {
        "y": b(op, image, weight),
        "dx": b(ops.Conv2DInputGrad(*attributes, size=x.shape[1:3]), cotangent, weight),
        "dw": b(ops.Conv2DFilterGrad(*attributes, kernel=w.shape[1:3]), image, cotangent),
    }
    feed = {"image": x, "cotangent": dy, **({} if frozen else {"weight": w})}
    for name in FORMS:
        choices: list[FormChoice] = []
        lowered = lower(b.graph, replace(machine, forced=frozenset({name})), choices)
        assert all(name not in choice.alternatives for choice in choices)
        if all(choice.form != name for choice in choices):
            continue
        found = run(file(fuse(merge_common_subexpressions(fold_constants(lowered)))), feed, xnnpack=True)
        for key, want in expected.items():
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(found[key], want, rtol=1e-4, atol=1e-5 * scale, err_msg=f"{name}: {key} of {op}")


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_offered_somewhere(name: str) -> None:
    offered: set[str] = set()
    for kernel, strides in (((1, 1), 1), ((1, 1), 2), ((3, 3), 1), ((3, 3), 2), ((3, 1), 1)):
        b, op = Builder(), ops.Conv2D((strides, strides))
        x, w = b.input("x", TensorType((1, 9, 9, 4))), b.input("w", TensorType((4, *kernel, 4)))
        y = b(op, x, w)
        b.graph.outputs = {
            "dx": b(ops.Conv2DInputGrad(op.strides, size=(9, 9)), y, w),
            "dw": b(ops.Conv2DFilterGrad(op.strides, kernel=kernel), x, y),
            "of a frozen filter": b(op, x, b.constant(np.ones(w.shape, np.float32))),
        }
        choices: list[FormChoice] = []
        lower(b.graph, X86, choices)
        offered |= {form for choice in choices for form in (choice.form, *choice.alternatives)}
    assert name in offered


@pytest.mark.parametrize("adj_y", [False, True])
@pytest.mark.parametrize("name", ["batch_matmul", "flat batch_matmul", "fully_connected"])
def test_every_form_of_a_product_is_right(name: str, adj_y: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 5, 7)).astype(np.float32), rng.standard_normal((7, 3)).astype(np.float32)
    b = Builder()
    image, weight = b.input("x", TensorType(x.shape)), b.input("w", TensorType(w.T.shape if adj_y else w.shape))
    b.graph.outputs = {"y": b(ops.MatMul(False, adj_y), image, weight)}
    choices: list[FormChoice] = []
    lowered = lower(b.graph, replace(X86, forced=frozenset({name})), choices)
    assert [choice.form for choice in choices] == [name]
    found = run(file(lowered), {"x": x, "w": w.T.copy() if adj_y else w}, xnnpack=True)
    np.testing.assert_allclose(found["y"], x @ w, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9),
    depth=st.integers(30, 90),
    columns=st.integers(1, 9),
    leading=st.sampled_from([(), (2,), (2, 3)]),
    frozen=st.booleans(),
    adjoint=st.tuples(st.booleans(), st.booleans()),
)
def test_a_deep_product_in_blocks_is_right(
    rows: int, depth: int, columns: int, leading: tuple[int, ...], frozen: bool, adjoint: tuple[bool, bool]
) -> None:
    adj_x, adj_y = adjoint
    rng = np.random.default_rng(depth)
    x = rng.standard_normal((*leading, *((depth, rows) if adj_x else (rows, depth)))).astype(np.float32)
    w = rng.standard_normal((columns, depth) if adj_y else (depth, columns)).astype(np.float32)
    b = Builder()
    image = b.input("x", TensorType(x.shape))
    weight = b.constant(w) if frozen else b.input("w", TensorType(w.shape))
    b.graph.outputs = {"y": b(ops.MatMul(adj_x, adj_y), image, weight)}
    choices: list[FormChoice] = []
    lowered = lower(b.graph, replace(TINY_CACHE, forced=frozenset({"depth in blocks"})), choices)
    assert [choice.form for choice in choices] == ["depth in blocks"]
    assert max(v.shape[-2 if adj_x else -1] for v in _left_operands(lowered)) < depth
    found = run(file(fold_constants(lowered)), {"x": x, **({} if frozen else {"w": w})}, xnnpack=True)
    expected = np.matmul(x.swapaxes(-1, -2) if adj_x else x, w.T if adj_y else w)
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-5)


def _left_operands(graph: Graph) -> list[Value]:
    return [node.inputs[0] for node in graph.nodes if node.op.name == "BatchMatmul"]


@pytest.mark.parametrize(
    ("name", "depth", "form"),
    [
        ("litert-2/x86-64", 1024, "batch_matmul"),
        ("litert-2/x86-64", 8000, "depth in blocks"),
        ("litert-2", 1024, "batch_matmul"),
        ("litert-2", 8000, "depth in blocks"),
        ("gpu", 8000, "batch_matmul"),
    ],
)
def test_products_are_cut_where_their_depth_outgrows_the_cache(name: str, depth: int, form: str) -> None:
    b = Builder()
    x, w = b.input("x", TensorType((512, depth))), b.input("w", TensorType((512, depth)))
    b.graph.outputs = {"y": b(ops.MatMul(False, True), x, w)}
    choices: list[FormChoice] = []
    lower(b.graph, target(name), choices)
    assert [choice.form for choice in choices] == [form]


@pytest.mark.parametrize(
    ("rows", "adj_x", "adj_y", "exchanged"),
    [
        # Counted, of 8, 6 and 12 rows: 0.044, 0.046 and 0.067 M instructions exchanged, 0.049, 0.035 and 0.049 M not.
        (8, False, False, True), (8, True, False, True), (6, False, False, False), (12, False, False, False),
        (8, False, True, True), (6, False, True, True),  # w lies right: 0.034 and 0.037 for 0.052 and 0.038
    ],
)  # fmt: skip
def test_few_rows_fill_the_columns_of_a_tile(rows: int, adj_x: bool, adj_y: bool, exchanged: bool) -> None:
    """Eight rows are two tiles of rows on arm64, and one of columns; six are one of either, and then w is turned."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, 64)).astype(np.float32), rng.standard_normal((64, 120)).astype(np.float32)
    given = {"x": x.T.copy() if adj_x else x, "w": w.T.copy() if adj_y else w}
    b = Builder()
    operands = [b.input(name, TensorType(array.shape)) for name, array in given.items()]
    b.graph.outputs = {"y": b(ops.MatMul(adj_x, adj_y), *operands)}
    choices: list[FormChoice] = []
    lower(b.graph, target("litert-2"), choices)
    assert (choices[0].form == "exchanged") == exchanged
    lowered = lower(b.graph, replace(X86, forced=frozenset({"exchanged"})), choices)
    assert choices[-1].form == "exchanged"
    np.testing.assert_allclose(run(file(lowered), given, xnnpack=True)["y"], x @ w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("machine", ["litert-2", "litert-2/x86-64"])
@pytest.mark.parametrize("kind", [ops.ReluGrad, ops.Relu6Grad])
def test_masks_are_exact_by_either_scaling(kind: type[ops.ReluGrad | ops.Relu6Grad], machine: str) -> None:
    """Arm64 scales and clamps by MUL, x86-64 by a depthwise convolution: where y is barely 0 or 6, too."""
    edges = [0.0, 1e-20, 1e-7, 3.0, np.nextafter(np.float32(6), np.float32(0)), 6.0 if kind is ops.Relu6Grad else 9.0]
    y = np.tile(np.array(edges, np.float32), (8, 8, 8, 1))
    dy = np.random.default_rng(0).standard_normal(y.shape).astype(np.float32)
    b = Builder()
    b.graph.outputs = {"dx": b(kind(), b.input("y", TensorType(y.shape)), b.input("dy", TensorType(dy.shape)))}
    lowered = lower(b.graph, replace(target(machine), forced=frozenset({"mask"})))
    scaled = any(node.op.code == "DEPTHWISE_CONV_2D" for node in lowered.nodes)
    assert scaled == (machine == "litert-2/x86-64")
    expected = np.where((y > 0) & ((y < 6) | (kind is ops.ReluGrad)), dy, 0)
    np.testing.assert_array_equal(run(file(lowered), {"y": y, "dy": dy}, xnnpack=True)["dx"], expected)


@pytest.mark.parametrize(("width", "form"), [(7, "flat product"), (12, "product")])
def test_pixels_are_met_at_once_where_rows_leave_tiles_empty(width: int, form: str) -> None:
    """Six rows are computed at once on arm64: 7 pixels cost as much as 12."""
    b = Builder()
    x, w = b.input("x", TensorType((8, width, width, 160))), b.input("w", TensorType((960, 1, 1, 160)))
    b.graph.outputs = {"y": b(ops.Conv2D(), x, w)}
    choices: list[FormChoice] = []
    lower(b.graph, target("litert-2"), choices)
    assert [choice.form for choice in choices] == [form]


@pytest.mark.parametrize(
    ("images", "side", "channels", "stride", "counted"),
    [(1, 224, 3, 2, 33.7), (8, 224, 3, 2, 81.2), (1, 112, 3, 1, 9.7), (1, 28, 32, 1, 5.7)],
)
def test_a_filters_gradient_by_convolution(images: int, side: int, channels: int, stride: int, counted: float) -> None:
    """Batch and channels are exchanged: of few images it copies short runs. Millions of instructions on arm64."""
    b, size = Builder(), side // stride
    x = b.input("x", TensorType((images, side, side, channels)))
    dy = b.input("dy", TensorType((images, size, size, 32)))
    around = (2 - stride, 1), (2 - stride, 1)
    b.graph.outputs = {"dw": b(ops.Conv2DFilterGrad((stride, stride), around, kernel=(3, 3)), x, dy)}
    choices: list[FormChoice] = []
    lower(b.graph, target("litert-2"), choices)
    assert choices[0].form != "builtin"
    assert choices[0].alternatives["builtin"] == pytest.approx(counted * 1e6, rel=0.25)
