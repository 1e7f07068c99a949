"""Certification: a program's signatures run on a real engine, and all they give is compared with the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice
from math import isfinite
from typing import Any

from converter.program.file import ProgramFile, read_program
from converter.program.flatbuffer.damage import sound_tables
from converter.program.flatbuffer.parts import SIGNATURE, tensor_name
from converter.program.layers import Layers, OperatorEntry
from converter.program.manifest import Certificate, CertificateFailure
from converter.program.manifest.schema import RECORDS
from converter.runtime.engines import Engine, engine
from converter.runtime.engines.work import Outcome, Task, at_most
from converter.support.errors import UsageError
from converter.tools.certify import localize
from converter.tools.certify.calling import invocations, together
from converter.tools.certify.conformance import Deviation, Judge
from converter.tools.certify.reference import PROBE, RATE, ReferenceCall, calls
from converter.tools.certify.signing import sign

#: No more failures are kept in a manifest.
_MOST_FAILURES: int = RECORDS["Certificate"]["fields"]["failures"]["most"]
ADVICE_VARIABLES = "certify it built with state='stateless' (--state stateless) too: there the operator is found"
#: What is wrong then is the engine's own: no number of the program makes it end the process that it is in.
ADVICE_CRASH = (
    "the fault is the engine's: what crashes alone is listed below; other forms (--target, frozen='float32') may go "
    "around it"
)
ADVICE_STATE = "build with state='stateless' (--state stateless): the state goes in and out of each call"


def certify(
    path: str | os.PathLike, on: str, steps: int = 10, data: Any = None, limit: float | None = None
) -> Certificate:
    """Runs a program on a real engine beside the CPU, and signs into the program's manifest what came of it.

    Each step begins from a state that the CPU has come to. Compared are the loss and what the step changes in every
    state tensor, and what `evaluate` and `infer` give.

    Args:
        path: the `.tflite`; its manifest gets the certificate, whether it is a good one or not.
        on: `gpu`, `hexagon:SM8650`, `web`, `android`, `tflm`.
        steps: how many are compared.
        data: rows (x, y), as for a training session; None draws them.
        limit: seconds that the engine may take for all of it; None: as long as it goes on.

    Raises:
        UsageError: the file is no program, there is no such engine, it is not set up on this machine, or it did not end
            within the limit.
        DeviceError: the stock interpreter does not run the program.
    """
    if steps < 1:
        raise UsageError(f"steps must be at least 1, got {steps}", page="engines")
    chosen, program = ready(on), read_program(path)
    with at_most(limit, on):
        certificate = examine(program, chosen, steps, data)
    sign(path, certificate)
    return certificate


def ready(on: str) -> Engine:
    """Return an engine that is set up on this machine.

    Raises:
        UsageError: there is no such engine, or it is not set up.
    """
    chosen = engine(on)
    if (missing := chosen.missing()) is not None:
        raise UsageError(f"{on}: {missing}", page="engines")
    return chosen


def examine(program: ProgramFile, engine: Engine, steps: int, data: Any = None) -> Certificate:
    """Return what comes of running a program on an engine; nothing is written."""
    if program.manifest.state == "variables" and not engine.has_variables:
        what = "no delegate takes the operators of variables, so no step runs there whole"
        return _certificate(
            engine, steps, [_Found(failures=[CertificateFailure("", "VAR_HANDLE", what, ADVICE_STATE)])]
        )
    made = list(calls(program, steps, data, PROBE if engine.precision == "float32" else RATE))
    layers = Layers(program)
    with sound_tables():
        judge = Judge(program.manifest, layers, made, engine.precision)
        found = [_examined(part, program, layers, made, judge) for part in engine.parts]
    return _certificate(engine, steps, found, judge.floor)


@dataclass(frozen=True)
class _Found:
    """What comes of running a program on a part of an engine."""

    failures: Sequence[CertificateFailure]
    deviations: Sequence[Deviation] = ()
    is_whole: bool = False
    driver: str = ""


def _examined(
    part: Engine, program: ProgramFile, layers: Layers, made: Sequence[ReferenceCall], judge: Judge
) -> _Found:
    failures = list[CertificateFailure]()
    entries = [layers.entry(name) for name in dict.fromkeys(call.signature for call in made)]
    # What is the CPU's, as the update of a split program, is no work of the engine.
    apart = part.apart or (len(entries) < len(program.manifest.signatures) and not part.has_variables)
    outcome = _apart(part, entries, made) if apart else _together(part, program, made)
    pairs = [(call, results) for call, results in zip(made, outcome.results, strict=False) if results]
    found = [deviation for call, results in pairs for deviation in judge.deviations(call, results)]
    refusals = part.refusals(outcome.log)
    if outcome.signal:
        where = "" if apart else f" in {made[min(len(outcome.results), len(made) - 1)].signature}"
        what = f"the library crashed ({outcome.signal}){where}: {outcome.error}"
        failures.append(CertificateFailure("", "", what, ADVICE_CRASH))
    if refusals or outcome.error:
        failures += localize.refused(part, entries, refusals)
    if outcome.error and not failures:
        failures.append(CertificateFailure("", "", f"the engine gave up: {outcome.error}"))
    if not outcome.said.get("whole") and not failures:
        failures.append(CertificateFailure("", "", "the engine does not take all of it, and does not say what"))
    wrong = [deviation for deviation in found if not deviation.is_right]
    known = set[tuple]()
    for signature in dict.fromkeys(deviation.signature for deviation in wrong):
        worst = next(d for d in wrong if d.signature == signature)
        if program.manifest.state == "variables":
            failures.append(CertificateFailure("", "", str(worst), ADVICE_VARIABLES))
            continue
        call = next(c for c in made if c.signature == signature)
        failures += localize.wrong(part, layers, call, worst, known)
    if part.label:
        failures = [replace(failure, what=f"{part.label}: {failure.what}") for failure in failures]
    whole = bool(outcome.said.get("whole")) and not refusals
    return _Found(failures, found, whole, str(outcome.said.get("driver", "")))


def _together(engine: Engine, program: ProgramFile, made: Sequence[ReferenceCall]) -> Outcome:
    """Return what comes of the calls of a file as it is."""
    manifest = program.manifest
    each = [invocations(manifest, call.signature, call.feed) for call in made]
    outcome = engine.run([Task(bytes(program.data), list(chain.from_iterable(each)))])[0]
    ran = iter(outcome.results)
    parts = [list(islice(ran, len(run))) for run in each]
    results = [
        together(manifest, call.signature, part)
        for call, run, part in zip(made, each, parts, strict=True)
        if len(part) == len(run)
    ]
    return replace(outcome, results=results)


def _apart(engine: Engine, entries: Sequence[OperatorEntry], made: Sequence[ReferenceCall]) -> Outcome:
    """Return what comes of the calls, each signature in a file of its own."""
    tasks = [
        Task(
            entry.part(range(len(entry.places)), list(entry.outputs)),
            [
                (SIGNATURE, {tensor_name(i): call.feed[name] for i, name in entry.inputs.items()})
                for call in made
                if call.signature == entry.name
            ],
        )
        for entry in entries
    ]
    outcomes = engine.run(tasks)
    given = {
        entry.name: iter([{n: r[tensor_name(i)] for i, n in entry.outputs.items()} for r in outcome.results])
        for entry, outcome in zip(entries, outcomes, strict=True)
    }
    said: dict[str, Any] = {"whole": all(outcome.said.get("whole") for outcome in outcomes)}
    said["driver"] = next((outcome.said["driver"] for outcome in outcomes if "driver" in outcome.said), "")
    pairs = zip(entries, outcomes, strict=True)
    errors = [f"{entry.name}: {outcome.error}" for entry, outcome in pairs if outcome.error]
    log = "\n".join(outcome.log for outcome in outcomes)
    return Outcome([next(given[call.signature], {}) for call in made], said, log, "; ".join(errors))


def _certificate(engine: Engine, steps: int, found: Sequence[_Found], floor: float | None = None) -> Certificate:
    kept = tuple(dict.fromkeys(failure for one in found for failure in one.failures))[:_MOST_FAILURES]
    deviations = [deviation for one in found for deviation in one.deviations]
    whole = all(one.is_whole for one in found)
    return Certificate(
        on=engine.on,
        engine=engine.title,
        version=engine.version,
        driver="; ".join(dict.fromkeys(one.driver for one in found if one.driver)),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        steps=steps,
        ok=whole and not kept and all(one.deviations for one in found),
        whole=whole,
        precision=engine.precision,
        loss_error=_worst(d.error for d in deviations if d.kind == "loss"),
        update_error=_worst(d.error for d in deviations if d.kind == "update"),
        output_error=_worst(d.error for d in deviations if d.kind == "output"),
        floor=None if engine.precision == "float32" else floor,
        failures=kept,
    )


def _worst(errors: Iterable[float]) -> float | None:
    worst = max(errors, default=float("inf"))
    return worst if isfinite(worst) else None
