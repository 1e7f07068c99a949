"""A step in pieces is the step in one, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest

import converter
from converter.backend import builtins as tfl
from converter.backend.schedule import keeps_order, outline
from examples import llama
from tests.steps import assert_alike, stepped

LENGTH, VOCABULARY = 16, 131
DECODER = llama.build(layers=4, width=128, heads=4, key_heads=2, length=LENGTH, vocabulary=VOCABULARY)


def in_short_pieces(monkeypatch: pytest.MonkeyPatch, saved: int = 40) -> None:
    for name, nodes in {"LONGEST": 100, "SHORTEST_PIECE": 40, "LONGEST_PIECE": 150, "SAVED": saved}.items():
        monkeypatch.setattr(outline, name, nodes)


def with_tables(monkeypatch: pytest.MonkeyPatch, of_one: int) -> None:
    """The tables of a subgraph's tensors take so many bytes if it is in one piece."""
    monkeypatch.setattr(
        "converter.backend.stages.tables",
        lambda graph, lanes: 0 if any(isinstance(node.op, tfl.While) for node in graph.nodes) else of_one,
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"update": "lora-4", "optimizer": "adam", "frozen": "int4"}, id="adapters"),
        pytest.param({"update": "lora-4", "frozen": "int4", "state": "stateless"}, id="stateless"),
        pytest.param({"update": "full", "micro_batch": 1}, id="micro-batches"),
    ],
)
def test_a_step_in_pieces_is_the_same(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"loss": "next_token", "batch": 2, "blocks": "on", "check": False, "signatures": ("train",)}
    whole = converter.build(DECODER, **given, **options)
    in_short_pieces(monkeypatch)
    with_tables(monkeypatch, 1 << 30)
    pieces = converter.build(DECODER, **given, **options)
    step = next(iter(pieces.signatures.values()))
    bodies = [node.op.body for node in step.nodes if isinstance(node.op, tfl.While)]
    assert len(bodies) > len(set(bodies)) > 4  # blocks that are alike are runs of one
    state = options.get("state", "variables")
    assert keeps_order(pieces.signatures.values(), state) == keeps_order(whole.signatures.values(), state)
    batches = [llama.sample_batch(2, i, LENGTH, VOCABULARY) for i in range(3)]
    wanted, found = stepped(whole, batches), stepped(pieces, batches)
    assert found.losses == wanted.losses
    assert_alike(found.parameters, wanted.parameters, rtol=0)
    for key in ("trained_parameters", "flops_forward", "flops_backward", "flops_update", "residual_bytes"):
        assert pieces.costs[key] == pytest.approx(whole.costs[key], rel=0.02), key


def test_a_step_whose_tables_are_small_stays_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces more of it is alive at once, and of those here none are runs of one subgraph."""
    in_short_pieces(monkeypatch, saved=1 << 30)
    with_tables(monkeypatch, 0)
    program = converter.build(
        DECODER, loss="next_token", batch=2, update="full", blocks="on", check=False, signatures=("train",)
    )
    assert not any(isinstance(node.op, tfl.While) for node in program.signatures["train"].nodes)
