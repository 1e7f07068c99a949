"""Predicted resident memory against a real process, and what the order in the file does to it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.emit.emit import Subgraph, emit
from converter.backend.lowering.state import with_variables
from converter.backend.schedule import resident, transient
from converter.backend.targets import target as find_target
from converter.ir import Builder, TensorType
from converter.program.flatbuffer import control_dependencies as order
from tests.backend.schedule.process import grown_by_training
from tests.backend.stock import run
from tests.models.zoo import CASES

#: What an interpreter takes besides, however small the program.
ROOM = 1 << 20


@pytest.mark.parametrize(
    ("name", "update", "options"),
    [
        pytest.param("mobilenetv2-0.35", "full", {}, marks=pytest.mark.slow),
        ("mobilenetv2-0.35", "sparse", {"frozen": "float16"}),
        ("mobilenetv2-0.35", "head", {"state": "stateless"}),
        ("encoder", "full", {}),
        ("encoder", "sparse", {}),
        pytest.param("encoder", "sparse", {"frozen": "float16"}, marks=pytest.mark.slow),
        ("encoder", "full", {"state": "stateless"}),
        ("encoder", "full", {"state": "split"}),
    ],
)
def test_predicted_memory_is_the_process(tmp_path: Path, name: str, update: str, options: dict[str, Any]) -> None:
    case = CASES[name]
    program = converter.build(
        case.model(), update=case.update(update), batch=16, target="litert-2/x86-64", check=False, **options
    )
    costs = program.costs
    assert costs["resident_bytes"] == sum(costs[f"{part}_bytes"] for part in ("arena", "state", "packed", "mapped"))
    grown = grown_by_training(program.write(tmp_path / "m.tflite"))
    assert grown.anonymous == pytest.approx(costs["resident_bytes"] - costs["mapped_bytes"], rel=0.1, abs=ROOM)
    assert grown.mapped == pytest.approx(costs["mapped_bytes"], rel=0.1, abs=ROOM)


@pytest.mark.parametrize(("kind", "units", "layers"), [("LSTM", 384, 1), ("GRU", 128, 2)])
def test_a_loop_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, units: int, layers: int
) -> None:
    """Its steps' arenas are there at the peak and freed after each; on this heap nothing is kept of what is freed."""
    import keras

    keras.utils.set_random_seed(0)
    cells = [getattr(keras.layers, kind)(units, return_sequences=k < layers - 1) for k in range(layers)]
    model = keras.Sequential([keras.Input((40, 32)), *cells, keras.layers.Dense(5)])
    options = {"batch": 32, "signatures": ("train",), "target": "litert-2/x86-64", "check": False}
    foreseen = {}
    for freed in (-1.0, 0.0):
        monkeypatch.setattr(sys.modules[resident.__module__], "FREED", freed)
        program = converter.build(model, **options)
        foreseen[freed] = program.costs["resident_bytes"] - program.costs["mapped_bytes"]
    assert foreseen[0.0] - foreseen[-1.0] > 2 * ROOM  # or there is nothing to leave
    grown = grown_by_training(program.write(tmp_path / "m.tflite"), steps=6)
    assert grown.anonymous == pytest.approx(foreseen[-1.0], rel=0.1, abs=ROOM)
    assert grown.peak == pytest.approx(foreseen[0.0], rel=0.1, abs=ROOM)
    budget = program.costs["resident_bytes"] * 3 // 4
    within = converter.build(model, memory_budget=budget, **options).write(tmp_path / "budget.tflite")
    grown = grown_by_training(within, steps=6)
    assert grown.peak + grown.mapped < budget + ROOM


def test_tensors_are_numbered_so_that_the_delegate_leaves_fewer_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equal values XNNPACK places the one with the lower number first: logits, their cotangent, a gradient."""
    rng, rows, tokens, width = np.random.default_rng(0), 512, 4000, 512

    def apply(p: dict[str, Any], ids: jax.Array) -> jax.Array:
        return jnp.tanh(p["tokens"][ids] @ p["hidden"]) @ p["head"]

    shapes = {"tokens": (tokens, width), "hidden": (width, width), "head": (width, tokens)}
    params = {name: rng.standard_normal(shape, np.float32) / 20 for name, shape in shapes.items()}
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, rows), np.int32)])
    options = {"signatures": ("train",), "target": "litert-2/x86-64", "check": False, "update": {"h*": 1}, "batch": 1}
    program = converter.build(model, **options)
    monkeypatch.setattr("converter.driver.assemble.numbering", lambda graph, lanes, in_order: [])
    unnumbered = converter.build(model, **options)
    grown = [grown_by_training(p.write(tmp_path / "m.tflite")).anonymous for p in (program, unnumbered)]
    assert grown[1] - grown[0] > 4 * rows * tokens * 0.8
    assert grown[0] == pytest.approx(program.costs["resident_bytes"] - program.costs["mapped_bytes"], rel=0.05)


def test_labels_do_not_cut_a_step_in_two() -> None:
    """Or all that the forward pass keeps for the backward pass would be in the arena to the end."""
    rng, rows, tokens, width = np.random.default_rng(0), 64, 1000, 128

    def apply(p: dict[str, Any], ids: jax.Array) -> jax.Array:
        x = p["tokens"][ids]
        for w in p["hidden"]:
            x = jnp.tanh(x @ w)
        return x @ p["head"]

    weights = {"tokens": (tokens, width), "head": (width, tokens)}
    params: dict[str, Any] = {name: rng.standard_normal(shape, np.float32) for name, shape in weights.items()}
    params["hidden"] = list(rng.standard_normal((8, width, width), np.float32) / 10)
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, rows), np.int32)])
    options = {"signatures": ("train",), "target": "litert-2/x86-64", "check": False}
    program = converter.build(model, update={"h*": 1}, batch=1, **options)
    needs = resident(with_variables(program.signatures["train"]), lanes=32)
    logits, gradient = 4 * rows * tokens, 4 * width * tokens
    # The product that gives the gradient packs the logits' cotangent.
    assert needs.arena + needs.workspace < 1.3 * (2 * logits + gradient + 9 * 4 * rows * width)


def test_nor_do_they_where_early_layers_take_a_part_of_the_batch() -> None:
    """Each begins with a slice of an input, which is not much of little: masks are made before they wait for labels."""
    rng, images = np.random.default_rng(0), (16, 64, 64, 3)
    shapes = {"stem": (3, 3, 3, 16), "first": (3, 3, 16, 32), "second": (1, 1, 32, 32), "last": (1, 1, 32, 32)}
    params = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    params |= {"third": params["last"], "head": rng.normal(0, 0.2, (32, 5)).astype(np.float32)}

    def apply(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for name in ("stem", "first", "second", "third", "last"):
            strides, layout = (2, 2) if name == "first" else (1, 1), ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, p[name], strides, "SAME", dimension_numbers=layout))
        return x.mean((1, 2)) @ p["head"]

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, *images[1:]), np.float32)])
    small = replace(find_target("litert-2/x86-64"), cache_bytes=1 << 14, shared_cache_bytes=1_000_000)
    update = {"second": 1, "head": 1}
    program = converter.build(model, update=update, batch=16, target=small, signatures=("train",), check=False)
    graph = with_variables(program.signatures["train"])
    assert sum(n.op == tfl.Slice((i, 0, 0, 0), (4, 64, 64, 3)) for n in graph.nodes for i in range(0, 16, 4)) == 4
    assert resident(graph, lanes=32).arena < 1.01 * 4 * np.prod(images)


def test_a_delegate_keeps_the_order_of_the_file() -> None:
    """Small operators that XNNPACK does not take stand between large ones; taken together these would all be alive."""
    b = Builder()
    x = b.input("x", TensorType((256, 1024)))
    total = b(tfl.Tanh(), x)
    for i in range(8):
        grown = b(tfl.Exp(), b(tfl.Mul(), x, b.constant(np.full(1, 1 + i, np.float32))))
        # GREATER and CAST stay with the runtime's kernels.
        mask = b(tfl.Cast(np.float32), b(tfl.Greater(), grown, total))
        total = b(tfl.Add(), total, b(tfl.Mul(), grown, mask))
    b.graph.outputs = {"y": total}
    feed = {"x": np.random.default_rng(0).standard_normal(x.shape, np.float32)}
    sizes, results = {}, {}
    for in_order in (False, True):
        model = emit([Subgraph("main", b.graph)], {}, "test", in_order=in_order)
        results[in_order] = run(model, feed, xnnpack=True)["y"]
        sizes[in_order] = transient(b.graph, lanes=32, in_order=in_order)
    assert (results[True] == results[False]).all()
    assert sizes[True] < sizes[False] * 0.7


def test_control_dependencies_are_what_the_runtime_reads() -> None:
    """Version 1; three subgraphs; pairs of signed numbers as varints."""
    assert order.control_dependencies([3, 0, 1]) == bytes([1, 3, 2, 0, 2, 2, 4, 0, 0])
    assert order.control_dependencies([66])[-4:] == bytes([2 * 64 & 0x7F | 0x80, 1, 2 * 65 & 0x7F | 0x80, 1])
