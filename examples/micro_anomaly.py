"""An autoencoder on a microcontroller that learns its machine in the first hour: vibration of synthetic pumps.

A pump is a shaft whose harmonics pass through the resonances of its frame, with bearing and flow noise; load and speed
wander. Faults are imbalance, looseness, a worn bearing, cavitation and rubbing. None of it was measured on a real one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np

import pocketune

#: Samples a second, and in a row; bands of a row, evenly spaced to half the rate.
RATE, SAMPLES, BANDS = 4096, 4096, 64
FAULTS = ("imbalance", "looseness", "bearing", "cavitation", "rubbing")
#: Rows of the first hour: a second of vibration every ten.
HOUR = 360
_WIDTHS = (BANDS, 32, 8, 32, BANDS)


@dataclass(frozen=True)
class Machine:
    """A pump.

    Attributes:
        shaft: turns a second at its usual load.
        harmonics: how strong each is, [6].
        resonances, damping: of its frame, Hz and a share of these, [4] each.
        noise: of the flow, beside the harmonics.
        bearing: rolling contacts a turn.
    """

    shaft: float
    harmonics: np.ndarray
    resonances: np.ndarray
    damping: np.ndarray
    noise: float
    bearing: float


def machine(seed: int) -> Machine:
    """Return a pump of its own."""
    rng = np.random.default_rng((7, seed))
    harmonics = np.sort(rng.lognormal(-1.5, 0.6, 6))[::-1] * np.array([1.5, 1, 1, 0.7, 0.7, 0.5])
    resonances, damping = np.sort(rng.uniform(200, 1900, 4)), rng.uniform(0.02, 0.1, 4)
    return Machine(rng.uniform(22, 30), harmonics, resonances, damping, rng.lognormal(-1.5, 0.5), rng.uniform(3, 7))


def row(of: Machine, rng: np.random.Generator, fault: str = "") -> np.ndarray:
    """Return a second of a pump as the net reads it: the logarithm of the power in each band, float32 [64]."""
    time, load = np.arange(SAMPLES) / RATE, rng.uniform(0.6, 1.0)
    shaft = of.shaft * (1 - 0.04 * load) * rng.normal(1, 0.004)
    strength = of.harmonics * load * rng.lognormal(0, 0.1, 6)
    orders, strong = np.arange(1.0, 7.0), rng.uniform(0.5, 1.0)
    if fault == "imbalance":
        strength = strength * np.array([1 + 1.5 * strong, 1, 1, 1, 1, 1])
    if fault == "looseness":
        orders, strength = np.r_[orders, orders - 0.5], np.r_[strength, 0.35 * strong * strength]
    phases = rng.uniform(0, 2 * np.pi, len(orders))
    waves = (strength[:, None] * np.sin(2 * np.pi * np.outer(orders * shaft, time) + phases[:, None])).sum(0)
    force = waves + of.noise * rng.lognormal(0, 0.1) * rng.standard_normal(SAMPLES)
    if fault == "bearing":
        force[(np.arange(0, 1, 1 / (shaft * of.bearing)) * RATE).astype(int)] += 4 * strong * of.noise
    if fault == "cavitation":
        force += 0.6 * strong * of.noise * np.diff(rng.standard_normal(SAMPLES + 1))
    if fault == "rubbing":
        force += 0.3 * strong * np.abs(waves) * rng.standard_normal(SAMPLES)
    power = np.abs(np.fft.rfft(force * np.hanning(SAMPLES))[1:]) ** 2 * _frame(of)
    bands = power.reshape(BANDS, -1).mean(1)
    return ((np.log10(bands) - 2.5) / 1.5).astype(np.float32)


def _frame(of: Machine) -> np.ndarray:
    """Return how the frame passes power on, at each Hz from 1."""
    hertz = np.arange(1, SAMPLES // 2 + 1)[:, None]
    near = 1 / ((1 - (hertz / of.resonances) ** 2) ** 2 + (2 * of.damping * hertz / of.resonances) ** 2)
    return 0.3 + (near * 0.1).sum(1)


def rows(machines: Iterable[Machine], each: int, seed: int, fault: str = "") -> np.ndarray:
    """Return rows of machines, one machine after the other: float32 [N, 64]."""
    rng = np.random.default_rng((11, seed))
    return np.stack([row(of, rng, fault) for of in machines for _ in range(each)])


def apply(params: Mapping[str, Any], x: Any) -> Any:
    """float32 [B, 64] -> the row again, [B, 64], through eight numbers."""
    for k in range(len(params)):
        x = x @ params[f"dense{k}"]["w"] + params[f"dense{k}"]["b"]
        x = jax.nn.relu(x) if k < len(params) - 1 else x
    return x


def model(params: Mapping[str, Any] | None = None, seed: int = 0) -> pocketune.Model:
    """Return the autoencoder, new or with weights."""
    if params is None:
        rng = np.random.default_rng(seed)
        params = {
            f"dense{k}": {
                "w": (rng.standard_normal(pair) * np.sqrt(2 / pair[0])).astype(np.float32),
                "b": np.zeros(pair[1], np.float32),
            }
            for k, pair in enumerate(pairwise(_WIDTHS))
        }
    return pocketune.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, BANDS), np.float32)])


def pretrained(machines: int = 12, each: int = 100, epochs: int = 40, seed: int = 0) -> dict[str, Any]:
    """Return weights that were trained on a fleet, in seconds."""
    x = rows([machine(i) for i in range(machines)], each, seed)
    built = pocketune.build(model(seed=seed), loss="mse", optimizer="adam", batch=32, check=False)
    with pocketune.TrainingSession(built.data) as session:
        session.fit(x, x, epochs=epochs, learning_rate=2e-3, seed=seed, progress=False)
        learned = session.parameters()
    return {f"dense{k}": {part: learned[f"dense{k}/{part}"] for part in "wb"} for k in range(len(_WIDTHS) - 1)}


def program(params: Mapping[str, Any], **options: Any) -> pocketune.Program:
    """Return what a board runs: all layers train, a row at a time, as it is measured and never stored."""
    settings: dict[str, Any] = {"loss": "mse", "optimizer": "sgd", "batch": 1}
    return pocketune.build(model(params), target="tflm", check=False, **settings | options)


def errors(session: pocketune.TrainingSession, x: np.ndarray) -> np.ndarray:
    """Return how far each row comes back from what it was, [N]."""
    return ((session.infer(x) - x) ** 2).mean(1)


def detection(usual: np.ndarray, faulty: np.ndarray) -> float:
    """Return the area under the ROC curve: how often a faulty row has a larger error than a usual one."""
    return float((faulty[:, None] > usual).mean() + (faulty[:, None] == usual).mean() / 2)
