"""A plan on one device, from preflight to the last result; and on several at once, each on its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from converter.errors import NumericError, UsageError
from scripts.harness.conditions import preflight
from scripts.harness.device import Conditions, Device
from scripts.harness.faults import Fault, Overheated, WrongNumbers
from scripts.harness.hosts import ROOT
from scripts.harness.log import Began, Checked, FaultLine, Log, Result, Run, finished
from scripts.harness.plan import Bench, Plan, Subject, subject_of
from scripts.harness.reference import agreement, reference
from scripts.harness.runner import STOP, Runner, cool, grew_hot, new_id, now

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to run a plan.

    Attributes:
        out: folder of the result files.
        session: names this invocation.
        retries: how often a recoverable fault is recovered from, before it ends the run on that device.
    """

    out: Path
    session: str
    resume: bool = False
    allowed: tuple[str, ...] = ()
    retries: int = 3


def result_path(out: Path, device: str, build: str) -> Path:
    """The file of a device and a build."""
    safe = "".join(c if c.isalnum() or c in ".-_" else "_" for c in device)
    return out / (f"{safe}.{build}.jsonl" if build else f"{safe}.jsonl")


def run_all(devices: list[Device], bench: Bench, options: Options, say: Say) -> dict[str, Fault | NumericError | None]:
    """Runs the plan on all devices at once; the end of one does not touch the others.

    Returns:
        What ended each device's run; None for those that finished.

    Raises:
        UsageError: result files exist, or belong to another plan.
    """

    def one(device: Device) -> Fault | NumericError | None:
        with ExitStack() as stack:
            logs = {b: stack.enter_context(log) for b, log in opened[device.name].items()}
            return Session(device, bench, logs, options, say).run()

    opened = {d.name: _open_logs(d, bench, options) for d in devices}
    with ThreadPoolExecutor(len(devices)) as pool:
        return dict(zip(opened, pool.map(one, devices), strict=True))


def _open_logs(device: Device, bench: Bench, options: Options) -> dict[str, Log]:
    logs = {}
    for build in bench.plan.builds:
        log = logs[build] = Log(result_path(options.out, device.name, build), options.resume)
        if log.earlier is not None and log.earlier.runs[0].plan_hash != bench.hash:
            raise UsageError(f"{log.path}: the plan or a program has changed since: give another --out")
    return logs


class Session:
    """One device's way through a plan."""

    def __init__(self, device: Device, bench: Bench, logs: dict[str, Log], options: Options, say: Say) -> None:
        self.device, self.bench, self.logs, self.options, self.say = device, bench, logs, options, say
        self.runner = Runner(device, bench, say)
        earlier = [r for log in logs.values() if log.earlier for r in log.earlier.records]
        self.done = finished(earlier)
        self.checked = {r.variant for r in earlier if isinstance(r, Checked) and r.ok}
        self.start = Conditions()

    def run(self) -> Fault | NumericError | None:
        """All that is still to do. Returns the fault that ended it; it stands in the result files too."""
        faults = 0
        while True:
            try:
                self._begin()
                self._work()
                return None
            except NumericError as error:
                return error
            except Fault as fault:
                self._note(fault)
                faults += 1
                if not fault.recoverable or faults > self.options.retries or STOP.is_set():
                    return fault
                self.say(f"{fault.problem}: connecting again ({faults} of {self.options.retries})")
            try:
                self.device.recover()
            except Fault as fault:
                self._note(fault)
                return fault

    def _begin(self) -> None:
        self.device.prepare()
        facts, self.start = self.device.facts(), self.device.conditions()
        allowed = tuple(preflight(facts, self.start, self.options.allowed))
        commit, dirty = _commit()
        for build, log in self.logs.items():
            log.write(
                Run(
                    session=self.options.session,
                    plan=self.bench.name,
                    plan_hash=self.bench.hash,
                    build=build,
                    facts=facts,
                    conditions=self.start,
                    allowed=allowed,
                    warmup=self.bench.plan.warmup,
                    commit=commit,
                    dirty=dirty,
                    time=now(),
                )
            )

    def _work(self) -> None:
        for subject in self.bench.subjects:
            if subject.variant not in self.checked:
                self._check(subject)
        order = [(r, s) for r, s in self.bench.order() if (s.variant, r) not in self.done]
        for number, (round, subject) in enumerate(order, 1):
            median = self._measure(subject, round)
            build = f" {subject.variant.build}" if subject.variant.build else ""
            self.say(f"{number}/{len(order)} {subject.variant.key}{build}: {median:.2f} ms a step")

    def _check(self, subject: Subject) -> None:
        """Correctness before speed. Raises WrongNumbers."""
        checked = check(self.runner, subject)
        self.logs[subject.variant.build].write(checked)
        if not checked.ok:
            raise WrongNumbers(self.device.name, f"{subject.variant.key}: {describe(checked)}")
        self.checked.add(subject.variant)
        self.say(f"{subject.variant.key}: {describe(checked)}")

    def _measure(self, subject: Subject, round: int) -> float:
        """A good result of a variant in a round; returns its median step. Raises Overheated."""
        plan, log = self.bench.plan, self.logs[subject.variant.build]
        for attempt in range(plan.cooling.tries):
            before = cool(self.device, self.start, plan.cooling, self.options.allowed)
            id = new_id(subject, round, attempt)
            log.write(Began(id, subject.variant, round, attempt, now()))
            started = time.monotonic()
            outcome = self.runner.run(subject, id, plan.steps, plan.repeats)
            seconds, after = time.monotonic() - started, self.device.conditions()
            discarded = None if "THERMAL" in self.options.allowed else grew_hot(before, after)
            result = Result(
                id=id,
                session=self.options.session,
                variant=subject.variant,
                round=round,
                attempt=attempt,
                time=now(),
                seconds=seconds,
                runtime=outcome.start.runtime,
                asked=outcome.start.asked,
                runs=outcome.start.runs,
                detail=outcome.start.detail,
                ms=outcome.ms,
                losses=outcome.losses,
                peak_kib=outcome.peak_kib,
                instructions=outcome.instructions,
                before=before,
                after=after,
                discarded=discarded,
            )
            log.write(result)
            if discarded is None:
                self.done.add((subject.variant, round))
                counted = sorted(ms for repeat in outcome.ms for ms in repeat[plan.warmup :])
                return counted[len(counted) // 2]
            self.say(f"{subject.variant.key}: {discarded}, once more")
        raise Overheated(self.device.name, f"{discarded} in each of {plan.cooling.tries} runs")

    def _note(self, fault: Fault) -> None:
        for log in self.logs.values():
            if log.path.stat().st_size:
                log.write(FaultLine(fault.kind, str(fault), now()))


def check(runner: Runner, subject: Subject) -> Checked:
    """Runs the plan's check steps on the device and on the host. Raises Fault."""
    bench, plan = runner.bench, runner.bench.plan
    id = new_id(subject, 0, 0)
    outcome = runner.run(subject, id, plan.check_steps, 1)
    host = reference(subject.file, subject.batches(plan, bench.folder), plan.check_steps, plan.learning_rate)
    found = agreement(outcome, host, plan.tolerance)
    return Checked(
        id=id,
        variant=subject.variant,
        ok=found.ok,
        losses=outcome.losses[0],
        host_losses=host.losses,
        loss_error=found.loss_error,
        update_error=found.update_error,
        worst=found.worst,
    )


def check_program(device: Device, program: Path, plan: Plan, allowed: tuple[str, ...], say: Say) -> Checked:
    """Checks one program on a device, without a plan of measurements.

    Of the plan, its check_steps, learning_rate, data and the first of its accelerators and threads count.

    Raises:
        Fault: of the device.
        UsageError: it is no program.
    """
    subject = subject_of(program, plan.accelerators[0], plan.threads[0])
    bench = Bench(program.stem, Path(), plan, (subject,))
    device.prepare()
    preflight(device.facts(), device.conditions(), allowed)
    return check(Runner(device, bench, say), subject)


def describe(checked: Checked) -> str:
    """A check in words."""
    verdict = "computes what the host does" if checked.ok else "computes something else than the host"
    return f"{verdict}: losses within {checked.loss_error:.1e}, {checked.worst} within {checked.update_error:.1e}"


def _commit() -> tuple[str | None, bool | None]:
    """Commit of this checkout, and whether files differ from it."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain")
    return git("rev-parse", "HEAD"), None if status is None else bool(status)
