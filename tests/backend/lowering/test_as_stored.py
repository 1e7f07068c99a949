"""Input gradients by a frozen filter as the forward pass stores it, in each form, beside JAX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from converter.backend.lowering.forms import FormChoice
from converter.backend.lowering.lower import lower
from converter.backend.targets import target
from converter.ir import Builder, TensorType, ops
from converter.ir.evaluate import evaluate_outputs
from converter.passes import eliminate_dead_code, fold_constants

#: (height, width), (kh, kw), strides, dilation, ((top, bottom), (left, right))
WINDOWS: dict[str, tuple[Any, ...]] = {
    "same": ((7, 6), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))),
    "valid": ((6, 8), (3, 2), (1, 1), (1, 1), ((0, 0), (0, 0))),
    "wide padding": ((5, 5), (3, 3), (1, 1), (1, 1), ((2, 0), (0, 3))),
    "stride 2": ((8, 7), (3, 3), (2, 2), (1, 1), ((1, 1), (1, 1))),
    "stride 2, even": ((8, 8), (3, 3), (2, 2), (1, 1), ((0, 1), (0, 1))),
    "strides": ((9, 10), (3, 5), (2, 3), (1, 1), ((1, 0), (2, 2))),
    "few taps": ((9, 9), (1, 2), (3, 2), (1, 1), ((0, 0), (0, 1))),
    "one tap": ((6, 5), (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
    "one tap, stride 2": ((7, 6), (1, 1), (2, 2), (1, 1), ((0, 0), (0, 0))),
    "dilated": ((9, 8), (3, 3), (1, 1), (2, 2), ((2, 2), (2, 2))),
    "dilated, stride 2": ((9, 8), (3, 2), (2, 2), (2, 3), ((2, 1), (0, 2))),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_every_form_is_jax_own(name: str) -> None:
    size, kernel, strides, dilation, padding = WINDOWS[name]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((5, *kernel, 4)).astype(np.float32)  # OHWI

    def forward(x: jax.Array) -> jax.Array:
        layout = ("NHWC", "OHWI", "NHWC")
        return lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=layout)

    y, back = jax.vjp(forward, np.zeros((2, *size, 4), np.float32))
    dy = rng.standard_normal(y.shape).astype(np.float32)
    (expected,) = back(dy)
    b, op = Builder(), ops.Conv2DInputGrad(strides, padding, dilation, size=size)
    b.graph.outputs = {"dx": b(op, b.input("dy", TensorType(dy.shape)), b.constant(w))}
    choices: list[FormChoice] = []
    lower(b.graph, target("litert-2"), choices)
    (choice,) = choices
    for form in (choice.form, *choice.alternatives):
        forced = replace(target("litert-2"), forced=frozenset({form}))
        lowered = eliminate_dead_code(fold_constants(lower(b.graph, forced)))
        (found,) = evaluate_outputs(lowered, [dy])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=form)
        stored = [array for array in lowered.constants.values() if array.size == w.size and array.dtype == w.dtype]
        assert all(np.array_equal(array.reshape(-1), w.reshape(-1)) for array in stored), form
