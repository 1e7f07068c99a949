"""What building itself takes."""

import os
import subprocess
import sys
import tracemalloc

import jax
import numpy as np
import pytest

import converter
import jax_frontend
from tests.backend.schedule.process import STEADY_HEAP

#: In a process of its own: what this one has freed would hide what it takes.
_CODE = """
import re
from pathlib import Path
import jax, numpy as np
import converter, jax_frontend

def kept(what):
    return int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

rng = np.random.default_rng(0)
weights = [rng.standard_normal((3072, 3072)).astype(np.float32) / 55 for _ in range(3)]
nbytes = sum(w.nbytes for w in weights)

def net(weights, x):
    for w in weights:
        x = jax.numpy.tanh(x @ w)
    return x

def build(weights):
    inputs = [jax.ShapeDtypeStruct((1, len(weights[0])), "float32")]
    return converter.build(jax_frontend.Model(net, weights, inputs), check=False)

build([w[:8, :8] for w in weights])  # imports
before = kept("VmRSS")
program = build(weights)
print(nbytes, kept("VmHWM") - before, len(program.data))
"""


def said_by(code: str) -> str:
    """The output of a process of its own."""
    command, environment = [sys.executable, "-c", code], os.environ | STEADY_HEAP
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_building_takes_little_more_than_the_file() -> None:
    said = said_by(_CODE)
    model, grown, file = map(int, said.split())
    assert model < file < 1.1 * model
    assert grown < 1.5 * model


@pytest.mark.parametrize(
    ("update", "most"),
    [
        pytest.param("full", 1.8, id="all of it trains"),
        pytest.param({"2/*": 1.0}, 1.8, id="folded, as the forward pass reads them"),
        pytest.param({"0/*": 1.0}, 2.2, id="folded, and read by the backward pass too"),
    ],
)
def test_weights_that_are_made_are_let_go_of_when_they_are_in_the_file(update: str | dict, most: float) -> None:
    rng, width = np.random.default_rng(0), 640  # so that a graph's own objects are little beside them

    def unit(k: int, inputs: int) -> dict[str, np.ndarray]:
        w = rng.standard_normal((k, k, inputs, width), np.float32) / np.float32(k * inputs**0.5)
        return {"w": w, "scale": np.linspace(0.5, 1.5, width, dtype=np.float32), "shift": np.full(width, 0.1, "f4")}

    def net(units: list[dict], x: jax.Array) -> jax.Array:
        for unit in units:
            x = jax.lax.conv_general_dilated(x, unit["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x * unit["scale"] + unit["shift"])
        return x.mean((1, 2))

    units = [unit(1, 8), unit(3, width), unit(3, width)]
    model = sum(array.nbytes for unit in units for array in unit.values())
    given = jax_frontend.Model(net, units, [jax.ShapeDtypeStruct((1, 4, 4, 8), "float32")])
    converter.build(given, batch=1, update=update, signatures=("train",), check=False)  # what is loaded but once
    tracemalloc.start()
    try:
        program = converter.build(given, update=update, signatures=("train",), check=False)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(program.data) == pytest.approx(model, rel=0.1)
    assert kept < 1.1 * len(program.data)
    assert peak < most * model


#: Of 512 arrays, too small for pages of their own, 8 are used on; as many bytes as the rest has are asked back.
_FREED = """
import mmap
from pathlib import Path
import numpy as np
from converter.support.collecting import give_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

arrays = [np.ones(1 << 16, np.uint8) for _ in range(512)]
used = arrays[::64]
before = resident()
del arrays
kept = before - resident()
give_back()
assert all(array.all() for array in used)
print(kept, before - resident())
"""


def test_memory_that_was_freed_before_what_is_used_goes_back_to_the_system() -> None:
    by_itself, asked = map(int, said_by(_FREED).split())
    assert by_itself < 100 << 16
    assert asked > 400 << 16
