"""The first convolution of a trained net: what a window meets of an image's three channels is gathered by a filter."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax import lax

from converter.backend import builtins as tfl
from converter.backend.costs.costs import costs
from converter.backend.lowering.forms import FormChoice
from converter.backend.lowering.lower import lower
from converter.backend.schedule import recompute
from converter.backend.targets import Target, target
from converter.ir import Builder, Graph, TensorType, ops
from tests.backend.stock import file, run

X86 = target("litert-2/x86-64")
IMAGES, KERNEL, OUTPUTS = (2, 64, 64, 3), (7, 7), 16


def stem() -> tuple[ops.Conv2D, Graph]:
    """A 7x7 convolution with stride 2 of images, and its filter's cotangent."""
    op = ops.Conv2D((2, 2), ((2, 3), (2, 3)))
    b = Builder()
    x, w = b.input("x", TensorType(IMAGES)), b.input("w", TensorType((OUTPUTS, *KERNEL, 3)))
    dy = b.input("dy", TensorType((2, 32, 32, OUTPUTS)))
    b.graph.outputs = {"y": b(op, x, w), "dw": b(ops.Conv2DFilterGrad(op.strides, op.padding, kernel=KERNEL), x, dy)}
    return op, b.graph


def lowered(graph: Graph, machine: Target) -> tuple[Graph, list[str]]:
    choices: list[FormChoice] = []
    return lower(graph, machine, choices), [choice.form for choice in choices]


@pytest.mark.parametrize("form", ["gathered", "gathered columns"])
def test_a_stem_is_gathered_where_a_trained_convolution_is_slow(form: str) -> None:
    op, graph = stem()
    assert all(taken.startswith("gathered") for taken in lowered(graph, X86)[1])
    found, forms = lowered(graph, replace(X86, forced=frozenset({form})))
    assert forms == [form, form]
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}

    def conv(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, w, op.strides, op.padding, dimension_numbers=("NHWC", "OHWI", "NHWC"))

    y, back = jax.vjp(conv, feed["x"], feed["w"])
    result = run(file(found), feed, xnnpack=True)
    np.testing.assert_allclose(result["y"], y, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result["dw"], back(feed["dy"])[1], rtol=1e-4, atol=1e-3)


def test_gathering_is_none_of_the_models_work() -> None:
    """The FLOPs of a step are what its products ask for, in whichever form."""
    _, graph = stem()
    products = 2 * 2 * (2 * 32 * 32 * OUTPUTS * 7 * 7 * 3)
    counted = costs({"train": lowered(graph, X86)[0]}, X86, "variables")["flops_forward"]
    assert products <= counted < 1.1 * products


def test_engines_that_keep_no_variables_are_no_processors() -> None:
    _, graph = stem()
    assert not any(taken.startswith("gathered") for taken in lowered(graph, replace(X86, state="split"))[1])


def test_what_was_gathered_is_gathered_again_for_the_filter() -> None:
    """Nine times the image is not kept from the forward to the backward pass."""
    b = Builder()
    x, ones = b.input("x", TensorType((4, 64, 64, 3))), np.eye(27, dtype=np.float32).reshape(27, 3, 3, 3)
    contracted = b(tfl.Gathering((1, 1), "SAME"), x, b.constant(ones), b.constant(np.zeros(27, np.float32)))
    y = b(tfl.BatchMatmul(), contracted, b.input("w", TensorType((27, 27))))
    with b.at(replace(b.graph.nodes[0].origin, phase="backward")):
        b.graph.outputs = {"dw": b(tfl.Mul(), contracted, y)}
    again = recompute(b.graph)
    assert sum(isinstance(node.op, tfl.Gathering) for node in again.nodes) == 2
