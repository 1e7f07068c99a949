"""Steps that hold one block of the model at a time compute what the plain ones do, in less memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optax
import pytest

import converter
from converter.backend.prepare import loss_by_classes, loss_in_parts
from converter.driver.budget import fit
from converter.driver.options import Options
from converter.driver.program import Plan
from converter.support.errors import UsageError
from examples import llama
from tests.backend.schedule.process import grown_by_training
from tests.models.zoo import CASES
from tests.steps import stepped

ENCODER = CASES["encoder"]
LENGTH, VOCABULARY = 64, 131
DECODER: dict[str, Any] = {"layers": 2, "width": 128, "heads": 4, "key_heads": 2, "length": LENGTH}
LORA: dict[str, Any] = {"update": "lora-4", "batch": 2}
Batch = Callable[[int], Any]


def decoder(**changed: Any) -> Any:
    return llama.build(**DECODER | {"vocabulary": VOCABULARY} | changed)


def tokens(seed: int, rows: int = 2, vocabulary: int = VOCABULARY) -> Any:
    return llama.sample_batch(rows, seed, LENGTH, vocabulary)


def built(model: Any, blocks: str, **options: Any) -> converter.Program:
    return converter.build(model, blocks=blocks, check=False, **{"signatures": ("train",), **options})


def flops(program: converter.Program) -> int:
    return program.costs["flops_forward"] + program.costs["flops_backward"]


def compared(model: Any, data: Batch, steps: int, **options: Any) -> tuple[converter.Program, converter.Program]:
    """The plain program and that of blocks: each loss within 1e-5, and less memory."""
    plain, again = (built(model, blocks, **options) for blocks in ("off", "on"))
    batches = [data(i) for i in range(steps)]
    assert stepped(again, batches).losses == pytest.approx(stepped(plain, batches).losses, abs=1e-5)
    assert again.costs["resident_bytes"] < plain.costs["resident_bytes"]
    return plain, again


@pytest.mark.quick
def test_a_decoder_with_adapters_trains_alike(tmp_path: Path) -> None:
    programs = compared(decoder(), tokens, 20, **LORA)
    assert flops(programs[1]) > flops(programs[0])
    peaks = []
    for number, program in enumerate(programs):
        program.write(tmp_path / f"{number}.tflite")
        peaks.append(grown_by_training(tmp_path / f"{number}.tflite").peak)
    assert peaks[1] < 0.75 * peaks[0]


def test_so_does_an_encoder_of_which_all_trains() -> None:
    plain, again = compared(ENCODER.model(), lambda i: ENCODER.batch(64, i), 20, batch=64)
    assert flops(again) > flops(plain)
    assert again.costs["arena_bytes"] < 0.9 * plain.costs["arena_bytes"]


def test_frozen_layers_in_front_do_not_keep_the_step_whole() -> None:
    """Their weights, copied from the file where they are met, cross no border of the trained blocks behind them."""
    update = {"*": 0, "layers/2/*": 1, "layers/3/*": 1}
    plain, again = compared(decoder(layers=4), tokens, 2, update=update, batch=2)
    assert flops(again) > 1.05 * flops(plain)


@pytest.mark.parametrize("frozen", ["int4", "int4-blockwise"])
def test_weights_in_int4_are_unpacked_again(frozen: str) -> None:
    """Those of the first time would all be kept until then; with a scale for each block three operators unpack one."""
    plain, again = compared(decoder(), tokens, 3, frozen=frozen, **LORA)
    assert again.costs["arena_bytes"] < 0.8 * plain.costs["arena_bytes"]
    assert again.costs["read_bytes"] > plain.costs["read_bytes"] > 0
    assert again.costs["labels"] == 2 * LENGTH


@pytest.mark.parametrize("trains", [False, True], ids=["frozen", "adapted"])
def test_logits_of_all_tokens_are_never_there_at_once(trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a head that is frozen are made some classes at a time, those of one with an adapter some rows."""
    words, logits = 4096, 2 * LENGTH * 4096 * 4
    monkeypatch.setattr(loss_in_parts, "MOST", logits // 16)
    monkeypatch.setattr(loss_in_parts, "FEWEST_ROWS", 1)
    monkeypatch.setattr(loss_by_classes, "OF_LOGITS", words * 8)
    adapted = ["layers/*", "head"] if trains else ["layers/*"]
    options: dict[str, Any] = {"update": dict.fromkeys(adapted, converter.LoRA(4)), "batch": 2}
    model = decoder(vocabulary=words, width=64, layers=1)
    plain, again = compared(model, lambda i: tokens(i, vocabulary=words), 3, **options)
    assert plain.costs["arena_bytes"] > 2 * logits
    assert again.costs["arena_bytes"] < 1.5 * logits


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"optimizer": optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1))},
            id="global norm",
            marks=pytest.mark.slow,
        ),
        pytest.param({"optimizer": "adam"}, id="adam", marks=pytest.mark.slow),
        pytest.param({"micro_batch": 1}, id="micro-batches", marks=pytest.mark.slow),
        pytest.param({"state": "split"}, id="split", marks=pytest.mark.slow),
        pytest.param({"state": "stateless"}, id="stateless"),
        pytest.param({"update": "sparse"}, id="sparse", marks=pytest.mark.slow),
        pytest.param({"update": "full"}, id="full", marks=pytest.mark.slow),
    ],
)
def test_whatever_else_a_step_is(options: dict[str, Any]) -> None:
    compared(decoder(), tokens, 5, **LORA | options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenetv2-0.35", "proxylessnas", "vit", "distilbert", "llama"])
def test_whatever_the_net(name: str, tmp_path: Path) -> None:
    """What a process really takes: the plan of a step in pieces may be a little larger than it."""
    case = CASES[name]
    plain, again = (built(case.model(), blocks, batch=32) for blocks in ("off", "on"))
    batches = [case.batch(32, i) for i in range(5)]
    assert stepped(again, batches).losses == pytest.approx(stepped(plain, batches).losses, abs=1e-5)
    peaks = []
    for number, program in enumerate((plain, again)):
        program.write(tmp_path / f"{number}.tflite")
        peaks.append(grown_by_training(tmp_path / f"{number}.tflite").peak)
    assert peaks[1] <= 1.02 * peaks[0] + (1 << 18)  # and what a process happens to hold


def test_a_budget_takes_the_way_that_is_allowed() -> None:
    """The plan of a forward pass computed again takes 60 bytes, the other 100."""

    def plan(rows: int, again: bool) -> Plan:
        sizes = {"resident_bytes": 60 if again else 100, "flops_forward": 1, "flops_backward": 1, "flops_update": 1}
        parts = dict.fromkeys(("arena_bytes", "state_bytes", "packed_bytes", "mapped_bytes"), 10)
        return Plan("full", rows, {**sizes, **parts}, converter.Program, again)

    def tried(budget: int, blocks: str) -> list[bool]:
        ways = Options(blocks=blocks).recomputes
        return [
            choice.recompute for choice in fit(budget, [1], ways, plan, lambda scheme, frozen: plan(1, False)).tried
        ]

    assert tried(100, "auto") == [False]
    assert tried(99, "auto") == [False, True]
    assert tried(100, "on") == [True]
    with pytest.raises(UsageError, match="which needs"):
        tried(99, "off")
