"""Masks kept as int8: the same gradients to the last bit, by every kernel, and less to keep."""

from __future__ import annotations

from functools import cache
from itertools import cycle

import jax
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.builtins.quantized import Quantize
from converter.backend.peephole.masks import BOOST
from converter.backend.schedule import transient
from converter.backend.schedule.saved_masks import masks_in_int8
from converter.backend.stages import in_order, to_builtins
from converter.backend.targets import target
from converter.ir import Builder, Graph, Op, Origin, TensorType, ops, verify
from converter.runtime import TrainingSession
from tests.backend.stock import file, run
from tests.models.oracle import Oracle

ARM64 = target("litert-2")
#: Winograd's form of the 3x3 layer is where most memory would be in use.
ONCE = ARM64.storing_once()
SHAPE, BATCH = (2, 16, 16, 32), 8
#: Barely positive or barely 6, neither, and what becomes a number beyond the range of int32 as int8.
EDGES = [-1.0, 0.0, 1 / BOOST, 1e-7, 3.0, np.nextafter(np.float32(6), np.float32(0)), 6.0, 1e4]


def there_and_back(kind: type[Op], grad: type[Op], reader: bool = False) -> Graph:
    """An activation between frozen convolutions, forward and backward; `reader`: it is asked for as numbers, too."""
    b, rng = Builder(), np.random.default_rng(0)
    x, dz = b.input("x", TensorType(SHAPE)), b.input("dz", TensorType(SHAPE))
    w = [b.constant(rng.standard_normal((32, 1, 1, 32)).astype(np.float32)) for _ in range(2)]
    y = b(kind(), x)
    z = b(ops.Tanh(), b(ops.Conv2D(), y, w[0]))
    with b.at(Origin("layer", "", "backward")):
        dy = b(ops.Conv2D(), b(ops.Mul(), dz, z), w[1])
        b.graph.outputs = {"dx": b(grad(), y, dy), "z": z}
        if reader:
            b.graph.outputs["dw"] = b(ops.Sum((0, 1, 2)), b(ops.Mul(), y, dy))
    return b.graph


def kept(graph: Graph) -> int:
    """Masks that are int8."""
    return sum(isinstance(node.op, Quantize) for node in graph.nodes)


def test_what_makes_a_mask_runs_in_its_order() -> None:
    """Of a ReLU6's mask two operators read the activation, here both in another shape."""
    b = Builder()
    x, dy = b.input("x", TensorType((2, 3, 4))), b.input("dy", TensorType((6, 4)))
    y = b(tfl.Mul(activation="RELU6"), x, 1.0)
    b.graph.outputs["z"] = b(tfl.Exp(), y)
    with b.at(Origin("layer", "", "backward")):
        rows = b(tfl.Reshape((6, 4)), y)
        below = b(tfl.Sub(), rows, 6.0)
        mask = b(tfl.Maximum(), b(tfl.Mul(), rows, below), -1 / BOOST)
        b.graph.outputs["dx"] = b(tfl.Mul(), dy, mask)
    assert kept(verify(masks_in_int8(b.graph), "masks_in_int8")) == 1


@pytest.mark.parametrize("xnnpack", [True, False])
@pytest.mark.parametrize(("kind", "grad"), [(ops.Relu, ops.ReluGrad), (ops.Relu6, ops.Relu6Grad)])
def test_gradients_are_the_same_to_the_last_bit(kind: type[Op], grad: type[Op], xnnpack: bool) -> None:
    before = to_builtins(there_and_back(kind, grad), ARM64)
    after = verify(masks_in_int8(before), "masks_in_int8")
    assert [kept(before), kept(after)] == [0, 1]
    rng = np.random.default_rng(1)
    feed = {"x": np.resize(np.array(EDGES, np.float32), SHAPE), "dz": rng.standard_normal(SHAPE).astype(np.float32)}
    expected, found = (run(file(graph), feed, xnnpack) for graph in (before, after))
    assert 0 < np.count_nonzero(expected["dx"]) < 0.9 * expected["dx"].size
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_what_makes_a_mask_of_relu6_is_three_passes() -> None:
    """One is that into int8: what is negative needs no clamp. The stock interpreters above agree on what it gives."""
    after = masks_in_int8(to_builtins(there_and_back(ops.Relu6, ops.Relu6Grad), ARM64))
    forward = [node.op.code for node in after.nodes if not node.origin.is_late]
    assert forward[forward.index("CONV_2D") :] == ["CONV_2D", "TANH"]
    assert forward[: forward.index("CONV_2D")] == ["RELU6", "SUB", "MUL", "QUANTIZE"]


@pytest.mark.parametrize("xnnpack", [True, False])
def test_masks_of_trained_layers_are_kept_in_another_shape(xnnpack: bool) -> None:
    """Where a 1x1 convolution trains, cotangents are rows of pixels: a RESHAPE stands in what makes the mask."""
    b, rng = Builder(), np.random.default_rng(0)
    x, dz = b.input("x", TensorType((2, 14, 14, 96))), b.input("dz", TensorType((2, 14, 14, 576)))
    w, filters = b.input("w", TensorType((576, 1, 1, 96))), rng.standard_normal((2, 1, 3, 3, 576)).astype(np.float32)
    depthwise = ops.DepthwiseConv2D(padding=((1, 1), (1, 1)))
    y = b(ops.Relu6(), b(ops.Conv2D(), x, w))
    z = b(ops.Tanh(), b(depthwise, y, b.constant(filters[0])))
    with b.at(Origin("layer", "", "backward")):
        dy = b(ops.Relu6Grad(), y, b(depthwise, b(ops.Mul(), dz, z), b.constant(filters[1])))
        b.graph.outputs = {"db": b(ops.Sum((0, 1, 2)), dy), "dw": b(ops.Conv2DFilterGrad(kernel=(1, 1)), x, dy)}
    before = to_builtins(b.graph, ARM64)
    after = verify(masks_in_int8(before), "masks_in_int8")
    assert [kept(before), kept(after)] == [0, 1]
    made = next(node for node in after.nodes if isinstance(node.op, Quantize))
    assert made.inputs[0].shape == (2 * 14 * 14, 576)
    feed = {v.name: 3 * rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    expected, found = (run(file(graph), feed, xnnpack) for graph in (before, after))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_what_is_asked_for_as_numbers_stays() -> None:
    graph = to_builtins(there_and_back(ops.Relu, ops.ReluGrad, reader=True), ARM64)
    assert masks_in_int8(graph) is graph


@cache
def net() -> jax_frontend.Model:
    """A trained convolution below frozen ones: of their activations the backward pass needs the masks alone."""
    rng = np.random.default_rng(3)
    shapes = {"first": (1, 1, 3, 8), "a": (1, 1, 8, 64), "b": (3, 3, 64, 64), "head": (64, 5)}
    shapes |= dict.fromkeys("cdefghijklmn", (1, 1, 64, 64))
    params = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for name, activation in zip(["first", *"abcdefghijklmn"], cycle([jax.nn.relu6, jax.nn.relu]), strict=False):
            dimensions = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=dimensions)
            x = activation(x)
        return x.mean((1, 2)) @ params["head"]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 12, 12, 3), np.float32)])


@pytest.mark.parametrize("xnnpack", [True, False])
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_steps_equal_jax_and_optax_in_less_memory(micro_batch: int | None, xnnpack: bool) -> None:
    update = {"first": 1.0, "head": 1.0}
    program = converter.build(
        net(), optimizer=optax.adam(1.0), update=update, batch=BATCH, micro_batch=micro_batch, target=ONCE
    )
    step = program.signatures["train" if micro_batch is None else "accumulate"]
    assert kept(step) == 15
    oracle, rng = Oracle(net(), update, optax.adam(1.0)), np.random.default_rng(5)
    with TrainingSession(program.data, xnnpack=xnnpack) as session:
        for _ in range(5):
            x, y = rng.normal(0, 1, (BATCH, 12, 12, 3)).astype(np.float32), rng.integers(0, 5, BATCH)
            weight = np.linspace(0.5, 1.5, BATCH, dtype=np.float32)
            wanted = oracle.train(x, y, 0.01, weight)
            assert session.train(x, y, learning_rate=0.01, weight=weight) == pytest.approx(wanted, rel=1e-5)
        found = session.parameters()
    for name, array in oracle.parameters().items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-5 * np.abs(array).max())


def test_it_is_done_where_it_saves_memory() -> None:
    """Behind the activation so much is made that it does not count; beside it alone it is most of what is kept."""
    for wide, wins in ((False, True), (True, False)):
        graph = there_and_back(ops.Relu, ops.ReluGrad)
        if wide:
            b = Builder(graph)
            b.graph.outputs["w"] = b(ops.Mul(), b.graph.inputs[0], b.input("wide", TensorType((64, *SHAPE))))
        lowered = to_builtins(graph, ARM64)
        assert kept(masks_in_int8(lowered)) == 1
        ordered = in_order(lowered, ARM64)
        assert kept(ordered) == wins
        assert transient(ordered, ARM64.lanes) <= transient(lowered, ARM64.lanes)


def test_older_runtimes_keep_activations() -> None:
    """TFLite 2.16.1 quantizes with aligned loads from memory that is not, on x86-64 with AVX-512."""
    for machine, masks in ((ONCE, 15), ("tflite-2.16", 0), ("litert-2,tflite-2.16", 0)):
        program = converter.build(net(), update={"first": 1.0, "head": 1.0}, batch=BATCH, target=machine, check=False)
        assert kept(program.signatures["train"]) == masks
