"""Convolutions on wide pixels: right in the stock interpreter, against jax; taken where counts say that they pay."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.lowering.forms import FormChoice
from converter.backend.peephole.wide_pixels import with_wide_int8, with_wide_pixels
from converter.backend.quantize.calibrate import ranges
from converter.backend.quantize.choose import choose
from converter.backend.quantize.prefix import quantize_prefix
from converter.backend.quantize.rewrite import to_int8
from converter.backend.targets import target
from converter.ir import Builder, Graph, TensorType
from tests.backend.stock import file, run

ARM64 = target("litert-2")
RNG = np.random.default_rng(0)


def convolution(
    size: tuple[int, int, int, int], kernel: tuple[int, int], outputs: int, op: tfl.Conv2D
) -> tuple[Graph, np.ndarray, np.ndarray, np.ndarray]:
    """One fused convolution; its input, filter and bias."""
    x = RNG.standard_normal(size).astype(np.float32)
    w = RNG.standard_normal((outputs, *kernel, size[3])).astype(np.float32) / np.float32(np.sqrt(np.prod(kernel)))
    bias = RNG.standard_normal(outputs).astype(np.float32)
    b = Builder()
    b.graph.outputs = {"y": b(op, b.input("x", TensorType(size)), b.constant(w), b.constant(bias))}
    return b.graph, x, w, bias


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("size", "kernel", "strides", "columns"),
    [
        ((2, 9, 16, 3), (3, 3), (2, 2), {"SAME": {2, 4}, "VALID": set()}),  # VALID: 7 columns
        ((1, 8, 27, 3), (7, 7), (2, 2), {"SAME": set(), "VALID": set()}),  # 7 columns, or 11
        ((2, 12, 24, 2), (5, 4), (1, 2), {"SAME": {2, 3, 4}, "VALID": set()}),  # 11 columns
        ((1, 7, 14, 3), (3, 3), (1, 1), {"SAME": set(), "VALID": {3, 4}}),  # 14 by 4: no; 12 by 3 and 4
        ((1, 9, 25, 1), (2, 6), (3, 3), {"SAME": {3}, "VALID": set()}),
    ],
)  # fmt: skip
def test_every_width_is_right(size, kernel, strides, columns, padding) -> None:  # type: ignore[no-untyped-def]
    graph, x, w, bias = convolution(size, kernel, 5, tfl.Conv2D(strides, padding, activation="RELU6"))
    expected = jax.lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=("NHWC", "OHWI", "NHWC"))
    expected = np.clip(expected + bias, 0, 6)
    taken = set()
    for count in (2, 3, 4):
        choices: list[FormChoice] = []
        forced = replace(ARM64, forced=frozenset({f"wide pixels of {count}"}))
        wide = with_wide_pixels(graph, forced, choices)
        if any(choice.form == f"wide pixels of {count}" for choice in choices):
            taken.add(count)
            np.testing.assert_allclose(run(file(wide), {"x": x}, xnnpack=True)["y"], expected, rtol=1e-5, atol=1e-5)
    assert taken == columns[padding]


@pytest.mark.parametrize(
    ("machine", "size", "kernel", "outputs", "pays"),
    [
        # Counted with all that cuts and joins: 140 M instructions as it is, 99 M on wide pixels.
        ("litert-2", (2, 224, 224, 3), (7, 7), 64, True),
        ("litert-2", (8, 224, 224, 3), (3, 3), 32, False),  # 55.6 and 54.3 M: not worth the memory
        ("litert-2", (2, 56, 56, 64), (3, 3), 64, False),
        ("litert-2/x86-64", (8, 224, 224, 3), (7, 7), 64, False),
        ("gpu", (2, 224, 224, 3), (7, 7), 64, False),  # its table has the CPU's counts
    ],
)  # fmt: skip
def test_it_is_taken_where_it_pays(machine, size, kernel, outputs, pays) -> None:  # type: ignore[no-untyped-def]
    graph, *_ = convolution(size, kernel, outputs, tfl.Conv2D((2, 2), "SAME", activation="RELU"))
    choices: list[FormChoice] = []
    wide = with_wide_pixels(graph, target(machine), choices)
    assert [choice.form.startswith("wide") for choice in choices] == [True] * pays
    assert (sum(node.op.code == "CONV_2D" for node in wide.nodes) > 1) == pays


def test_a_depthwise_convolution_stays() -> None:
    b = Builder()
    x, w = b.input("x", TensorType((4, 48, 48, 16))), b.constant(np.ones((1, 3, 3, 16), np.float32))
    b.graph.outputs = {"y": b(tfl.DepthwiseConv2D(activation="RELU6"), x, w, b.constant(np.zeros(16, np.float32)))}
    forced = replace(ARM64, forced=frozenset(f"wide pixels of {count}" for count in (2, 3, 4)))
    for machine in (ARM64, forced):
        assert [node.op for node in with_wide_pixels(b.graph, machine).nodes] == [node.op for node in b.graph.nodes]


def test_a_wide_convolution_is_whole_in_int8() -> None:
    graph, x, *_ = convolution((2, 16, 16, 3), (7, 7), 8, tfl.Conv2D((2, 2), "SAME", activation="RELU"))
    wide = with_wide_pixels(graph, replace(ARM64, forced=frozenset({"wide pixels of 4"})))
    everything = set(wide.nodes)
    assert choose(wide, replace(ARM64, per_mac=dict(ARM64.per_mac) | {"conv.int8": 1e-6}))[0] == everything
    touched = [v for n in wide.nodes for v in (*n.inputs, *n.outputs) if v not in wide.constants]
    seen = ranges(wide, touched, {"x": x}, len(x))
    found = run(file(to_int8(wide, everything, set(), seen)), {"x": x}, xnnpack=True)["y"]
    expected = run(file(graph), {"x": x}, xnnpack=True)["y"]
    np.testing.assert_allclose(found, expected, atol=0.03 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("machine", "size", "kernel", "outputs", "columns"),
    [
        ("litert-2", (8, 224, 224, 3), (3, 3), 32, 2),  # counted with all around it: 26.8 M, 24.4 M on wide pixels
        ("litert-2", (2, 224, 224, 3), (7, 7), 64, 4),
        ("litert-2", (2, 28, 28, 64), (3, 3), 64, None),
        # Measured: 1.58 ms as it is, 1.61 by 2, 1.78 by 4; and 2.55 ms as it is, 0.94 by 4.
        ("litert-2/x86-64", (8, 224, 224, 3), (3, 3), 32, None),
        ("litert-2/x86-64", (2, 224, 224, 3), (7, 7), 64, 4),
    ],
)  # fmt: skip
def test_in_int8_it_is_taken_where_it_pays_there(machine, size, kernel, outputs, columns) -> None:  # type: ignore[no-untyped-def]
    graph, *_ = convolution(size, kernel, outputs, tfl.Conv2D((2, 2), "SAME", activation="RELU6"))
    wide = with_wide_int8(graph, target(machine), set(graph.outputs.values()))
    assert sum(node.op.code == "CONV_2D" for node in wide.nodes) == (columns or 1)
    assert with_wide_int8(graph, target(machine), set()).nodes == graph.nodes


def test_an_int8_prefix_begins_on_wide_pixels() -> None:
    graph, x, *_ = convolution((2, 64, 64, 3), (3, 3), 32, tfl.Conv2D((2, 2), "SAME", activation="RELU6"))
    found, layers = quantize_prefix(graph, {"x": x}, len(x), ARM64)
    assert [layer.form for layer in layers] == ["int8"]
    assert sum(node.op.code == "CONV_2D" for node in found.nodes) == 2
    expected = run(file(graph), {"x": x}, xnnpack=True)["y"]
    np.testing.assert_allclose(run(file(found), {"x": x}, xnnpack=True)["y"], expected, atol=0.03 * expected.max())
