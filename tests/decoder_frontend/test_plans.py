"""Plans of language models: without their weights, the figures of the program that would be built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as Kind

import pocketune
from tests.cli.conftest import Run
from tests.decoder_frontend import written

ASKED: dict[str, Any] = {"length": 16, "batch": 1, "blocks": "on", "optimizer": "adam", "signatures": ("train",)}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "frozen"),
    [
        (Kind.Q8_0, "int4-blockwise"),
        pytest.param(Kind.Q4_0, "int4-blockwise", marks=pytest.mark.slow),
        pytest.param(Kind.Q8_0, "int4", marks=pytest.mark.slow),
        pytest.param(Kind.F32, "int4-blockwise", marks=pytest.mark.slow),
        pytest.param(Kind.Q8_0, "float32", marks=pytest.mark.slow),
    ],
)
def test_a_plan_has_the_figures_of_the_program(tmp_path: Path, kind: Kind, frozen: str) -> None:
    """What is stored in eight bits stays so in a plan too, and is read from the file as often."""
    entries = written.metadata("qwen2", embedding_length=128, feed_forward_length=256)
    written.write(tmp_path / "net.gguf", "qwen2", entries, kind=kind)
    asked = ASKED | {"frozen": frozen}
    (planned,) = pocketune.compare_schemes(tmp_path / "net.gguf", ["lora-8"], **asked)
    built = pocketune.build(tmp_path / "net.gguf", update="lora-8", check=False, **asked).costs
    exact = set(planned) - {"scheme", "resident_bytes", "mapped_bytes"}
    assert {name: planned[name] for name in exact} == {name: built[name] for name in exact}
    assert planned["mapped_bytes"] == pytest.approx(built["mapped_bytes"], rel=0.02)


def test_tables_take_the_options_of_a_build_and_say_what_is_read(run: Run, tmp_path: Path) -> None:
    entries = written.metadata("qwen2", embedding_length=1024, feed_forward_length=8192, block_count=1)
    written.write(tmp_path / "wide.gguf", "qwen2", entries, kind=Kind.Q8_0)
    flags = ("--length", "8", "--batch", "1", "--frozen", "int4", "--blocks", "on", "--signatures", "train")
    shown = run("schemes", str(tmp_path / "wide.gguf"), *flags, "--update", "lora-2:all-linear", "-q").out
    assert "lora-2:all-linear: a step reads " in shown
    assert "flash of 1 to 2 GB/s" in shown
    shown = run(
        "estimate", str(tmp_path / "wide.gguf"), *flags, "--device", "pixel-8", "--update", "lora-2:all-linear"
    ).out
    assert "labels a second; a step reads " in shown
