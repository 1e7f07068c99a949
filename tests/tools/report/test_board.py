"""The arena of a program for microcontrollers as a report shows it, beside what TensorFlow Lite Micro says of it."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converter
from converter.backend.schedule.micro_arena import micro_arena, micro_plan
from converter.backend.targets import target
from converter.program.file import read_program
from converter.runtime.engines import engine
from converter.support.words import size
from converter.tools.micro.entries import entries
from converter.tools.micro.joined import joined
from converter.tools.report.contents import ReportContents, contents_of
from converter.tools.report.overlay import overlays
from converter.tools.report.page import render
from tests.runtime.engines.micro_nets import NETS, image
from tests.tools.report.test_account import looping

MISSING = engine("tflm").missing()
with_wheel = pytest.mark.skipif(MISSING is not None, reason=f"tflm: {MISSING}")
RECORDS = target("tflm").records
ON_FEATURES = ("train", "features", "evaluate", "infer")
BUILDS: dict[str, Any] = {
    "head": lambda: (NETS["keyword"]().model(), {"update": "head", "batch": 1}),
    "rows added up": lambda: (NETS["mlp-elu"]().model(), {"update": "full", "batch": 4, "micro_batch": 1}),
    "attention": lambda: (NETS["attention"]().model(), {"update": "full", "batch": 2}),
    "loop": lambda: (looping(), {"update": "head", "batch": 2}),
    "split": lambda: (NETS["autoencoder"]().model(), {"batch": 1, "loss": "mse", "state": "split"}),
    "int8": lambda: (
        image().model(),
        {
            "update": "head", "batch": 1, "signatures": ON_FEATURES, "frozen": "int8",
            "calibration": image().rows(8, np.random.default_rng(0)),
        },
    ),
}  # fmt: skip
CALLS = {
    "rows added up": ["accumulate", "apply"],
    "int8": ["features", "train_features"],
    "split": ["gradients", "apply"],
}


@functools.cache
def contents(name: str) -> ReportContents:
    model, options = BUILDS[name]()
    built = converter.build(model, target="tflm", check=False, optimizer="sgd", **options)
    return contents_of(read_program(built.data))


@pytest.mark.parametrize("name", BUILDS)
def test_what_lies_where_fills_the_arena_that_is_predicted(name: str) -> None:
    found = contents(name)
    assert list(found.runs) == CALLS.get(name, ["train"])
    held = max(run.memory.arena for run in found.runs.values())
    if name != "split":  # whose rows no sketch takes in int8
        assert held == found.program.manifest.costs["arena_bytes"]
    for call, run in found.runs.items():
        assert run.plan is not None
        arena, pieces = run.plan.plan.arena, run.plan.plan.pieces
        placed = [p for p in pieces if p.offset is not None]
        assert max(p.offset + p.nbytes for p in placed if p.offset is not None) == arena.tensors
        assert sum(p.nbytes for p in pieces if p.kind == "records") == arena.records
        assert sum(p.nbytes for p in pieces if p.kind == "copy") == arena.copies
        assert max(run.alive()) <= arena.used <= run.memory.arena
        for at in range(len(run.places)):
            there = sorted((p.offset, p.nbytes) for p in placed if p.first <= at <= p.last and p.offset is not None)
            assert all(start + nbytes <= after for (start, nbytes), (after, _) in pairwise(there))
        kinds = [found.operators[call][place] for place in run.places]
        assert ("QUANTIZE" in kinds) <= (name != "int8")  # the session makes int8 of a row


@pytest.mark.parametrize("name", BUILDS)
def test_the_page_tells_where_all_lies_at_the_peak(name: str) -> None:
    found = contents(name)
    text = render(found)
    assert "XNNPACK’s workspace while" not in text
    for peak in found.peaks():
        ends = [start + nbytes for start, nbytes, *_ in peak.placed]
        assert [start for start, *_ in peak.placed] == [0, *ends[:-1]]
        assert ends[-1] == dict(peak.filled)["tensors, with gaps between them"]
        *parts, (_, whole) = peak.filled
        assert sum(nbytes for _, nbytes in parts) == whole == peak.held
        assert f"held {size(peak.held)}" in text
        assert f"{peak.call}: who lies where at the peak" in text
    alive = overlays(found)["memory"]
    assert {name: max(v["value"] for v in data["results"].values()) for name, data in alive.items()} == {
        peak.call: peak.nbytes for peak in found.peaks()
    }


@with_wheel
@pytest.mark.parametrize("name", [name for name in BUILDS if name != "split"])
def test_the_stock_interpreter_allocates_what_is_drawn(name: str, tmp_path: Path) -> None:
    """`print_allocations`: tensors are its head to the byte; records, of eight-byte pointers there, its tail."""
    found = contents(name)
    for entry in entries(found.program):
        if entry.name not in found.runs:
            continue
        alone = joined(found.program, [entry]).data
        head, tail, operators = allocations(alone, tmp_path)
        run = found.runs[entry.name]
        assert run.plan is not None
        assert run.plan.plan.arena.tensors == head
        bodies = sum(len(graph.operators) for graph in entry.graphs[1:])
        assert len(run.places) + bodies == operators
        assert micro_plan(alone, RECORDS["wheel"]).arena == micro_arena(alone, RECORDS["wheel"])
        of_the_wheel = micro_plan(alone, RECORDS["wheel"]).arena
        assert of_the_wheel.records + of_the_wheel.copies == pytest.approx(tail, rel=0.03)


def allocations(program: bytes, folder: Path) -> tuple[int, int, int]:
    """Return the bytes of head and tail, and how many operators, as the wheel prints them."""
    (folder / "alone.tflite").write_bytes(program)
    code = (
        "import sys; from tflite_micro.python.tflite_micro.runtime import Interpreter as I; "
        "I.from_file(sys.argv[1], arena_size=1 << 20).print_allocations()"
    )
    command = [sys.executable, "-c", code, str(folder / "alone.tflite")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    said = done.stdout + done.stderr
    head, tail = (int(re.findall(rf"Arena allocation {part} (\d+) bytes", said)[-1]) for part in ("head", "tail"))
    return head, tail, int(re.findall(r"for (\d+) NodeAndRegistration", said)[-1])
