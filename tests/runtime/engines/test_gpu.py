"""LiteRT's GPU engine where a machine has a Vulkan loader, and perhaps no driver that serves."""

from __future__ import annotations

import ctypes.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from converter.runtime.engines import gpu
from converter.runtime.engines.smallest import smallest_program

#: Where SwiftShader is set up here; empty where it is not.
OWN = gpu.Gpu().environment()


@pytest.fixture
def with_a_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("POCKETUNE_ENGINES", str(tmp_path))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so.1")
    gpu._runs_here.cache_clear()
    yield monkeypatch
    gpu._runs_here.cache_clear()


def test_a_loader_without_a_driver_that_serves_is_no_gpu(with_a_loader: pytest.MonkeyPatch) -> None:
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        with_a_loader.setenv(name, "/there/is/none.json")
    said = gpu.Gpu().missing() or ""
    assert "can use no Vulkan driver" in said
    assert "engines gpu" in said


def test_a_loader_with_one_that_serves_is(with_a_loader: pytest.MonkeyPatch) -> None:
    if not OWN:
        pytest.skip("gpu: there is no SwiftShader")
    for name, value in OWN.items():
        with_a_loader.setenv(name, value)
    assert gpu.Gpu().missing() is None


def test_the_smallest_program_is_one() -> None:
    runner = Interpreter(model_content=smallest_program()).get_signature_runner("main")
    x = np.array([1, -2, 0.5, 3], np.float32)
    assert runner(x=x)["y"].tolist() == (x + x).tolist()
