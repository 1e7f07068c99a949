"""Our step against other frameworks': who is timed, and what the figures say."""

from __future__ import annotations

import argparse
import json
import mmap
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import growth
import measured
import numpy as np
import pytest
from race import race
from workloads import SMALL, workload

from tests.bench.conftest import BENCH

#: A side that speaks the protocol: its losses, then steps of fixed milliseconds.
SIDE = """
import json, sys
losses, ms = json.loads(sys.argv[1])
print(json.dumps({"ready": True, "losses": losses}), flush=True)
for line in sys.stdin:
    if ms is None:
        sys.exit("out of breath")
    print(json.dumps({"ms": [ms] * int(line), "cpu_ms": [ms] * int(line)}), flush=True)
print(json.dumps({"error": None}), flush=True)
"""


def side(losses: list[float], ms: float | None) -> list[str]:
    return [sys.executable, "-c", SIDE, json.dumps([losses, ms])]


def test_only_what_trains_the_same_is_timed() -> None:
    commands = {
        "ours": side([2.0, 1.0002], 10.0),
        "jax": side([2.0, 1.0], 40.0),
        "fast": side([2.0, 1.01], 1.0),
        "lost": side([2.0, float("nan")], 1.0),
        "weak": side([2.0, 1.0], None),
        "peer": side([2.0, 1.0], 15.0),
    }
    result = race(commands, set(commands), steps=4, turn=2, threads=1, ours=1e-3)
    sides = result["sides"]
    assert "trains something else" in sides["fast"]["error"]
    assert "trains something else" in sides["lost"]["error"]
    assert "out of breath" in sides["weak"]["error"]
    assert all("ratio" not in sides[name] for name in ("ours", "fast", "lost", "weak"))
    assert sides["jax"]["ratio"]["ms"]["all"] == [4.0, 4.0]
    assert (result["best"], result["best_ratio"]) == ("peer", 1.5)


def test_nothing_is_timed_without_the_reference() -> None:
    commands = {"ours": side([2.0], 10.0), "jax": [sys.executable, "-c", "exit('no wheel')"]}
    result = race(commands, set(commands), steps=2, turn=2, threads=1, ours=1e-3)
    assert "no wheel" in result["sides"]["jax"]["error"]
    assert "jax failed" in result["sides"]["ours"]["error"]
    assert result["best"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4"])
def test_frameworks_agree_with_ours(name: str, tmp_path: Path) -> None:
    command = [sys.executable, BENCH / "peers", "--small", "--here", "--steps", "2", "--json", tmp_path / "peers.json"]
    command += ["--workloads", name, "--schemes", "sparse", "--peers", "tensorflow-folded"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "peers.json").read_text())["rows"]
    assert row["workload"] == name
    assert set(row["sides"]) == {"ours", "tensorflow-folded"}
    assert all(s["loss_difference"] < 1e-5 for s in row["sides"].values())
    # The losses move, or agreement would mean nothing.
    assert len(set(row["sides"]["ours"]["warmup_losses"])) == 3
    assert row["best"] == "tensorflow-folded"


@pytest.mark.parametrize(
    ("name", "count", "sparse"), [("W1", 3_538_984, 7 * 2 + 2), ("W2", 25_557_032 + 53_120, 8 * 2 + 2)]
)
def test_nets_are_the_ones_they_are_called(name: str, count: int, sparse: int) -> None:
    """The numbers of parameters of keras.applications and torchvision, statistics counted."""
    net = workload(name, batch=1)
    assert sum(array.size for array in net.weights.values()) == count
    assert len(net.trained["sparse"]) == sparse
    assert not any(n.endswith(("/mean", "/var")) for n in net.trained["full"])


@pytest.mark.parametrize(("name", "sparse"), [("W3", 5 + 2), ("W4", 5 + 1)])
def test_later_half_of_the_layers_is_sparse(name: str, sparse: int) -> None:
    net = workload(name, **SMALL[name])
    assert len(net.trained["sparse"]) == sparse
    assert not any(n.startswith("layers/0/") for n in net.trained["sparse"])
    assert set(net.trained["full"]) == set(net.weights)


def test_memory_of_a_step_is_told_apart(tmp_path: Path) -> None:
    """What a step holds only while it runs counts; pages of a file are no anonymous memory."""
    file = tmp_path / "weights"
    file.write_bytes(bytes(30 << 20))
    sizes: dict[str, Any] = {}

    def load() -> Any:
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)

        def step() -> float:
            sizes["sum"] = int(np.frombuffer(mapped, np.uint8)[::4096].sum())
            held = np.ones(60 << 20, np.uint8)
            # The thread that looks on comes to its turn.
            for _ in range(10):
                held += 1
            return float(held[0])

        return step

    options = argparse.Namespace(warmup=1, steps=1, threads=1, interactive=False)
    memory = measured.measure(load, options, lambda message: None)["memory"]
    assert 55e6 < memory["growth"]["anon"] < 90e6
    assert 25e6 < memory["growth"]["file"] < 40e6


def test_growth_is_told_as_an_exponent_of_the_work() -> None:
    def row(side: int, flops: int, ms: float, anon: int) -> dict[str, Any]:
        result = {"error": None, "cpu_ms": {"median": ms}, "memory": {"growth": {"anon": anon}}}
        return {"value": side, "flops": flops, "sides": {"ours": result}}

    exponents = growth._exponents(row(96, 100, 3.0, 1000), row(192, 400, 48.0, 4000))
    assert exponents == {"work": 2.0, "time": 2.0, "memory": 1.0}


def test_document_says_what_was_measured(tmp_path: Path) -> None:
    machine = {"machine": {"cpu": "Some CPU", "flags": ["avx2"]}, "threads": 1, "target": "litert-2"}
    machine |= {"micro_batch": None, "frozen": None, "cached": False, "small": False}
    memory = {"growth": {"anon": 88_000_000, "file": 4_000_000}, "peak_growth": 92_000_000}
    ours = {"error": None, "cpu_ms": {"median": 100.0}, "memory": memory}
    ratio = {"median": 1.5, "p10": 1.4, "p90": 1.6}
    sides = {
        "ours": ours,
        "tensorflow": ours | {"cpu_ms": {"median": 150.0}, "ratio": {"cpu_ms": ratio}},
        "torch": {"error": "it broke:\nno memory"},
    }
    cell = {"workload": "W1", "scheme": "head", "batch": 8, "clock": "cpu_ms", "best": "tensorflow", "sides": sides}
    grown = {"workload": "W1", "scheme": "head", "value": 16, "flops": 2e9, "exponents": {"work": 1.0, "time": 1.25}}
    results = [
        {"kind": "peers", **machine, "rows": [cell]},
        {"kind": "growth", "axis": "batch", **machine, "rows": [grown | {"sides": {"ours": ours}}]},
        {
            "kind": "arm64",
            "cpu": "cortex-a76",
            "rows": [{"workload": "W1", "scheme": "head", "instructions": 1_123_000_000}],
        },
        {
            "kind": "operators",
            **machine,
            "rows": [
                {"net": "W1 b8", "trains": "head", "frozen": "int8", "GFLOP": 4.9, "× GEMM": 0.8}
                | {"forward": 98, "backward": 1, "update": 1}
                | {"operators": "CONV_2D 70, DEPTHWISE_CONV_2D 28"}
            ],
        },
        {
            "kind": "products",
            **machine,
            "rows": [
                {"net": "W3 b8", "product": "64x32' x 64x8", "times": 2, "ms": 0.5, "GFLOP/s": 9, "TensorFlow": 8}
            ],
        },
        {"kind": "building", "remark": "", **machine, "rows": [{"net": "W2 b8", "trains": "head", "× model": 1.2}]},
    ]
    files = [tmp_path / f"{i}.json" for i in range(len(results))]
    for file, result in zip(files, results, strict=True):
        file.write_text(json.dumps(result))
    written = tmp_path / "performance.md"
    subprocess.run([sys.executable, BENCH / "performance", *files, "--output", written], check=True)
    lines = written.read_text().splitlines()
    assert "| W1 b8 | head | ours | 100.0 | | 88 | 4 | 92 |" in lines
    assert "|  |  | **tensorflow** | 150.0 | 1.50 [1.40-1.60] | 88 | 4 | 92 |" in lines
    assert "- W1 head, torch: no memory" in lines
    assert "| W1 | head | 16 | 2.00 | 1.0 | 100.0 | 1.25 | 88 |  |" in lines
    assert "| W1 | head | 1,123 M |" in lines
    assert "| W1 b8 | head | int8 | 4.9 | 0.8 | 98 | 1 | 1 | CONV_2D 70, DEPTHWISE_CONV_2D 28 |" in lines
    assert "| W3 b8 | 64x32' x 64x8 | 2 | 0.5 | 9 | 8 |" in lines
    assert "| W2 b8 | head | 1.2 |" in lines
    # Every line of a table has as many cells as the one before.
    for before, line in pairwise(lines):
        assert not (before.startswith("|") and line.startswith("|")) or before.count("|") == line.count("|"), line


def test_the_document_is_what_the_stored_figures_make(tmp_path: Path) -> None:
    written = tmp_path / "performance.md"
    subprocess.run([sys.executable, BENCH / "performance", "--output", written], check=True)
    assert written.read_text() == (BENCH.parents[1] / "docs/performance.md").read_text()


@pytest.mark.slow
def test_the_products_of_a_step_are_those_of_its_net(tmp_path: Path) -> None:
    """Of the small decoder: q, k, v and o of two layers, forward, for what they read, and for their gradients."""
    found = tmp_path / "products.json"
    command = [
        sys.executable,
        BENCH / "peers" / "products.py",
        "--small",
        "--workloads",
        "W1",
        "W4",
        "--runs",
        "1",
        "--most",
        "99",
    ]
    subprocess.run([*command, "--json", found], check=True, capture_output=True)
    rows = json.loads(found.read_text())["rows"]
    often = {row["product"]: row["times"] for row in rows if row["net"].startswith("W4")}
    assert often["32x32 x 32x32'"] == 8
    # A gradient may read the transposed values as they are, or transposed before.
    assert often["32x32 x 32x32"] + often["32x32' x 32x32"] == 16
    assert any("3x3 by channel" in row["product"] for row in rows)
    assert all(0 < row["GFLOP/s"] < 1000 for row in rows)  # no core has more


@pytest.mark.slow
def test_the_time_of_a_step_is_told_by_phase_and_operator(tmp_path: Path) -> None:
    found = tmp_path / "operators.json"
    command = [sys.executable, BENCH / "peers" / "operators.py", "--small", "--workloads", "W1", "--steps", "1"]
    subprocess.run([*command, "--json", found], check=True, capture_output=True)
    rows = json.loads(found.read_text())["rows"]
    assert [(r["trains"], r["frozen"]) for r in rows][:3] == [
        ("full", "float32"),
        ("sparse", "float32"),
        ("sparse", "int8"),
    ]
    for row in rows:
        assert 98 <= row["forward"] + row["backward"] + row["update"] <= 102
        assert row["operators"]
        assert row["frozen"] == "int8" or row["× GEMM"] > 1  # a step is more than its products
    assert rows[-2]["forward"] > rows[0]["forward"]  # a head is mostly inference


@pytest.mark.slow
def test_what_a_build_takes_is_told_against_the_model(tmp_path: Path) -> None:
    found = tmp_path / "building.json"
    command = [sys.executable, BENCH / "building.py", "--small", "--workloads", "W4", "--schemes", "full", "head"]
    subprocess.run([*command, "--json", found], check=True, capture_output=True)
    full, head = json.loads(found.read_text())["rows"]
    assert (full["trains"], head["trains"]) == ("full", "head")
    assert all(row["CPU s"] > 0 and row["peak MB"] >= row["file MB"] for row in (full, head))
