"""A target's table of a device: what each form of an operator costs there, by programs that run little else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from converter.backend.targets import tables
from converter.backend.targets import target as find_target
from converter.support.errors import NumericError, PocketuneError, UsageError
from converter.tools.measure import Case, figures, fitted
from converter.tools.measure.programs import Timed, timed_programs
from scripts.harness.bench import Options, Say, result_path, run_all
from scripts.harness.device import Device
from scripts.harness.log import Result, read_results
from scripts.harness.plan import Bench, Plan, subject_of

#: The least of a few steps in two jobs is told, so there need not be many.
_STEPS, _WARMUP, _ROUNDS = 12, 3, 2


def table_of(
    device: Device, chosen: Sequence[Case], like: str | None, name: str, folder: Path, options: Options, say: Say
) -> tuple[str, list[PocketuneError]]:
    """Measures the cases on a device.

    Args:
        device: where.
        chosen: the cases; of forms that the target has no figure of, none is measured.
        like: the target that the programs are built for, whose table gives what is not measured; None: that of LiteRT
            on such a processor.
        name: of the new table's target.
        folder: takes the programs.
        options: where results go, and whether to finish an earlier run.
        say: narrates.

    Returns:
        The table, as text, and what could not be measured: such figures are guessed from the others.

    Raises:
        UsageError: the target is none with a table of its own.
        PocketuneError: of the device; nothing was measured.
    """
    facts = device.facts()
    if like is None:
        like = "litert-2" if any("arm64" in abi or abi == "aarch64" for abi in facts.abis) else "litert-2/x86-64"
    target, table = find_target(like), tables().get(like)
    if table is None or re.search(r"^like = ", table, re.MULTILINE):
        raise UsageError(f"--like {like}: it has no table of its own that could be measured anew")
    # A runtime that has no kernel of a form has no figure of it: int8 weights of a scale a channel in dense layers.
    offered = [case for case in chosen if "." not in case.form or case.form in target.per_mac]
    programs = timed_programs(offered, target)
    ended = run_all([device], _bench(programs, folder), options, say)[device.name]
    found = read_results(result_path(options.out, device.name, "")).by_variant
    results = {variant.program: of for variant, of in found.items()}
    if "step" not in results or len(results) < 2:
        raise next(iter(ended), NumericError(f"{device.name}: nothing was measured"))
    counted = all(result.instructions for of in results.values() for result in of)
    least = {program: _least(of, counted) for program, of in results.items()}
    timed = [p for p in programs if p.case is not None and p.name in least]
    costs = [(p.case, (least[p.name] - least["step"]) / p.repeats) for p in timed if p.case is not None]
    where = f"{facts.model}, {results['step'][0].runtime}"
    return fitted(table, figures(costs, target), name, "instructions" if counted else "ns", where), ended


def _bench(programs: Sequence[Timed], folder: Path) -> Bench:
    """Return the plan of the programs, which are written."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        programs=tuple(f"{p.name}.tflite" for p in programs),
        rounds=_ROUNDS,
        steps=_STEPS,
        warmup=_WARMUP,
        check_steps=2,
    )
    files = [p.program.write(folder / f"{p.name}.tflite") for p in programs]
    return Bench("forms", folder, plan, tuple(subject_of(file, "cpu", 1) for file in files))


def _least(results: Sequence[Result], counted: bool) -> float:
    """Return nanoseconds of the quickest step, or instructions of a step where those are counted."""
    if counted:
        return float(min(min(result.instructions) for result in results))
    return min(ms for result in results for ms in result.timed(_WARMUP)) * 1e6
