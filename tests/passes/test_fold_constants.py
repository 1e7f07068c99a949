"""Constant folding: values of what only constants decide."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_frontend
from converter.ir import verify
from converter.ir.evaluate import evaluate_outputs
from converter.passes import fold_constants

W = np.arange(6, dtype=np.float32).reshape(2, 3)


@jax.custom_vjp
def _root(x: Any) -> Any:
    return jnp.sqrt(x)


_root.defvjp(lambda x: (jnp.sqrt(x), x), lambda x, dy: (dy * x,))


def test_a_weight_with_a_derivative_of_its_own_keeps_its_shape() -> None:
    model = jax_frontend.Model(
        lambda params, x: x @ _root(params["w"]), {"w": W}, [jax.ShapeDtypeStruct((1, 2), "float32")]
    )
    graph = jax_frontend.trace(model, 4)
    graph.constants |= {value: parameter.value for value, parameter in graph.parameters.items()}
    graph.parameters = {}
    folded = verify(fold_constants(graph), "fold_constants")
    assert [node.op.name for node in folded.nodes] == ["MatMul"]
    x = np.ones((4, 2), np.float32)
    np.testing.assert_allclose(evaluate_outputs(folded, [x])[0], x @ np.sqrt(W), rtol=1e-6)
