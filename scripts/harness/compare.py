"""Is B slower than A? A verdict with an interval, by the bootstrap over jobs.

Steps of one job share its luck (clocks, caches, memory layout): the job's median is one observation. Jobs of one
invocation took turns, so that those of a round are compared with each other; jobs of two runs are compared as two
samples, and what changed between the runs (heat, other work) is not in the interval. Where instructions are counted
they take the place of times, which mean nothing under emulation. On this machine, whose processor other programs share,
CPU time does, but for programs of several threads: their CPU time says nothing of how long a step takes.

The more variants, the sooner one of them looks slower by chance. So where there are several, a FAIL must also pass
Student's t test with Holm's correction, which keeps the chance of any false FAIL where that of one variant is.
(Wider intervals by the same bootstrap would not: for six jobs none is wider than from the least to the largest, and
what is all above 1 there is so by chance once in 64.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Literal

import numpy as np

from converter.support.errors import UsageError
from scripts.harness.device import Facts, Kind
from scripts.harness.log import Result, ResultFile

RESAMPLES = 4000
CONFIDENCE = 0.95
#: Of the interval that a FAIL takes: with 0.95, up to 4 of 100 comparisons of a build with itself ended in one.
SURE = 0.98
#: Of a false FAIL among several variants: below the interval of what is as fast as before lies 1 so often.
CHANCE = (1 - CONFIDENCE) / 2
#: With fewer observations an interval of times means nothing. Counts repeat within one in a million.
LEAST_JOBS = 6
LEAST_COUNTS = 1

Verdict = Literal["PASS", "WARN", "FAIL"]
Unit = Literal["ms", "ms of CPU", "instructions"]
#: Devices on which other programs share the processor.
SHARED: tuple[Kind, ...] = ("local", "local-android")


@dataclass(frozen=True)
class Comparison:
    """One variant in both files, or in one of them.

    Attributes:
        a, b: median of a step; None where the file has no good result.
        unit: of a and b.
        ratio: b / a as estimated; None where one is missing.
        interval: of the ratio.
        paired: the jobs took turns.
        jobs: observations on each side.
        chance: of looking so slow without being slower; None where chance has no part: counts, or too few jobs.
        why: the verdict in words.
    """

    key: str
    a: float | None
    b: float | None
    unit: Unit
    ratio: float | None
    interval: tuple[float, float] | None
    paired: bool
    jobs: tuple[int, int]
    chance: float | None
    verdict: Verdict
    why: str


def compare(a: ResultFile, b: ResultFile, threshold: float) -> list[Comparison]:
    """Compares variant by variant; a threshold of 0.05 means that a slowdown of 5 % matters.

    What only one file has is a WARN.

    Raises:
        UsageError: there is no variant in common, or the files are of different devices or setups.
    """
    ours, theirs = (f.runs[0].facts for f in (a, b))
    if (ours.kind, ours.model, ours.name) != (theirs.kind, theirs.model, theirs.name):
        raise UsageError(
            f"{a.path} is of {ours.name} ({ours.model}) and {b.path} of {theirs.name} ({theirs.model}): "
            f"numbers of two devices say nothing about a build"
        )
    setup, other = (asdict(f.runs[0].setup) for f in (a, b))
    if differing := [f"{name} {setup[name]} and {other[name]}" for name in setup if setup[name] != other[name]]:
        raise UsageError(f"{a.path} and {b.path} did not train alike: {', '.join(differing)}")
    before, after = _by_key(a), _by_key(b)
    if (before and after and not before.keys() & after.keys()) or (not before and not after):
        raise UsageError(f"{a.path} and {b.path} have no variant in common")
    found = []
    for key in [*before, *(key for key in after if key not in before)]:
        if key in before and key in after:
            found.append(_compare(key, before[key], after[key], a.warmup, threshold, ours))
        else:
            found.append(_missing(key, before.get(key), after.get(key), a if key in after else b))
    return _corrected(found)


def judged(found: list[Comparison]) -> list[Comparison]:
    """Return those whose verdict is a matter of chance."""
    return [c for c in found if c.chance is not None]


def _corrected(found: list[Comparison]) -> list[Comparison]:
    """Holm's correction: the clearest FAIL of n variants is asked for a chance of CHANCE / n, the next / (n - 1), ...

    The first that is not clear enough becomes a WARN, and all that are less clear. One variant alone is judged by its
    interval.
    """
    variants = len(judged(found))
    clearest = sorted((c.chance, c.key) for c in found if c.verdict == "FAIL" and c.chance is not None)
    doubtful: set[str] = set()
    for rank, (chance, key) in enumerate(clearest if variants > 1 else []):
        if doubtful or chance > CHANCE / (variants - rank):
            doubtful.add(key)
    may_be = f"but one of {variants} variants may be so by chance: raise rounds in the plan"
    return [replace(c, verdict="WARN", why=f"{c.why}, {may_be}") if c.key in doubtful else c for c in found]


def differences(a: ResultFile, b: ResultFile) -> list[str]:
    """Return what else is not the same in two runs, in words: it may explain a difference."""
    first, second = a.runs[0], b.runs[0]
    pairs = {
        "system": (first.facts.fingerprint, second.facts.fingerprint),
        "app": tuple(app and app[:12] for app in (first.facts.app, second.facts.app)),
        "runtime": tuple(", ".join(sorted({r.runtime for r in f.results})) for f in (a, b)),
        "accepted conditions": tuple(", ".join(f.allowed) or "none" for f in (a, b)),
    }
    return [f"{name}: {x} before, {y} now" for name, (x, y) in pairs.items() if x != y]


def _missing(key: str, a: list[Result] | None, b: list[Result] | None, without: ResultFile) -> Comparison:
    about = [f.kind for f in without.faults if f.variant is None or f.variant.key == key]
    fault = about[-1] if about else None
    unit = unit_of(a or b or [], without.runs[0].facts)
    why = f"no result {'now' if b is None else 'before'}{f', the last fault is {fault!r}' if fault else ''}"

    def middle(results: list[Result] | None) -> float | None:
        found = observations(results or [], without.warmup, unit)
        return float(np.median(list(found.values()))) if found else None

    jobs = (len(a or ()), len(b or ()))
    return Comparison(key, middle(a), middle(b), unit, None, None, False, jobs, None, "WARN", why)


def _by_key(file: ResultFile) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for variant, results in file.by_variant.items():
        found[variant.key] += results
    return found


def unit_of(results: list[Result], facts: Facts) -> Unit:
    """In what the results of a variant are compared."""
    if all(r.instructions for r in results):
        return "instructions"
    # A clock in which a step takes no time is too coarse.
    is_usable = all(r.variant.threads == 1 and min(r.computed(0)) > 0 for r in results)
    return "ms of CPU" if facts.kind in SHARED and is_usable else "ms"


def observations(results: list[Result], warmup: int, unit: Unit) -> dict[tuple[str, int], float]:
    """Return the median step of each job, by session and round."""

    def steps(result: Result) -> Sequence[float]:
        match unit:
            case "instructions":
                return result.instructions
            case "ms of CPU":
                return result.computed(warmup)
            case "ms":
                return result.timed(warmup)

    return {(r.session, r.round): float(np.median(steps(r))) for r in results}


def _compare(key: str, a: list[Result], b: list[Result], warmup: int, threshold: float, facts: Facts) -> Comparison:
    unit = unit_of([*a, *b], facts)
    is_counted, is_emulator = unit == "instructions", facts.is_emulator
    x, y = (observations(results, warmup, unit) for results in (a, b))
    both = sorted(x.keys() & y.keys())
    paired = len(both) >= LEAST_JOBS
    if paired:
        logs, base = np.log([y[k] / x[k] for k in both]), np.zeros(1)
        jobs = (len(both), len(both))
    else:
        logs, base = np.log(list(y.values())), np.log(list(x.values()))
        jobs = (len(x), len(y))
    if is_emulator and not is_counted:
        why = "times of an emulated processor say nothing, so they are not compared"
        return Comparison(key, None, None, unit, None, None, paired, jobs, None, "WARN", why)
    ratio, interval, surely = _interval(logs, base)
    least = LEAST_COUNTS if is_counted else LEAST_JOBS
    verdict, why = judge(ratio, surely, interval[1], threshold, min(jobs), least)
    is_judged = not is_counted and min(jobs) >= least
    chance = chance_of(logs, base) if is_judged else None
    middle_a, middle_b = (float(np.median(list(v.values()))) for v in (x, y))
    return Comparison(key, middle_a, middle_b, unit, ratio, interval, paired, jobs, chance, verdict, why)


def _interval(b: np.ndarray, a: np.ndarray) -> tuple[float, tuple[float, float], float]:
    """exp of median(b) − median(a), its bootstrap interval, and the lower edge of the surer one that a FAIL takes.

    Seeded: the same files give the same verdict.
    """
    rng = np.random.default_rng(0)

    def resampled(values: np.ndarray) -> np.ndarray:
        return np.median(values[rng.integers(0, len(values), (RESAMPLES, len(values)))], axis=1)

    levels = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2, (1 - SURE) / 2]
    low, high, surely = (float(edge) for edge in np.exp(np.quantile(resampled(b) - resampled(a), levels)))
    return float(np.exp(np.median(b) - np.median(a))), (low, high), surely


def chance_of(b: np.ndarray, a: np.ndarray) -> float:
    """Of a mean of b that is so far above a's when both are alike: Welch's t test, one-sided. A lone a is exact."""
    from scipy import stats  # takes a second to load

    if np.ptp(b) == 0 and np.ptp(a) == 0:
        return float(b.mean() <= a.mean())
    if len(a) == 1:
        return float(stats.ttest_1samp(b, a[0], alternative="greater").pvalue)
    return float(stats.ttest_ind(b, a, equal_var=False, alternative="greater").pvalue)


def judge(ratio: float, low: float, high: float, threshold: float, jobs: int, least: int) -> tuple[Verdict, str]:
    """FAIL: slower by more than the threshold, and surely slower. WARN: that cannot be ruled out. PASS: it can.

    `low` is the lower edge of SURE's interval, `high` the upper one of CONFIDENCE's.
    """
    if jobs < least:
        return "WARN", f"{jobs} jobs are too few for an interval: raise rounds in the plan to {least} or more"
    if not all(map(isfinite, (ratio, low, high))):
        return "WARN", "the numbers are too large or too small to compare"
    if ratio > 1 + threshold and low > 1:
        return "FAIL", f"slower by {ratio - 1:.1%}"
    if high > 1 + threshold:
        return "WARN", f"a slowdown of up to {high - 1:.1%} cannot be ruled out: raise rounds in the plan"
    if high < 1:
        return "PASS", f"faster by {1 - ratio:.1%}"
    return "PASS", f"no slowdown beyond {max(high - 1, 0):.1%}"
