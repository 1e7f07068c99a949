"""A plan on one device, from preflight to the last result; and on several at once, each on its own."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from converter.support.errors import NumericError, PocketuneError, UsageError
from scripts.bench.facts import checkout
from scripts.harness.conditions import preflight, spoiled
from scripts.harness.device import Conditions, Device, Facts
from scripts.harness.faults import Changed, Fault, NotInstalled, Overheated, WrongNumbers
from scripts.harness.log import Began, Checked, FaultLine, Log, Result, Run, finished, lock
from scripts.harness.plan import Bench, Plan, Subject, Variant, subject_of
from scripts.harness.reference import agreement, reference
from scripts.harness.runner import Runner, cool, grew_hot, new_id, now
from scripts.harness.stop import is_asked

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
    """Return the file of a device and a build."""
    safe = "".join(c if c.isalnum() or c in ".-_" else "_" for c in device)
    return out / (f"{safe}.{build}.jsonl" if build else f"{safe}.jsonl")


def run_all(devices: list[Device], bench: Bench, options: Options, say: Say) -> dict[str, list[PocketuneError]]:
    """Runs the plan on all devices at once; the end of one does not touch the others.

    Returns:
        What went wrong on each device; nothing on those that finished.

    Raises:
        UsageError: result files exist, belong to another plan, or they or a device are in use by another run.
    """

    def one(device: Device) -> list[PocketuneError]:
        try:
            return Session(device, bench, opened[device.name], options, say).run()
        except PocketuneError as error:
            return [error]
        except OSError as error:
            return [UsageError(f"{device.name}: on this computer: {error}: mend that and run again with --resume")]
        except Exception as bug:  # The other devices go on.
            say(traceback.format_exc())
            return [Fault(device.name, f"a mistake in scripts/device itself: {bug!r}")]

    with ExitStack() as stack, ThreadPoolExecutor(len(devices)) as pool:
        opened = {}
        for device in devices:
            stack.enter_context(held(device))
            opened[device.name] = {b: stack.enter_context(log) for b, log in _open_logs(device, bench, options)}
        return dict(zip(opened, pool.map(one, devices), strict=True))


def _open_logs(device: Device, bench: Bench, options: Options) -> Iterator[tuple[str, Log]]:
    for build in bench.plan.builds:
        log = Log(result_path(options.out, device.name, build), options.resume)
        yield build, log
        if log.earlier is not None and log.earlier.runs[0].plan_hash != bench.hash:
            raise UsageError(f"{log.path}: the plan, its data or a program has changed since: give another --out")


@contextmanager
def held(device: Device) -> Iterator[None]:
    """The device for this process alone: two runs would end each other's jobs. Raises UsageError."""
    safe = result_path(Path(), device.name, "").stem
    with Path(tempfile.gettempdir(), f"pocketune-{os.getuid()}-{safe}.lock").open("w") as stream:
        lock(stream, f"{device.name}: another scripts/device is at work there: let it end")
        yield


class Session:
    """One device's way through a plan."""

    def __init__(self, device: Device, bench: Bench, logs: dict[str, Log], options: Options, say: Say) -> None:
        self.device, self.bench, self.logs, self.options, self.say = device, bench, logs, options, say
        self.runner = Runner(device, bench, say)
        earlier = [r for log in logs.values() if log.earlier for r in log.earlier.records]
        self.done = finished(earlier)
        self.checked = {r.variant for r in earlier if isinstance(r, Checked) and r.ok}
        #: What cannot be measured here, and why.
        self.failed: dict[Variant, Fault | NumericError] = {}
        #: The device when this session began: what comes back after a fault has to be the same, and as cool.
        self.facts: Facts | None = None
        self.start = Conditions()
        self.runtimes = {r.variant: r.runtime for r in earlier if isinstance(r, Result)}

    def run(self) -> list[PocketuneError]:
        """Return all that is still to do.

        Returns:
            The faults of single variants, and last of all the one that ended the run; the result files hold them too.
        """
        faults = 0
        if self.checked.issuperset(s.variant for s in self.bench.subjects) and not self._to_do():
            self.say(f"{self.device.name}: nothing is left to do")
            return []
        while True:
            try:
                self._begin()
                self._work()
                return [*self.failed.values()]
            except Fault as fault:
                self._note(fault)
                faults += 1
                if not fault.recoverable or faults > self.options.retries or is_asked():
                    return [*self.failed.values(), fault]
                self.say(f"{fault.problem}: connecting again ({faults} of {self.options.retries})")
            try:
                self.device.recover()
            except Fault as fault:
                self._note(fault)
                return [*self.failed.values(), fault]

    def _begin(self) -> None:
        self.device.prepare()
        conditions = self.device.conditions()
        if self.facts is None:
            self.facts, self.start = self.device.facts(), conditions
            self._expect_as_before(self.facts)
        else:
            self._expect_the_same()
        try:
            allowed = preflight(self.facts, conditions, self.options.allowed)
        except Fault:
            # The file has to say of whom the fault is that is noted next.
            self._write_run(self.facts, conditions, [])
            raise
        self._write_run(self.facts, conditions, allowed)

    def _write_run(self, facts: Facts, conditions: Conditions, allowed: list[str]) -> None:
        commit, dirty = checkout()
        for build, log in self.logs.items():
            log.write(
                Run(
                    session=self.options.session,
                    plan=self.bench.name,
                    plan_hash=self.bench.hash,
                    build=build,
                    facts=facts,
                    conditions=conditions,
                    allowed=tuple(allowed),
                    setup=self.bench.setup,
                    commit=commit,
                    dirty=dirty,
                    time=now(),
                )
            )

    def _expect_as_before(self, facts: Facts) -> None:
        """Raises UsageError when the earlier results of a file are another device's, or another app's."""
        for log in self.logs.values():
            if log.earlier and (change := difference(log.earlier.runs[-1].facts, facts)):
                raise UsageError(f"{log.path}: {self.device.name} has changed since ({change}): give another --out")

    def _expect_the_same(self) -> Facts:
        """Return what the device says of itself now.

        Raises:
            NotInstalled: the app was removed.
            Changed: it is another device than at first, or another app.
        """
        assert self.facts is not None
        facts = self.device.facts()
        if self.facts.app is not None and facts.app is None:
            raise NotInstalled(self.device.name, "the app is not installed any more")
        if change := difference(self.facts, facts):
            raise Changed(self.device.name, f"it is not what it was ({change})")
        return facts

    def _work(self) -> None:
        for subject in self.bench.subjects:
            if subject.variant not in self.checked and subject.variant not in self.failed:
                with self._failing(subject):
                    self._check(subject)
        order = self._to_do()
        for number, (round, subject) in enumerate(order, 1):
            if subject.variant in self.failed:
                continue
            with self._failing(subject):
                middle = self._measure(subject, round)
                assert self.facts is not None
                said = "done, under emulation" if self.facts.is_emulator else f"{middle:.2f} ms a step"
                self.say(f"{number}/{len(order)} {subject.variant.title}: {said}")

    def _to_do(self) -> list[tuple[int, Subject]]:
        return [(r, s) for r, s in self.bench.order() if (s.variant, r) not in self.done]

    @contextmanager
    def _failing(self, subject: Subject) -> Iterator[None]:
        """A variant that fails is left out of the rest of the run, and the others go on."""
        try:
            yield
        except (Fault, NumericError) as error:
            if isinstance(error, Fault) and not error.of_variant:
                raise
            error.args = (f"{subject.variant.title}: {error}",)
            self.failed[subject.variant] = error
            self._note(error, subject.variant)
            self.say(f"{error}\n{subject.variant.title} is left out; the rest goes on")

    def _check(self, subject: Subject) -> None:
        """Correctness before speed. Raises WrongNumbers."""
        checked = check(self.runner, subject)
        self.logs[subject.variant.build].write(checked)
        if not checked.ok:
            raise WrongNumbers(self.device.name, f"{describe(checked)}")
        self.checked.add(subject.variant)
        self.say(f"{subject.variant.title}: {describe(checked)}")

    def _measure(self, subject: Subject, round: int) -> float:
        """Return a good result of a variant in a round; returns its median step. Raises Overheated."""
        plan, log = self.bench.plan, self.logs[subject.variant.build]
        for attempt in range(plan.cooling.tries):
            before = cool(self.device, self.start, plan.cooling, self.options.allowed)
            accepted = spoiled(self._expect_the_same(), before, self.options.allowed)
            id = new_id(subject, round, attempt)
            log.write(Began(id, subject.variant, round, attempt, now()))
            started = time.monotonic()
            outcome = self.runner.run(subject, id, plan.steps, plan.repeats)
            seconds, after = time.monotonic() - started, self.device.conditions()
            runtime = self.runtimes.setdefault(subject.variant, outcome.start.runtime)
            if outcome.start.runtime != runtime:
                raise Changed(self.device.name, f"the runtime was {runtime} and is {outcome.start.runtime}")
            discarded = grew_hot(before, outcome.thermal, after)
            if discarded and "THERMAL" in self.options.allowed:
                discarded, accepted = None, [*accepted, "THERMAL"]
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
                cpu_ms=outcome.cpu_ms,
                losses=outcome.losses,
                peak_kib=outcome.peak_kib,
                instructions=outcome.instructions,
                before=before,
                after=after,
                allowed=tuple(accepted),
                discarded=discarded,
            )
            log.write(result)
            if discarded is None:
                self.done.add((subject.variant, round))
                return median(result.timed(plan.warmup))
            self.say(f"{subject.variant.title}: {discarded}, once more")
        raise Overheated(self.device.name, f"{discarded} in each of {plan.cooling.tries} runs")

    def _note(self, error: Fault | NumericError, variant: Variant | None = None) -> None:
        kind = error.kind if isinstance(error, Fault) else "diverged"
        for build, log in self.logs.items():
            if log.path.stat().st_size and (variant is None or variant.build == build):
                log.write(FaultLine(kind, str(error), now(), variant))


def check(runner: Runner, subject: Subject) -> Checked:
    """Runs the plan's check steps on the host and on the device. Raises Fault, and NumericError of the host."""
    bench, plan = runner.bench, runner.bench.plan
    id = new_id(subject, 0, 0)
    # The host first: where the training diverges there, it is the plan that is wrong, and no device.
    host = reference(subject.file, subject.batches(plan, bench.folder), plan.check_steps, plan.learning_rate)
    outcome = runner.run(subject, id, plan.check_steps, 1)
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
    with held(device):
        device.prepare()
        preflight(device.facts(), device.conditions(), allowed)
        return check(Runner(device, bench, say), subject)


def difference(was: Facts, facts: Facts) -> str | None:
    """In what another device, system or app answers; None when it is the same."""
    for name in ("model", "fingerprint", "app"):
        if getattr(was, name) != getattr(facts, name):
            return f"{name} was {getattr(was, name)} and is {getattr(facts, name)}"
    return None


def describe(checked: Checked) -> str:
    """Return a check in words."""
    verdict = "computes what the host does" if checked.ok else "computes something else than the host"
    return f"{verdict}: losses within {checked.loss_error:.1e}, {checked.worst} within {checked.update_error:.1e}"
