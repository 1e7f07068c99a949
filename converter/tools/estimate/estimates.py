"""The estimate: from the compiler's costs of a step and a device's known or measured speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from converter.backend.targets import Target
from converter.backend.targets import target as find_target
from converter.driver.compare import DEFAULT_SCHEMES, compare_schemes
from converter.driver.option_keywords import options_of
from converter.support.errors import UsageError
from converter.support.words import count, size
from converter.tools.estimate.catalogue import Core, Device, class_of, device, devices
from converter.tools.estimate.interval import Interval
from converter.tools.estimate.measured import Measured, read_measured

#: A step that was measured, over what a table of nanoseconds says: the least and the most; docs/estimate.md says how it
#: was found, and what follows.
NANOSECONDS = Interval(0.7, 4.0)
#: Instructions that were counted, over what a table of instructions says, to both sides.
INSTRUCTIONS = 1.2
#: Seconds that a call takes around its operators, at the most: its inputs are copied, its results read.
CALL = 1e-3
#: How far the speed of one program may be from that of another on the same device, to both sides.
PROGRAMS_DIFFER = 1.5
#: What is left of the highest clock where a device is warm.
WARM = 0.7
#: Of its memory: what a process may take without a second thought, and from where it will not get it.
SHARES = {"phone": (0.25, 0.5), "board": (0.6, 0.9), "computer": (0.6, 0.9)}
#: The same of what a device said that it had free.
FREE = (0.7, 1.0)
#: The classes of energy, each up to so many joules; behind the last comes E.
ENERGY = {"A": 10, "B": 100, "C": 1_000, "D": 10_000}

Memory = Literal["fits", "tight", "too much"]


@dataclass(frozen=True)
class Estimate:
    """What training by one update scheme would take.

    Attributes:
        scheme: its name.
        step: seconds of one step.
        training: seconds of all steps.
        is_measured: this step was measured on this device.
        based_on: what the step is known by; `Estimates.speed` says the rest where it was not measured.
        resident_bytes: memory of a session, by the planner.
        peak_bytes: what the whole process held where this step was measured; None where it was not.
        memory: whether an app (on a board a process) gets so much.
        memory_limits: bytes up to which it fits, and from which it is too much.
        energy: classes of the whole training, the least and the most, one letter where they agree.
        costs: see `converter.backend.costs.costs`.
    """

    scheme: str
    step: Interval
    training: Interval
    is_measured: bool
    based_on: str
    resident_bytes: int
    peak_bytes: int | None
    memory: Memory
    memory_limits: tuple[int, int]
    energy: str
    costs: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "scheme": self.scheme,
            "step_seconds": [self.step.low, self.step.high],
            "training_seconds": [self.training.low, self.training.high],
            "measured": self.is_measured,
            "based_on": self.based_on,
            "resident_bytes": self.resident_bytes,
            "peak_bytes": self.peak_bytes,
            "memory": self.memory,
            "memory_limits": list(self.memory_limits),
            "energy": self.energy,
            "costs": dict(self.costs),
        }


@dataclass(frozen=True)
class Estimates:
    """Estimates of several schemes on one device.

    Attributes:
        device: which.
        target: the table.
        steps: of the whole training.
        speed: where the bounds of steps come from that were not measured.
        rows: one for each scheme, `error` and its name where the model does not allow it.
        notes: what of the results was not used.
    """

    device: Device
    target: str
    steps: int
    speed: str
    rows: Sequence[Estimate | Mapping[str, str]]
    notes: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "device": self.device.name,
            "soc": self.device.soc,
            "target": self.target,
            "steps": self.steps,
            "speed": self.speed,
            "schemes": [row.to_json() if isinstance(row, Estimate) else dict(row) for row in self.rows],
            "notes": list(self.notes),
        }


def estimate(
    model: Any,
    device: str,
    schemes: Sequence[Any] = DEFAULT_SCHEMES,
    samples: int = 1000,
    epochs: int = 1,
    results: Iterable[Any] = (),
    programs: Sequence[Any] = (),
    **options: Any,
) -> Estimates:
    """Return what training would take on a device; nothing is run, no program is made.

    Args:
        model: as for `pocketune.build`, or one of shapes alone.
        device: a name (`converter.tools.estimate.devices()`), or the path of a `.toml` of one's own.
        schemes: names, glob rules or UpdateSchemes.
        samples: rows to learn from.
        epochs: how often.
        results: files of `scripts/device bench`: what was measured there counts before what is foreseen.
        programs: the programs that these measured.
        **options: as for `pocketune.compare_schemes`.

    Raises:
        UsageError: an unknown device, unreadable results, or a target that has no table of times.
        UnsupportedError, NumericError: as `pocketune.build`.
    """
    asked = options_of("estimate", options, "update", "check")
    chosen, target = setting(device, options.get("target"))
    measured, notes = read_measured(results, programs)
    rows = compare_schemes(model, schemes, **{**options, "target": target})
    return estimate_rows(rows, chosen, target, steps_of(samples, epochs, asked.batch), measured, notes)


def setting(name: str, asked: str | Target | None) -> tuple[Device, Target]:
    """Return the device and the table to price with.

    Raises UsageError for a table that has no times of this processor.
    """
    chosen = device(name)
    target = find_target(chosen.target if asked is None else asked)
    if target.unit not in ("ns", "instructions") or target.avoids or target.state != "variables":
        raise UsageError(
            f"{target.name} is not a processor's table: it compares forms, and its engine's times are not known. "
            f"Leave the target out (it is {chosen.target} on {chosen.name}), or measure: scripts/device bench",
            page="estimates",
        )
    native = find_target(chosen.target).unit
    own = asked is not None and str(asked).endswith(".toml")
    if target.unit != native and not own:
        raise UsageError(
            f"the table of {target.name} is of another processor than that of {chosen.name} ({chosen.soc}): take "
            f"{chosen.target}, or a table that was measured there: mine.toml",
            page="estimates",
        )
    return chosen, target


def estimate_rows(
    rows: Iterable[Mapping[str, Any]],
    device: Device,
    target: Target,
    steps: int,
    measured: Sequence[Measured] = (),
    notes: Sequence[str] = (),
) -> Estimates:
    """Estimates of what `converter.driver.compare` gives for each scheme.

    Args:
        rows: `scheme` and the costs, or `scheme` and `error`.
        device: which.
        target: that the costs are of.
        steps: of the whole training.
        measured: see `read_measured`.
        notes: what was left out of it.
    """
    same = [m for m in measured if device.is_called(m.model)]
    others, unknown = [], list[str]()
    for one in measured:
        if one.manifest.target != target.name:
            unknown.append(f"{one.file}: {one.program}: built for {one.manifest.target}, not for {target.name}")
        elif not device.is_called(one.model):
            if (known := next((d for d in devices().values() if d.is_called(one.model)), None)) is None:
                unknown.append(f"{one.file}: what cores {one.model!r} has is not known")
            else:
                others.append((one, known))
    speed = _Speed(device, target, [m for m in same if m.manifest.target == target.name], others)
    found = [row if "error" in row else _estimate(row, device, target, steps, same, speed) for row in rows]
    return Estimates(device, target.name, steps, speed.words, found, [*notes, *unknown])


def steps_of(samples: int, epochs: int, batch: int) -> int:
    """Return steps of a training, the last batch of an epoch filled up. Raises UsageError for numbers below 1."""
    if samples < 1 or epochs < 1:
        raise UsageError(f"samples and epochs must be at least 1, got {samples} and {epochs}", page="estimates")
    return epochs * ceil(samples / batch)


def _estimate(
    row: Mapping[str, Any], device: Device, target: Target, steps: int, same: Sequence[Measured], speed: _Speed
) -> Estimate:
    costs = {name: value for name, value in row.items() if name != "scheme"}
    exact = next((m for m in same if m.is_step(costs, target.name)), None)
    if exact is None:
        step, based_on = speed.of(costs), speed.based_on(costs)
    else:
        step, based_on = exact.seconds, f"measured: {exact.program} in {exact.file}"
    resident = int(costs["resident_bytes"])
    available = min((m.available_bytes for m in same if m.available_bytes is not None), default=None)
    whole = device.memory_gib * 2**30 if available is None else available
    fits, too_much = (int(whole * share) for share in (SHARES[device.kind] if available is None else FREE))
    peak = None if exact is None else exact.peak_bytes
    needed = resident if peak is None else peak
    watts = Interval.around(w for core in device.working for w in class_of(core.kind).watts)
    training = step * steps
    return Estimate(
        scheme=str(row["scheme"]),
        step=step,
        training=training,
        is_measured=exact is not None,
        based_on=based_on,
        resident_bytes=resident,
        peak_bytes=peak,
        memory="fits" if needed <= fits else "tight" if needed < too_much else "too much",
        memory_limits=(fits, too_much),
        energy=energy_class(training.low * watts.low, training.high * watts.high),
        costs=costs,
    )


def energy_class(least: float, most: float) -> str:
    """`B`, or `B-D` where an interval of joules reaches over several classes."""
    letters = [next((letter for letter, joules in ENERGY.items() if j <= joules), "E") for j in (least, most)]
    return letters[0] if letters[0] == letters[1] else "-".join(letters)


class _Speed:
    """How fast steps are that were not measured on a device themselves.

    Attributes:
        words: what that is based on.
    """

    def __init__(
        self, device: Device, target: Target, same: Sequence[Measured], others: Sequence[tuple[Measured, Device]]
    ) -> None:
        self._target = target
        self._rate: Interval | None = None
        self._cores: list[_CoreSpeed] = []
        if same:
            self._rate = Interval.around(m.typical / m.cost for m in same).widened(PROGRAMS_DIFFER)
            programs = ", ".join(dict.fromkeys(m.program for m in same))
            self.words = f"as fast as {programs} measured on this device, within a factor of {PROGRAMS_DIFFER:g}"
        elif target.unit == "ns":
            self.words = (
                f"steps took {NANOSECONDS.low:g} to {NANOSECONDS.high:g} of what the table says where it was made; "
                "never measured on this device"
            )
        else:
            self._cores = [_CoreSpeed.of(core, others) for core in device.working]
            cores = "; ".join(dict.fromkeys(core.words for core in self._cores))
            self.words = f"{cores}; never measured on this device"

    def of(self, costs: Mapping[str, int]) -> Interval:
        """Return the seconds of a step."""
        cost = costs["step_cost"]
        if self._rate is not None:
            return self._rate * cost
        if self._target.unit == "ns":
            return Interval(NANOSECONDS.low * cost / 1e9, NANOSECONDS.high * cost / 1e9 + CALL)
        bounds = [core.seconds(cost, costs["traffic_bytes"]) for core in self._cores]
        return Interval(min(b.low for b in bounds), max(b.high for b in bounds) + CALL)

    def based_on(self, costs: Mapping[str, int]) -> str:
        """Return what of a step the seconds are made of."""
        cost = costs["step_cost"]
        if self._target.unit == "ns":
            return f"{cost / 1e6:.3g} ms by the table of {self._target.name}"
        return (
            f"{count(cost)} instructions by the table of {self._target.name}, {size(costs['traffic_bytes'])} of traffic"
        )


@dataclass(frozen=True)
class _CoreSpeed:
    """How fast a core is.

    Attributes:
        ghz: its highest clock.
        per_cycle: instructions a cycle.
        gigabytes_per_second: what it moves through memory; None where the instructions a cycle are of whole steps,
            which waited for memory as others will.
        words: what this is based on.
    """

    ghz: float
    per_cycle: Interval
    gigabytes_per_second: float | None
    words: str

    @staticmethod
    def of(core: Core, others: Sequence[tuple[Measured, Device]]) -> _CoreSpeed:
        """By what is known of its class, or what was measured on others of it."""
        known, rates = class_of(core.kind), dict[tuple[str, str], float]()
        for measured, owner in others:
            there = max(owner.working, key=lambda c: class_of(c.kind).per_cycle[1] * c.ghz)
            if class_of(there.kind) is known:
                rates[owner.title, measured.program] = measured.cost / (measured.typical * there.ghz * 1e9)
        on = f"on {core.kind} at {core.ghz * WARM:.1f} to {core.ghz:.1f} GHz"
        if rates:
            found = Interval.around(rates.values()).widened(PROGRAMS_DIFFER)
            owners = ", ".join(dict.fromkeys(title for title, _ in rates))
            words = f"{found.low:.2g} to {found.high:.2g} instructions a cycle, as measured on {owners}, {on}"
            return _CoreSpeed(core.ghz, found, None, words)
        words = f"{known.per_cycle[0]:g} to {known.per_cycle[1]:g} instructions a cycle {on}, traffic at "
        words += f"{known.gigabytes_per_second:g} GB/s or more"
        return _CoreSpeed(core.ghz, Interval(*known.per_cycle), known.gigabytes_per_second, words)

    def seconds(self, instructions: float, traffic: float) -> Interval:
        """Fast and in its cache; warm and waiting for memory."""
        clock, speed = self.ghz * 1e9, self.per_cycle
        waiting = traffic / (self.gigabytes_per_second * 1e9) if self.gigabytes_per_second is not None else 0.0
        return Interval(
            instructions / INSTRUCTIONS / (speed.high * clock),
            instructions * INSTRUCTIONS / (speed.low * clock * WARM) + waiting,
        )
