"""Measurements of `scripts/device`, as far as an estimate can use them: steps of one thread on a processor."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from converter.program.file import read_program
from converter.program.manifest import Manifest
from converter.support.errors import UsageError
from converter.support.json_lines import json_lines
from converter.tools.estimate.interval import Interval

#: Figures that say that two programs of a target have the same step, whatever else they offer.
STEP = (
    *("trained_parameters", "flops_forward", "flops_backward", "flops_update", "step_cost"),
    *("traffic_bytes", "residual_bytes", "state_bytes"),
)
#: Where other programs share the processor, time of the CPU says more than time; see docs/harness.md.
_SHARED = ("local", "local-android")


@dataclass(frozen=True)
class Measured:
    """A program on a device.

    Attributes:
        file: where that is known from.
        model: what the device calls itself.
        program: its name in the results.
        manifest: what it says about itself.
        cost: what its step costs by the table of its target.
        seconds: of its steps, 5 to 95 of a hundred.
        typical: the median.
        peak_bytes: the most memory that its process held; None where nobody asked.
        available_bytes: memory that the device had left before a job, at the least; None where nobody asked.
    """

    file: str
    model: str
    program: str
    manifest: Manifest
    cost: float
    seconds: Interval
    typical: float
    peak_bytes: int | None
    available_bytes: int | None

    def is_step(self, costs: Mapping[str, Any], target: str) -> bool:
        """Return whether it is a step of these costs."""
        mine = self.manifest.costs
        return self.manifest.target == target and all(mine.get(name) == costs[name] for name in STEP)


def read_measured(
    results: Iterable[str | os.PathLike], programs: Sequence[str | os.PathLike]
) -> tuple[list[Measured], list[str]]:
    """Return what there is in result files, and sentences on what is left out of them.

    Args:
        results: files of `scripts/device bench`.
        programs: the programs that were measured, told by their content.

    Raises:
        UsageError: a file cannot be read, or is no such file or no program.
    """
    manifests = {_hash(path): read_program(path).manifest for path in programs}
    found, left_out = list[Measured](), list[str]()
    for path in map(Path, results):
        lines = list(json_lines(path))
        try:
            _read(path, lines, manifests, found, left_out)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise UsageError(
                f"{path}: a line is not as it should be ({type(error).__name__}: {error})", page="estimates"
            ) from None
    return found, left_out


def _read(
    path: Path,
    lines: Sequence[Mapping[str, Any]],
    manifests: Mapping[str, Manifest],
    found: list[Measured],
    left_out: list[str],
) -> None:
    first = next((line for line in lines if line.get("type") == "run"), None)
    if first is None:
        raise UsageError(f"{path} is no result file of scripts/device: no line of it begins a run", page="estimates")
    facts, warmup = first["facts"], int(first["setup"]["warmup"])
    if facts["is_emulator"]:
        left_out.append(f"{path}: of an emulated device, whose times say nothing")
        return
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("type") == "result" and not line.get("discarded"):
            if line["runs"] == "cpu" and line["variant"]["threads"] == 1:
                groups.setdefault(line["variant"]["sha256"], []).append(line)
            else:
                left_out.append(f"{path}: {line['variant']['program']}: not on the processor with one thread")
    column = "cpu_ms" if facts["kind"] in _SHARED else "ms"
    for sha256, jobs in groups.items():
        name = str(jobs[0]["variant"]["program"])
        if sha256 not in manifests:
            left_out.append(f"{path}: {name}: what it costs by the table is not known; name it: --program {name}")
            continue
        manifest = manifests[sha256]
        if any(manifest.costs.get(figure) is None for figure in STEP):
            left_out.append(f"{path}: {name}: built by another Pocketune, whose costs are not those of this one")
            continue
        times = sorted(float(ms) / 1e3 for job in jobs for repeat in job[column] for ms in repeat[warmup:])
        if not times or times[0] < 0 or not times[-1] < float("inf") or not median(times):
            raise ValueError(f"the times of {name} are none")
        cuts = quantiles(times, n=20) if len(times) > 1 else times
        peaks = [int(job["peak_kib"]) << 10 for job in jobs if job.get("peak_kib")]
        free = [int(job["before"]["available_bytes"]) for job in jobs if job["before"].get("available_bytes")]
        found.append(
            Measured(
                file=str(path),
                model=str(facts["model"]),
                program=name,
                manifest=manifest,
                cost=float(manifest.costs["step_cost"] or 0),
                seconds=Interval(max(cuts[0], times[0]), min(cuts[-1], times[-1])),
                typical=median(times),
                peak_bytes=max(peaks, default=None),
                available_bytes=min(free, default=None),
            )
        )
    left_out[:] = dict.fromkeys(left_out)


def _hash(path: str | os.PathLike) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(path)}: {error.strerror}", page="estimates") from None
