"""What looks like a function that an engine computes wrongly, and is another."""

from __future__ import annotations

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend import legalize as avoid
from converter.backend.targets import target
from converter.ir import Builder, TensorType, evaluate
from converter.passes.fold_constants import fold_constants


def test_a_gate_in_a_fraction_is_no_gradient_of_gelu() -> None:
    """A sigmoid becomes a tanh, as GELU does; the gradient's fraction has numbers next to nothing."""
    rng = np.random.default_rng(0)
    b, feed = Builder(), {name: rng.random((4, 5), np.float32) for name in ("x", "z")}
    x, z = (b.input(name, TensorType((4, 5))) for name in feed)
    total = b(tfl.Add(), b(tfl.Mul(), x, b(tfl.Logistic(), z)), np.float32([1]))
    b.graph.outputs = {"y": b(tfl.Div(), total, b(tfl.Add(), x, np.float32([7])))}
    after = fold_constants(avoid.without(b.graph, target("hexagon").avoids))
    found, wanted = (evaluate(graph, feed)[0]["y"] for graph in (after, b.graph))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(("low", "high"), [(-1000, 10), (-10, 1000), (-10, 10)])
def test_bounds_of_an_exponential_count_where_they_are_within_the_engine_s(low: float, high: float) -> None:
    b = Builder()
    larger = b(tfl.Maximum(), b.input("x", TensorType((4, 5))), np.float32([low]))
    b.graph.outputs = {"y": b(tfl.Exp(), b(tfl.Minimum(), larger, np.float32([high])))}
    assert bool(list(avoid.left(b.graph, ["exp"]))) == (max(-low, high) > 80)
    assert not list(avoid.left(avoid.without(b.graph, ["exp"]), ["exp"]))
