"""Counts of the emulated libraries: the cache model, and what becomes of an emulator's figures."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import read

from tests.bench.conftest import BENCH

LINE = 64
#: Sets and ways of the levels: 64 KiB, 512 KiB, 2 MiB.
LEVELS = ((256, 4), (1024, 8), (2048, 16))
#: In place of the emulator: a line for each program, the same whatever it is.
EMULATOR = """#!/bin/sh
[ "$1" = {counter} ] && shift
for program; do
  case $COUNT in
    instructions) echo "INFO: of XNNPACK"; echo "COUNT 2000000 fmla.4s=1000 ldst=500";;
    caches) echo "CACHES accesses=900000 l1=3000 l2=200 l3=10";;
  esac
done >&2
"""


@pytest.fixture(scope="module")
def cache_model(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("the model is C and there is no gcc: apt-get install gcc")
    folder = tmp_path_factory.mktemp("caches")
    source, library = folder / "trace.c", folder / "trace.so"
    source.write_text(
        f'#include "{BENCH.parent / "arm64" / "cache_model.h"}"\n'
        "void run(const uint64_t *addresses, const uint32_t *bytes, int count, uint64_t *found) {\n"
        "  for (int i = 0; i < count; i++) touch(addresses[i], bytes[i]);\n"
        "  found[0] = accesses; memcpy(found + 1, misses, sizeof misses);\n"
        "}\n"
    )
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
    return ctypes.CDLL(str(library))


def reference(lines: list[int]) -> list[int]:
    """Misses of each level: sets as lists, the line used last at the end."""
    levels = [[[] for _ in range(sets)] for sets, _ in LEVELS]
    misses = [0] * len(LEVELS)
    for line in lines:
        for i, (sets, ways) in enumerate(LEVELS):
            held = levels[i][line % sets]
            found = line in held
            if found:
                held.remove(line)
            held.append(line)
            del held[:-ways]
            if found:
                break
            misses[i] += 1
    return misses


def test_caches_forget_what_was_used_least_recently(cache_model: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    far = rng.integers(0, 8 << 20, 20_000)
    near = rng.integers(0, 96 << 10, 20_000)
    addresses = rng.permutation(np.concatenate([far, near, np.arange(0, 3 << 20, 48)])).astype(np.uint64)
    sizes = rng.choice([1, 4, 8], addresses.size).astype(np.uint32)
    found = np.zeros(4, np.uint64)
    cache_model.run(
        addresses.ctypes.data_as(ctypes.c_void_p), sizes.ctypes.data_as(ctypes.c_void_p), addresses.size,
        found.ctypes.data_as(ctypes.c_void_p),
    )  # fmt: skip
    lines = [
        line
        for address, size in zip(addresses.tolist(), sizes.tolist(), strict=True)
        for line in range(address // LINE, (address + size - 1) // LINE + 1)
    ]
    assert found.tolist() == [len(lines), *reference(lines)]
    assert found.tolist() == sorted(found.tolist(), reverse=True)


def test_lines_of_the_plugins_are_read() -> None:
    assert read("COUNT 12 fmul/fadd-vec=3 fmla.4s=4") == {"COUNT": 12, "fmul/fadd-vec": 3, "fmla.4s": 4}


@pytest.mark.slow
def test_steps_are_counted_and_told(tmp_path: Path) -> None:
    counter = BENCH.parent / "arm64" / "count.py"
    for name in ("python", "android"):
        (tmp_path / name).write_text(EMULATOR.format(counter=counter))
        (tmp_path / name).chmod(0o755)
    bench = [sys.executable, BENCH / "arm64", tmp_path, "--small", "--workloads", "W1", "--schemes", "head"]
    bench += ["--frozen", "float32", "--batch", "4"]
    whole, caches, document = (tmp_path / name for name in ("whole.json", "caches.json", "performance.md"))
    subprocess.run([*bench, "--json", whole], check=True)
    subprocess.run(
        [*bench, "--libraries", "litert", "--caches", "--micro-batches", "0", "2", "--json", caches], check=True
    )
    litert, android = json.loads(whole.read_text())["rows"]
    assert (litert["library"], litert["instructions"]) == ("litert", 2_000_000)
    assert (android["library"], android["instructions"]) == ("android", 2_000_000)
    flops = 2 * 1024 * 768 * 768
    assert litert["× GEMM"] == round(flops / litert["FLOP"], 3)
    whole_batch, micro = json.loads(caches.read_text())["rows"]
    assert whole_batch["L1 misses"] == 3000
    assert micro["L1 misses"] == 3 * 3000, "two calls of accumulate, one of apply"
    subprocess.run([sys.executable, BENCH / "performance", whole, caches, "--output", document], check=True)
    lines = document.read_text().splitlines()
    assert sum(line.startswith("| W1 | head | 4 | 4 | float32 | litert |") for line in lines) == 2
    assert "| W1 | head | 4 | 2 | float32 | litert | 3 M | 9000 | 600 | 30 |" in lines
