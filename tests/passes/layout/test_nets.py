"""Nets of pictures with channels first: behind the pass they are what they are with channels last."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from converter.driver.models import import_model
from converter.ir import Graph, evaluate, ops, verify
from converter.passes.canonical import canonicalize
from converter.passes.layout import assign_layouts
from converter.passes.layout.views import moves_data
from tests.pictures import NETS, twins

#: Of these what is left between the borders is in the other net as well: heads of an attention, pixels of channels, and
#: products along the height.
TURNING = ("vit", "shuffling", "resizing")
#: One of each kind; the others are left to the slow run.
QUICK = ("mobile", "convnext", "squeezing", "flattened", "shuffling")
ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NETS]


def canonical(model: object) -> Graph:
    return canonicalize(import_model(model, 2).graph)


@pytest.mark.parametrize("name", ALL)
def test_channels_first_is_channels_last(name: str) -> None:
    pair = twins(NETS[name])
    written, last = canonical(pair.first), canonical(pair.last)
    first, last = (canonicalize(verify(assign_layouts(graph), "assign_layouts")) for graph in (written, last))
    x = np.random.default_rng(0).standard_normal((2, 16, 16, 3)).astype(np.float32)
    feed, out = x.transpose(0, 3, 1, 2), evaluate(last, [x], np.float64)[0]["output"]
    expected = out.transpose(0, 3, 1, 2) if out.ndim == 4 else out
    np.testing.assert_allclose(evaluate(first, [feed], np.float64)[0]["output"], expected, rtol=1e-5, atol=1e-5)
    assert moving(first) <= moving(last) + 1 + (out.ndim == 4)
    assert name in TURNING or moving(first) == 1 + (out.ndim == 4) < moving(written)
    assert {kind: n for kind, n in kinds(first).items() if kind not in ("Transpose", "Reshape")} == {
        kind: n for kind, n in kinds(last).items() if kind not in ("Transpose", "Reshape")
    }


def test_a_net_with_channels_last_stays_as_it_is() -> None:
    for name in ("mobile", "convnext"):
        graph = canonical(twins(NETS[name]).last)
        assert assign_layouts(graph) is graph


def moving(graph: Graph) -> int:
    """How many transposes of activations there are."""
    weights = set(graph.parameters)
    found = 0
    for node in graph.nodes:
        if all(v in weights or v in graph.constants for v in node.inputs) and isinstance(node.op, ops.Movement):
            weights.add(node.output)
        elif moves_data(node):
            found += 1
    return found


def kinds(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)
