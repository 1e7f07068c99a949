"""Is B slower than A? A verdict with an interval, by the bootstrap over jobs.

Steps of one job share its luck (clocks, caches, memory layout): the job's median is one observation. Jobs of one
invocation took turns, so that those of a round are compared with each other; jobs of two runs are compared as two
samples. Where instructions are counted they take the place of times, which mean nothing under emulation.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from converter.errors import UsageError
from scripts.harness.log import Result, ResultFile

RESAMPLES = 4000
CONFIDENCE = 0.95
#: With fewer observations an interval of times means nothing. Counts repeat within 0.1 %.
LEAST_JOBS = 4
LEAST_COUNTS = 1

Verdict = Literal["PASS", "WARN", "FAIL"]


@dataclass(frozen=True)
class Comparison:
    """One variant in both files.

    Attributes:
        a, b: median of a step.
        unit: of a and b.
        ratio: b / a as estimated, with the interval low..high.
        paired: the jobs took turns.
        jobs: observations on each side.
        why: the verdict in words.
    """

    key: str
    a: float
    b: float
    unit: Literal["ms", "instructions"]
    ratio: float
    low: float
    high: float
    paired: bool
    jobs: tuple[int, int]
    verdict: Verdict
    why: str


def compare(a: ResultFile, b: ResultFile, threshold: float) -> list[Comparison]:
    """Compares the variants that both files have; a threshold of 0.05 means that a slowdown of 5 % matters.

    Raises:
        UsageError: there are none, or the files are of different devices.
    """
    ours, theirs = (f.runs[0].facts for f in (a, b))
    if (ours.kind, ours.model, ours.name) != (theirs.kind, theirs.model, theirs.name):
        raise UsageError(
            f"{a.path} is of {ours.name} ({ours.model}) and {b.path} of {theirs.name} ({theirs.model}): "
            f"numbers of two devices say nothing about a build"
        )
    before, after = _by_key(a), _by_key(b)
    keys = [key for key in before if key in after]
    if not keys:
        raise UsageError(f"{a.path} and {b.path} have no variant in common")
    return [_compare(key, before[key], after[key], _warmup(a), _warmup(b), threshold) for key in keys]


def _by_key(file: ResultFile) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for result in file.results:
        found[result.variant.key].append(result)
    return found


def _warmup(file: ResultFile) -> int:
    return file.runs[0].warmup


def observations(results: list[Result], warmup: int) -> dict[tuple[str, int], float]:
    """Median milliseconds of a step of each job, by session and round."""
    return {(r.session, r.round): float(np.median([ms for repeat in r.ms for ms in repeat[warmup:]])) for r in results}


def counts(results: list[Result]) -> dict[tuple[str, int], float]:
    """Instructions of a step of each job, by session and round."""
    return {(r.session, r.round): float(np.median(r.instructions)) for r in results}


def _compare(key: str, a: list[Result], b: list[Result], warmup_a: int, warmup_b: int, threshold: float) -> Comparison:
    is_counted = all(r.instructions for r in (*a, *b))
    x, y = (counts(a), counts(b)) if is_counted else (observations(a, warmup_a), observations(b, warmup_b))
    both = sorted(x.keys() & y.keys())
    paired = len(both) >= LEAST_JOBS
    if paired:
        logs = np.log([y[k] / x[k] for k in both])
        ratio, low, high = _interval(logs, np.zeros(1))
        jobs = (len(both), len(both))
    else:
        ratio, low, high = _interval(np.log(list(y.values())), np.log(list(x.values())))
        jobs = (len(x), len(y))
    least = LEAST_COUNTS if is_counted else LEAST_JOBS
    verdict, why = judge(ratio, low, high, threshold, min(jobs), least)
    middle_a, middle_b = (float(np.median(list(v.values()))) for v in (x, y))
    unit: Literal["ms", "instructions"] = "instructions" if is_counted else "ms"
    return Comparison(key, middle_a, middle_b, unit, ratio, low, high, paired, jobs, verdict, why)


def _interval(b: np.ndarray, a: np.ndarray) -> tuple[float, float, float]:
    """exp of median(b) − median(a), and its bootstrap interval. Seeded: the same files give the same verdict."""
    rng = np.random.default_rng(0)

    def resampled(values: np.ndarray) -> np.ndarray:
        return np.median(values[rng.integers(0, len(values), (RESAMPLES, len(values)))], axis=1)

    edges = np.quantile(resampled(b) - resampled(a), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    estimate = np.median(b) - np.median(a)
    return float(np.exp(estimate)), float(np.exp(edges[0])), float(np.exp(edges[1]))


def judge(ratio: float, low: float, high: float, threshold: float, jobs: int, least: int) -> tuple[Verdict, str]:
    """FAIL: slower by more than the threshold, and surely slower. WARN: that cannot be ruled out. PASS: it can."""
    if jobs < least:
        return "WARN", f"{jobs} jobs are too few for an interval: raise rounds in the plan to {least} or more"
    if ratio > 1 + threshold and low > 1:
        return "FAIL", f"slower by {ratio - 1:.1%}"
    if high > 1 + threshold:
        return "WARN", f"a slowdown of up to {high - 1:.1%} cannot be ruled out: raise rounds in the plan"
    if high < 1:
        return "PASS", f"faster by {1 - ratio:.1%}"
    return "PASS", f"no slowdown beyond {max(high - 1, 0):.1%}"
