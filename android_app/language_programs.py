"""Programs of a language model of a file, for rows of several lengths and to write texts on (test_programs.py)."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

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


class JavaRandom:
    """Draws as java.util.Random does, whose documentation gives the numbers; stands in for numpy's generator."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ 0x5DEECE66D) % (1 << 48)

    def choice(self, among: np.ndarray, p: np.ndarray) -> int:
        """Return one of some tokens, by their probabilities p: the first whose sum is above what is drawn."""
        drawn = (self._next(26) * (1 << 27) + self._next(27)) / (1 << 53)
        return int(among[np.searchsorted(np.cumsum(p), drawn, side="right")])

    def _next(self, bits: int) -> int:
        self._state = (self._state * 0x5DEECE66D + 0xB) % (1 << 48)
        return self._state >> (48 - bits)


def write_generation(out: Path) -> None:
    """Make programs of a language model that write texts on, and what they write before and after a training."""
    rows = np.fromfile(out / "texts.x", np.int32).reshape(-1, WRITTEN)
    offered = {"batch": 1, "signatures": ("train", "infer", "generate")}
    exports = {"variables": {}, "stateless": {"state": "stateless"}, "lengths": {"length": (16, WRITTEN)}}
    for name, how in exports.items():
        program = converter.build(out / "texts.gguf", **{"length": WRITTEN, **offered, **_OPTIONS, **how})
        program.write(out / f"generation-{name}.tflite")
    docs = {"length": WRITTEN, "update": "lora-8:all-linear", "optimizer": "adam", **offered}
    converter.build(out / "texts.gguf", **docs).write(out / "docs-language.tflite")
    with TrainingSession(out / "generation-variables.tflite") as session:

        def told() -> tuple[list[list[int]], list[list[float]]]:
            """Return what is written behind each prompt, and the logits of the first token by the whole row."""
            texts = [list(generate(session, row[:size], 10)) for row, size in zip(rows, PROMPTS, strict=False)]
            outputs = session.infer(rows[: len(PROMPTS)])
            return texts, [outputs[i, size - 1].tolist() for i, size in enumerate(PROMPTS)]

        before, logits_before = told()
        for _ in range(8):
            session.train(rows[:1], np.roll(rows[:1], -1, 1), 0.05)
        after, logits_after = told()
        contents = {"rows": rows.tolist(), "sizes": PROMPTS, "before": before, "after": after, "drawn": []}
        contents |= {"logits_before": logits_before, "logits_after": logits_after}
        for seed, temperature, top_k, top_p in ((1, 2.0, 40, 0.95), (-7, 1.0, 5, 1.0)):
            with mock.patch("numpy.random.default_rng", JavaRandom):
                text = list(generate(session, rows[0, :1], 40, (), temperature, top_k, top_p, seed))
            how = {"seed": seed, "temperature": temperature, "topK": top_k, "topP": top_p}
            contents["drawn"].append({"sampling": how, "text": text})
    (out / "generation.json").write_text(json.dumps(contents))
