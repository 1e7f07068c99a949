"""Spaces and evaluations without a model: what a scheme costs and scores is computed from its rules."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import numpy as np

from converter.tools.search.space import Block, Layer, Space
from converter.tools.search.subject import Evaluation

NAMED = ("full", "head", "bias-only", "pockengine")


def space(blocks: int = 3, ratios: tuple[float, ...] = (0.25, 1.0)) -> Space:
    """Blocks of one layer with a bias, and a head."""
    names = [f"block_{i}" for i in range(blocks)]
    return Space(
        tuple(Block(name, (f"{name}/b",), (f"{name}/w", f"{name}/b")) for name in names),
        tuple(Layer(f"{name}/w", i, ratios) for i, name in enumerate(names)),
        ("head/w",),
    )


def rules(update: Any, blocks: int = 3) -> dict[str, float]:
    """What a scheme grants."""
    names = [f"block_{i}/{kind}" for i in range(blocks) for kind in "wb"]
    named = {
        "head": {},
        "full": dict.fromkeys(names, 1.0),
        "bias-only": dict.fromkeys(names[1::2], 1.0),
        "pockengine": {names[-2]: 1.0, names[-1]: 1.0},
    }
    return {**(named[update] if isinstance(update, str) else update), "head/w": 1.0}


def nanoseconds(costs: dict[str, float]) -> float:
    """What a step takes on a machine that is quick at products."""
    return 0.5 * costs["product_cost"] + 2 * (costs["step_cost"] - costs["product_cost"])


def fake(job: Evaluation) -> dict[str, Any]:
    """Later blocks gain more, gains saturate, each seed and rate is off by something of its own."""
    if job.update is None:
        return {"information": {"block_2/w": [3.0, 2.0, 1.0, 0.5]}, "gradients": {"block_2/w": 2.0, "block_1/w": 1.0}}
    granted = rules(job.update)
    first = min((int(name[6]) for name in granted if name.startswith("block")), default=3)
    size = sum(share * (1 if name.endswith("w") else 0.01) for name, share in granted.items())
    if job.timed:
        busy = 1 + crc32(json.dumps(job.update).encode()) % 7 if job.update != "head" else 1
        return {"times": [busy * nanoseconds(fake(Evaluation(update))["costs"]) for update in (job.update, "head")]}
    if not job.trials:
        memory, step = 1000 + 400 * size + 100 * (3 - first) ** 2, 2000 + 900 * size + 700 * (3 - first)
        return {
            "costs": {
                "resident_bytes": round(memory),
                "step_cost": round(step),
                "product_cost": round(step - 1500),
                "trained_parameters": 1,
            }
        }
    worth = sum((1 + int(name[6])) * share**0.5 for name, share in granted.items() if name.startswith("block"))
    scores: list[float | None] = []
    for trial in job.trials:
        noise = crc32(json.dumps([job.update, trial.on, trial.seed, trial.rate], sort_keys=True).encode()) / 2**32
        score = float(np.tanh(worth / 8)) / 2 + 0.02 * noise - 0.05 * (trial.rate < 0.01)
        scores.append(None if trial.rate > 1 else score)
    return {"scores": scores}
