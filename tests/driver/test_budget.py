"""A budget of memory: what is chosen fits, in the prediction and in a real process, and what cannot fit is said."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import converter
from converter.driver import build as building
from converter.driver.budget import OTHERS
from converter.support.errors import UsageError
from converter.support.words import parse_bytes, that_fits
from tests.backend.schedule.process import STEADY_HEAP
from tests.models.zoo import CASES
from tests.steps import stepped

BATCH = 16


def built(budget: Any, **options: Any) -> converter.Program:
    case = CASES["lenet"]
    given = {"batch": BATCH, "signatures": ("train",), "check": False} | options
    return converter.build(case.model(), memory_budget=budget, **given)


@pytest.mark.quick
def test_the_largest_micro_batch_that_fits_is_chosen() -> None:
    needs = {rows: built(None, micro_batch=rows).costs["resident_bytes"] for rows in (1, 2, 4, 8, 16)}
    assert sorted(needs.values()) == [needs[rows] for rows in sorted(needs)]
    assert built(needs[16]).manifest.micro_batch == BATCH
    program = built(needs[16] - 1)
    assert program.manifest.micro_batch == 8
    assert program.costs["resident_bytes"] < needs[16]
    assert {choice.micro_batch for choice in program.tried} >= {8, 16}
    assert built(f"{needs[2]}B").manifest.micro_batch == 2


def test_the_forward_pass_runs_twice_where_nothing_else_fits() -> None:
    """It costs operations, and changes no number."""
    case = CASES["encoder"]
    options: dict[str, Any] = {"batch": 64, "signatures": ("train",), "target": "litert-2/x86-64"}
    once = converter.build(case.model(), check=False, micro_batch=64, **options)
    twice = converter.build(
        case.model(), memory_budget=once.costs["resident_bytes"] - 1, micro_batch=64, check=False, **options
    )
    assert [choice.recompute for choice in twice.tried] == [False, True]
    assert twice.tried[0].flops < twice.tried[1].flops
    assert twice.tried[1].resident_bytes == twice.costs["resident_bytes"] < once.costs["resident_bytes"]
    losses = []
    for program in (once, twice):
        losses.append(stepped(program, [case.batch(64, i) for i in range(4)], 0.1).losses)
    assert losses[0] == losses[1]


def test_the_least_is_said_where_nothing_fits() -> None:
    with pytest.raises(UsageError, match=r"300\.0 KiB") as caught:
        built("300KiB")
    said = str(caught.value)
    assert "'full'" in said
    assert "micro_batch=1" in said
    assert "update=" in said


def test_all_that_fits_is_named_with_what_it_needs_and_nothing_else() -> None:
    """What is said is what a build takes; int8 needs no samples to be foreseen."""
    whole = built(None, update="full", micro_batch=1, state="variables").costs["resident_bytes"]
    with pytest.raises(UsageError, match="These fit:") as caught:
        built(whole // 2)
    listed = re.findall(r"update='([\w-]+)'(, frozen='int[48]')?: ([\d.]+ [KM]iB) at the least", str(caught.value))
    calibration = CASES["lenet"].batch(64, 0)[0]
    fit = set()
    for name, frozen in itertools.product(OTHERS, ("float32", "int8", "int4")):
        samples = {"frozen": frozen} | ({"calibration": calibration} if frozen == "int8" else {})
        target = converter.backend.targets.target("litert-2").storing_once()
        try:
            costs = built(None, update=name, micro_batch=1, target=target, **samples).costs
        except UsageError:  # nothing becomes so
            continue
        if costs["resident_bytes"] <= whole // 2:
            fit.add((name, f", frozen={frozen!r}" * (frozen != "float32"), that_fits(costs["resident_bytes"])))
    assert set(listed) == fit
    assert len(fit) > 1


def test_the_hopeless_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than the weights in int4: nothing is; less than the state: the whole batch and the heads."""
    asked: list[tuple[str, int]] = []

    def counted(imported: Any, request: Any, needs_weights: bool) -> Any:
        asked.append((request.scheme.name, request.micro_batch))
        return plan_of(imported, request, needs_weights)

    plan_of = building._plan
    monkeypatch.setattr(building, "_plan", counted)
    with pytest.raises(UsageError, match="no scheme fits"):
        built("10KiB")
    assert asked == []
    state = built(None).costs["state_bytes"]
    asked.clear()
    with pytest.raises(UsageError, match="which needs more than"):
        built(state)
    assert asked.count(("full", BATCH)) == 1
    assert [rows for name, rows in asked if name == "full"] == [BATCH]


@pytest.mark.parametrize(
    "nbytes", [1, 1023, 1025, 12345, 1 << 20, (1 << 20) + 1, 18_408_051, 7_516_192_768, 12_345_678_901]
)
def test_a_size_that_is_said_to_be_enough_is_enough(nbytes: int) -> None:
    assert nbytes <= parse_bytes(that_fits(nbytes)) <= 1.01 * nbytes + 1


def test_what_a_loop_gives_is_not_needed_twice() -> None:
    """Two recurrent layers: the stack of the first is reshaped for the backward pass, which is then done again."""
    recurrent = [keras.layers.GRU(16, return_sequences=True), keras.layers.GRU(16)]
    model = keras.Sequential([keras.Input((49, 8)), *recurrent, keras.layers.Dense(3)])
    with pytest.raises(UsageError, match="at the least"):
        converter.build(model, batch=2, memory_budget="10KiB", signatures=("train",), check=False)


def test_a_given_micro_batch_is_held_to_the_budget() -> None:
    least = built(None, micro_batch=1).costs["resident_bytes"]
    assert built(least, micro_batch=1).manifest.micro_batch == 1
    with pytest.raises(UsageError, match="memory_budget"):
        built(least, micro_batch=8)


@pytest.mark.parametrize("budget", ["64", "many", "-1MiB", "0MiB", 0, True, 1.5])
def test_a_budget_is_a_size(budget: Any) -> None:
    with pytest.raises(UsageError, match="64MiB"):
        built(budget)


def test_sizes() -> None:
    sizes = {"64MiB": 64 << 20, "1.5 GB": 1_500_000_000, "100KB": 100_000, "7B": 7}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    assert parse_bytes(12) == 12


#: Anonymous memory that a process grows by from opening a program to the end of its third step.
_GROWTH = """
import re, sys
from pathlib import Path
import numpy as np
from converter.runtime import TrainingSession

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

data = np.load(sys.argv[2])
before = anonymous()
with TrainingSession(sys.argv[1]) as session:
    for _ in range(3):
        session.train(data["x"], data["y"], 0.01)
    print(anonymous() - before)
"""


@pytest.mark.slow
def test_the_budget_holds_in_a_real_process(tmp_path: Path) -> None:
    case, options = CASES["mobilenetv2-0.35"], {"target": "litert-2/x86-64", "signatures": ("train",), "check": False}
    most, least = (
        converter.build(case.model(), batch=64, micro_batch=rows, **options).costs["resident_bytes"] for rows in (64, 1)
    )
    assert least < most / 2  # or there is nothing to choose
    x, y = case.batch(64, 0)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    chosen = []
    for budget in (least, (least + most) // 2, most):
        program = converter.build(case.model(), batch=64, memory_budget=budget, **options)
        path = program.write(tmp_path / "program.tflite")
        command = [sys.executable, "-c", _GROWTH, str(path), str(tmp_path / "data.npz")]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | STEADY_HEAP)
        grown = int(ran.stdout)
        # The session and the first interpreter of a process take some megabytes, however small the program.
        assert grown + program.costs["mapped_bytes"] <= 1.1 * budget + (6 << 20)
        chosen.append(program.manifest.micro_batch)
    assert chosen == sorted(set(chosen)), "each budget has a micro-batch of its own"
