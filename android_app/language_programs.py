"""Programs of a language model of a file, for rows of several lengths and to write texts on (test_programs.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import optax

import converter
from converter.runtime import TrainingSession, generate

# Beside this file, which is imported by a script.
from recorded_traces import TOKENS  # isort: skip

#: Tokens of a row of a text that is written on, and of its prompts: less and more than one call reads.
WRITTEN, PROMPTS = 48, (1, 5, 32, 33, 40, 48)
_OPTIONS = {"optimizer": optax.adam(0.01, eps=1e-3), "update": "lora-2:q_proj,v_proj", "target": "tflite-2.16"}


def write_lengths(out: Path) -> None:
    """Make programs of a language model for rows of several lengths, and texts."""
    from tests.decoder_frontend import written

    entries = written.metadata("llama", block_count=1)
    written.write(out / "texts.gguf", "llama", entries)
    for name, how in (("lengths", {}), ("lengths-stateless", {"state": "stateless", "micro_batch": 1})):
        program = converter.build(out / "texts.gguf", length=(4, 8, TOKENS), batch=2, **_OPTIONS, **how)
        program.write(out / f"{name}.tflite")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 96, (40, TOKENS)).astype(np.int32)
    ends = rng.integers(1, TOKENS + 1, (40, 1))
    x.tofile(out / "texts.x")
    np.where(np.arange(TOKENS) < ends, np.roll(x, -1, 1), -1).astype(np.int32).tofile(out / "texts.y")
    rng.choice(np.float32([0.5, 1, 1.7]), 40).tofile(out / "texts.weight")


def write_generation(out: Path) -> None:
    """Make programs of a language model that write texts on, and what they write before and after a training."""
    rows = np.fromfile(out / "texts.x", np.int32).reshape(-1, WRITTEN)
    offered = {"length": WRITTEN, "batch": 1, "signatures": ("train", "infer", "generate")}
    for state in ("variables", "stateless"):
        program = converter.build(out / "texts.gguf", state=state, **offered, **_OPTIONS)
        program.write(out / f"generation-{state}.tflite")
    with TrainingSession(program.data) as session:

        def told() -> list[list[int]]:
            return [list(generate(session, row[:size], 10)) for row, size in zip(rows, PROMPTS, strict=False)]

        before = told()
        for _ in range(8):
            session.train(rows[:1], np.roll(rows[:1], -1, 1), 0.05)
        contents = {"rows": rows.tolist(), "sizes": PROMPTS, "before": before, "after": told()}
    (out / "generation.json").write_text(json.dumps(contents))
