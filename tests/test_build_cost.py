"""What building itself takes."""

import subprocess
import sys

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


def test_building_takes_less_than_three_times_the_model() -> None:
    said = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True).stdout
    model, grown, file = map(int, said.split())
    assert model < file < 1.1 * model
    assert grown < 3 * model
