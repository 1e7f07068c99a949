"""What a scheme costs beside training everything: its file is never larger, with Adam it takes no more memory."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend
from converter.backend.targets import target
from converter.ir import nested
from examples import llama
from tests.models.zoo import CASES

SCHEMES = ("sparse", "last-1", "last-2", "bias-only", "head")
MACHINES = ("litert-2", "litert-2/x86-64")


def residual() -> jax_frontend.Model:
    """3x3 filters of stride 1 and 2, 1x1 ones of stride 2, batch norms with the statistics that they once learned."""
    rng, channels = np.random.default_rng(0), (16, 48, 96)
    params: dict[str, Any] = {"stem": _unit(rng, 3, 3, channels[0]), "head": {"b": np.zeros(5, np.float32)}}
    params["head"]["w"] = rng.normal(0, 0.1, (channels[-1], 5)).astype(np.float32)
    for i, (inputs, outputs) in enumerate(pairwise(channels)):
        parts = {"conv1": (3, inputs), "conv2": (3, outputs), "shortcut": (1, inputs)}
        params[f"block{i}"] = {name: _unit(rng, size, inside, outputs) for name, (size, inside) in parts.items()}

    def apply(p: Any, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(_normed(p["stem"], x))
        for i in range(len(channels) - 1):
            block = p[f"block{i}"]
            y = jax.nn.relu(_normed(block["conv1"], x, 2))
            x = jax.nn.relu(_normed(block["conv2"], y) + _normed(block["shortcut"], x, 2))
        return x.mean((1, 2)) @ p["head"]["w"] + p["head"]["b"]

    shape = jax.ShapeDtypeStruct((1, 24, 24, 3), np.float32)
    return jax_frontend.Model(apply, params, [shape], frozen=("*/mean", "*/var"))


def _unit(rng: np.random.Generator, size: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    w = rng.normal(0, (size * size * inputs) ** -0.5, (size, size, inputs, outputs)).astype(np.float32)
    drawn = {name: rng.uniform(0.5, 1.5, outputs).astype(np.float32) for name in ("gamma", "beta", "mean", "var")}
    return {"w": w, **drawn}


def _normed(layer: Any, x: jax.Array, stride: int = 1) -> jax.Array:
    y = jax.lax.conv_general_dilated(
        x, layer["w"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return (y - layer["mean"]) * layer["gamma"] / jnp.sqrt(layer["var"] + 1e-5) + layer["beta"]


#: One of them holds in the quick run what the others hold in the whole one.
NETS = [
    pytest.param(name, machine, marks=[] if name == "residual" and machine == "litert-2" else pytest.mark.slow)
    for name in ("residual", *CASES)
    for machine in MACHINES
]


@pytest.mark.quick
@pytest.mark.parametrize(("name", "machine"), NETS)
def test_no_scheme_costs_more_than_full(name: str, machine: str) -> None:
    model, loss = (residual(), None) if name == "residual" else (CASES[name].model(), CASES[name].loss)
    build = partial(converter.build, model, loss=loss, batch=4, optimizer="adam", target=machine, check=False)
    full = build(update="full")
    for scheme in SCHEMES:
        if scheme == "bias-only" and not any(p.endswith(("/b", "bias", "beta")) for p in _parameters(full)):
            continue  # no bias outside of its head
        program = build(update=scheme)
        assert len(program.data) <= len(full.data), scheme
        if scheme != "bias-only":  # cotangents go through all layers, and their kernels are packed twice
            assert program.costs["resident_bytes"] <= full.costs["resident_bytes"], scheme


def _parameters(program: converter.Program) -> set[str]:
    return {parameter.name for parameter in program.manifest.parameters}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_frozen_filter_is_in_the_file_once(machine: str) -> None:
    """Whatever order its numbers stand in: the sum of their sizes is the same in each."""
    program = converter.build(residual(), update="bias-only", batch=4, target=machine, check=False)
    found = _forms(program)
    assert len(found) >= 5  # of the blocks, all but the smallest
    assert {about: len(different) for about, different in found.items()} == dict.fromkeys(found, 1)


def _forms(program: converter.Program) -> dict[tuple[int, float, np.dtype], set[bytes]]:
    """Return in which orders the numbers of each large constant stand in the file."""
    found: dict[tuple[int, float, np.dtype], set[bytes]] = {}
    for graph in (inner for whole in program.signatures.values() for inner in nested(whole)):
        for array in (a for a in graph.constants.values() if a.dtype.kind == "f" and a.size >= 1 << 10):
            about = array.size, round(float(np.abs(array.astype(np.float64)).sum()), 6), array.dtype
            found.setdefault(about, set()).add(array.tobytes())
    return found


def test_engines_of_accelerators_have_kernels_of_their_own() -> None:
    assert target("litert-2").reads_as_stored
    assert not any(target(name).reads_as_stored for name in ("gpu", "web", "hexagon", "tflm", "tflite-2.16"))


@pytest.mark.parametrize("blocks", ["on", "off"])
def test_a_frozen_matrix_of_a_language_model_is_in_the_file_once(blocks: str) -> None:
    """In float32, and with float16 in that: the step, block by block or not, reads it as `infer` does."""
    for frozen in ("float32", "float16"):
        found = _forms(_language_model(frozen, blocks))
        assert len(found) == 9  # seven matrices of the layer, embedding and head
        assert {about: len(different) for about, different in found.items()} == dict.fromkeys(found, 1)
        assert {dtype for _, _, dtype in found} == {np.dtype(frozen)}


def _language_model(frozen: str, blocks: str) -> converter.Program:
    model = llama.build(layers=1, width=96, heads=4, key_heads=2, length=16, vocabulary=500)
    return converter.build(
        model, update="lora-4", frozen=frozen, batch=2, blocks=blocks, check=False, optimizer="sgd", target=MACHINES[1]
    )
