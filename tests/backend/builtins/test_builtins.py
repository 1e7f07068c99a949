"""Every builtin's reference meaning against the stock interpreter's kernels, XNNPACK's and its own."""

from __future__ import annotations

import inspect
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.backend import builtins as tfl
from converter.ir import Op, ShapeError, TensorType, evaluate
from tests.backend.builtins.cases import CARRIED, QUANTIZED, STATE, Case, all_cases, floats
from tests.backend.stock import file, one_op, run

CASES: dict[str, list[Case]] = defaultdict(list)
for case in all_cases():
    CASES[type(case.op).__name__].append(case)


def concrete(kind: type[tfl.Builtin] = tfl.Builtin) -> set[type[tfl.Builtin]]:
    """All builtins with a code, wherever they are defined."""
    own = {kind} if "code" in vars(kind) else set()
    return own.union(*(concrete(sub) for sub in kind.__subclasses__()))


def check(case: Case, xnnpack: bool) -> None:
    """One case in one runtime: same names, types, and values within rounding."""
    graph, feed = one_op(case.op, *case.arrays, constants=case.constants)
    expected, _ = evaluate(graph, feed)
    result = run(file(graph), feed, xnnpack)
    assert result.keys() == expected.keys()
    for name, want in expected.items():
        got = result[name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype), str(case)
        if want.dtype.kind == "f":
            scale = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * scale, err_msg=str(case))
        else:
            np.testing.assert_array_equal(got, want, err_msg=str(case))


def test_every_builtin_has_a_case() -> None:
    covered = {type(case.op) for cases in CASES.values() for case in cases}
    assert covered | STATE | QUANTIZED | CARRIED == concrete()


def test_every_builtin_is_exported() -> None:
    assert {kind.__name__ for kind in concrete()} <= set(dir(tfl))
    assert all(inspect.getdoc(kind) for kind in concrete())


@pytest.mark.parametrize("xnnpack", [True, False], ids=["xnnpack", "builtin"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_kernel_computes_what_the_builtin_means(name: str, xnnpack: bool) -> None:
    for case in CASES[name]:
        check(case, xnnpack)


@settings(max_examples=25, deadline=None)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(["SAME", "VALID"]),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    xnnpack=st.booleans(),
)
def test_windows_of_any_shape(
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tfl.Padding,
    channels: tuple[int, int],
    xnnpack: bool,
) -> None:
    x, (i, o) = floats(2, *size, channels[0]), channels
    for op, *weights in (
        (tfl.Conv2D(strides, padding), floats(o, *kernel, i), floats(o)),
        (tfl.DepthwiseConv2D(strides, padding), floats(1, *kernel, i * o), floats(i * o)),
        (tfl.MaxPool2D(kernel, strides, padding),),
        (tfl.AveragePool2D(kernel, strides, padding),),
    ):
        if padding == "VALID" and (size[0] < kernel[0] or size[1] < kernel[1]):
            with pytest.raises(ShapeError):
                one_op(op, x, *weights)
        else:
            check(Case(op, (x, *weights), tuple(range(1, 1 + len(weights)))), xnnpack)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (tfl.Sum((0,)), [(3,)]),
        (tfl.ArgMax(0), [(3,)]),
        (tfl.Conv2D(), [(1, 4, 4, 3), (2, 3, 3, 4), (2,)]),
        (tfl.Conv2D(), [(1, 4, 4, 3), (2, 3, 3, 3), (3,)]),
        (tfl.Conv2D(), [(4, 4, 3), (2, 3, 3, 3), (2,)]),
        (tfl.TransposeConv((1, 8, 8, 2), (2, 2)), [(2, 3, 3, 5), (1, 5, 4, 5)]),
        (tfl.FullyConnected(), [(2, 3), (4, 5)]),
        (tfl.FullyConnected(), [(2, 3), (4, 3), (3,)]),
        (tfl.BatchMatmul(), [(1, 1, 1, 1, 2, 3), (3, 4)]),
        (tfl.SpaceToDepth(2), [(1, 3, 4, 1)]),
        (tfl.DepthToSpace(2), [(1, 3, 4, 6)]),
        (tfl.ReverseV2((0, 2)), [(2, 3, 4)]),
        (tfl.Pad(((0, 1),) * 6), [(1,) * 6]),
        (tfl.PadV2(((0, 1),) * 6, 1.0), [(1,) * 6]),
        (tfl.ScatterNd((4, 2)), [(3, 1), (3, 2)]),
        (tfl.Tile((2,)), [(2, 3)]),
        (tfl.Pack(0), [(2, 3), (3, 2)]),
        (tfl.Unpack(2), [(2, 3)]),
        (tfl.AddN(), [(2, 3), (1,)]),
        (tfl.StridedSlice((0,), (4,), (2,)), [(2, 3)]),
        (tfl.Reshape(()), [(1,)]),
        (tfl.AssignVariable(), [(2,), (2,)]),
        (tfl.ReadVariable(TensorType((2,))), [(1,)]),
    ],
)
def test_operands_that_do_not_fit_are_refused_by_name(op: Op, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ShapeError, match=op.name.removesuffix("V2")):
        op.infer(*(TensorType(s) for s in shapes))


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_infer_accepts_the_runtime_accepts(name: str) -> None:
    """The same calls in the other element types: refused when the graph is built, or computed right."""
    for case in CASES[name][:3]:
        for dtype in (np.float32, np.int32, np.bool_):
            # Indices stay as they are; what else is cast is at least 1, as some ops divide.
            least = 0 if dtype == np.bool_ else 1
            arrays = tuple((np.abs(a) + least).astype(dtype) if a.dtype.kind == "f" else a for a in case.arrays)
            try:
                one_op(case.op, *arrays)
            except ShapeError:
                continue
            check(Case(case.op, arrays, case.constants), xnnpack=True)


def test_costs_are_those_of_the_mathematics() -> None:
    x, w, bias = TensorType((2, 8, 8, 3)), TensorType((4, 3, 3, 3)), TensorType((4,))
    conv = tfl.Conv2D((2, 2))
    y = conv.infer(x, w, bias)
    cost = conv.cost((x, w, bias), (y,))
    assert cost.flops == 2 * (2 * 4 * 4 * 4) * 27
    assert cost.bytes == 4 * (x.size + w.size + 4 + y.size)
    up = tfl.TransposeConv((2, 8, 8, 3), (2, 2))
    transposed = TensorType((3, 3, 3, 4))
    assert up.cost((transposed, y), (up.infer(transposed, y),)).flops == cost.flops
    dense = tfl.FullyConnected()
    operands = (TensorType((5, 7)), TensorType((11, 7)))
    assert dense.cost(operands, (dense.infer(*operands),)).flops == 2 * 5 * 7 * 11
    assert tfl.Reshape((384,)).cost((x,), (TensorType((384,)),)).flops == 0
