"""Error tolerances: how far an engine's results are from the CPU's, and how far they may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from converter.program.layers import Layers
from converter.program.manifest import Manifest
from converter.tools.certify.calling import Arrays, gives
from converter.tools.certify.reference import ReferenceCall
from converter.tools.certify.rounding import draws

#: Of a float32 engine, relative to the largest number.
LIMIT = 1e-4
#: What rounding does to the CPU's own result may be exceeded so many times.
FACTOR = 4
#: Of a float16 engine: how much more than what rounding the inputs to float16 does on the CPU.
HALF_FACTOR = 3
#: And no less than what rounding the result does, a few times.
HALF_LEAST = 8 * 2.0**-11
#: Of a float16 engine: how far the direction of an update may be off in cosine where rounding leaves it alone.
HALF_COSINE = 1e-2

Kind = Literal["loss", "update", "output"]
_KINDS: dict[str, Kind] = {"loss": "loss", "state": "update", "gradient": "update"}


@dataclass(frozen=True)
class Deviation:
    """How far a result is off.

    Attributes:
        signature: whose.
        name: of the result.
        kind: what it is: for what is changed by a step, the change is compared.
        error: relative; infinite where the engine gives no numbers.
        limit: what it may be.
        cosine: 1 less the cosine between the two; 0 where the CPU has nothing but zeros.
        cosine_limit: what that may be; infinite where it does not matter.
    """

    signature: str
    name: str
    kind: Kind
    error: float
    limit: float
    cosine: float
    cosine_limit: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.limit and self.cosine <= self.cosine_limit

    def __str__(self) -> str:
        what = {"loss": "the loss", "update": "what a step changes in it", "output": "the result"}[self.kind]
        if not np.isfinite(self.error):
            return f"{self.signature}: {what} ({self.name}) is not a number, or missing"
        if self.error <= self.limit:
            return f"{self.signature}: {what} ({self.name}) points elsewhere: 1 - cosine is {self.cosine:.1e}"
        return f"{self.signature}: {what} ({self.name}) is off by {self.error:.1e}, and {self.limit:.1e} is allowed"


class Judge:
    """Compares an engine's results with the CPU's.

    What rounding inputs and state to float16 does is taken of all results of a kind together: one of them is a gauge
    for the others; of a signature's calls it is that of the median, as in some a decision falls to the other side.
    What seems wrong is compared once more, with what rounding does inside: that takes longer.
    """

    def __init__(self, manifest: Manifest, layers: Layers, calls: Sequence[ReferenceCall], precision: str) -> None:
        self._manifest, self._layers, self._precision = manifest, layers, precision
        # Operator by operator there are no variables.
        self._draws = manifest.state != "variables"
        floors: dict[tuple[str, Kind], list[tuple[float, float]]] = {}
        for call in calls:
            worst: dict[Kind, tuple[float, float]] = {}
            for spec in gives(manifest, call.signature):
                wanted, rounded = _moved(call.feed, call.expected, spec.name), _moved(*call.rounded, spec.name)
                kind = _KINDS.get(spec.role, "output")
                ratio, angle = worst.get(kind, (0.0, 0.0))
                scale = max(_largest(wanted), FACTOR * _noise(call, spec.name, wanted))
                floor = _ratio(_largest(rounded - wanted), scale)
                worst[kind] = max(ratio, floor), max(angle, _angle(rounded, wanted))
            for kind, pair in worst.items():
                floors.setdefault((call.signature, kind), []).append(pair)
        self._floors: dict[Kind, tuple[float, float]] = {"loss": (0, 0), "update": (0, 0), "output": (0, 0)}
        for (_, kind), pairs in floors.items():
            ratio, angle = self._floors[kind]
            self._floors[kind] = max(ratio, _median(r for r, _ in pairs)), max(angle, _median(a for _, a in pairs))

    @property
    def floor(self) -> float:
        """How far the CPU's updates are off where inputs and state are rounded to float16."""
        return self._floors["update"][0]

    def deviations(self, call: ReferenceCall, results: Mapping[str, np.ndarray]) -> list[Deviation]:
        """Return how far each result of a call is off."""
        found, made = [], None
        for spec in gives(self._manifest, call.signature):
            wanted = _moved(call.feed, call.expected, spec.name)
            given = results.get(spec.name)
            if given is None or given.shape != call.expected[spec.name].shape or not np.isfinite(given).all():
                got = np.full(wanted.shape, np.inf)
            else:
                got = _moved(call.feed, results, spec.name)
            kind, noise = _KINDS.get(spec.role, "output"), FACTOR * _noise(call, spec.name, wanted)
            if self._precision == "float32":
                # Kernels that differ in nothing but the order of their sums differ by so much.
                noise = max(noise, FACTOR * _spread(_moved(call.feed, call.other_kernels, spec.name) - wanted))
            deviation = self._deviation(call.signature, spec.name, kind, got, wanted, noise)
            # What a state loses by being rounded to float16 is lost: nothing excuses that.
            looks_again = self._draws and (self._precision == "float32" or spec.role != "state")
            if not deviation.is_right and np.isfinite(deviation.error) and looks_again:
                entry = self._layers.entry(call.signature)
                made = draws(entry, call.feed, self._precision) if made is None else made
                others = [_moved(call.feed, other, spec.name) for other in made]
                if self._precision == "float32":
                    rounding = max(_spread(other - wanted) for other in others)
                    noise = max(noise, FACTOR * rounding)
                    deviation = self._deviation(call.signature, spec.name, kind, got, wanted, noise)
                else:
                    deviation = _by_element(deviation, got, wanted, noise, others)
            found.append(deviation)
        return found

    def _deviation(
        self, signature: str, name: str, kind: Kind, got: np.ndarray, wanted: np.ndarray, noise: float
    ) -> Deviation:
        """Return how far a result is off, where so much is noise."""
        size, error = _largest(wanted), _largest(got - wanted)
        if self._precision == "float32":
            return Deviation(signature, name, kind, _ratio(error, max(size, noise / LIMIT)), LIMIT, 0.0, np.inf)
        floor, floor_angle = self._floors[kind]
        return Deviation(
            signature,
            name,
            kind,
            _ratio(error, max(size, noise)),
            max(HALF_FACTOR * floor, HALF_LEAST),
            _angle(got, wanted) if kind == "update" else 0.0,
            max(HALF_COSINE, HALF_FACTOR**2 * floor_angle),
        )


def _by_element(
    first: Deviation, got: np.ndarray, wanted: np.ndarray, noise: float, others: Sequence[np.ndarray]
) -> Deviation:
    """Return how far a float16 engine's result is off, each element in units of what rounding does to it.

    Each must be next to what one of the draws has: a decision that falls to the other side in a few of them changes the
    gradients of one unit altogether, and an engine that takes it so has these, not half or twice as much, and not those
    of another unit. Next to is what the first look allows, and the widest distance but one from draw to draw: the
    widest is that of the decision, and sums of several have others. Or it is where three times the usual noise reaches.
    """
    others = [other for other in others if np.isfinite(other).all()]
    scale = max(_largest(wanted), noise)
    off, slack = np.abs(got - wanted), first.limit * scale
    allowed = np.full(wanted.shape, slack)
    if others:
        drawn = np.sort(np.stack([wanted, *others]) - wanted, 0)
        apart = np.sort(np.diff(drawn, axis=0), 0)[-2] if len(drawn) > 2 else np.zeros(wanted.shape)
        # How much further it might be, or less far it must be.
        reach = off + slack + apart - np.abs(drawn - (got - wanted)).min(0)
        allowed = np.maximum(np.maximum(allowed, reach), HALF_FACTOR * _usual(drawn))
    worst = (off if (off <= allowed).all() else off - allowed).argmax()
    angles = [HALF_FACTOR**2 * _angle(other, wanted) for other in others]
    return replace(
        first,
        error=float(off.flat[worst]) / scale,
        limit=float(allowed.flat[worst]) / scale,
        cosine_limit=max([first.cosine_limit, *angles]),
    )


def _usual(drawn: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each column of sorted numbers [N, ...], whatever a few of them are.

    By the median distance from the median, each the lower one of two: half of them may have decided otherwise.
    """
    middle = (len(drawn) - 1) // 2
    return 1.4826 * np.sort(np.abs(drawn - drawn[middle]), 0)[middle]


def _noise(call: ReferenceCall, name: str, wanted: np.ndarray) -> float:
    """Return how far the CPU is from itself with other last bits of what goes in, and of the result.

    A number that a sum of larger ones leaves is known no better than the last bit of these.
    """
    shaken = max(_largest(_moved(*pair, name) - wanted) for pair in call.shaken)
    array = call.expected[name]
    return max(shaken, float(np.finfo(np.float32).eps * _largest(array)) if array.dtype == np.float32 else 0.0)


def _moved(feed: Arrays, results: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a result, or what it adds to the input of that name."""
    after = results[name].astype(np.float64)
    return after - feed[name].astype(np.float64).reshape(after.shape) if name in feed else after


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array, dtype=np.float64).max(initial=0.0))


def _spread(difference: np.ndarray) -> float:
    """Return the largest number, or none at all where other last bits give no numbers: that excuses nothing."""
    return _largest(difference) if np.isfinite(difference).all() else 0.0


def _median(numbers: Iterable[float]) -> float:
    """Return the one in the middle, or the lower one of two."""
    found = sorted(numbers)
    return found[(len(found) - 1) // 2]


def _ratio(error: float, size: float) -> float:
    return 0.0 if error == 0 else error / size if size and np.isfinite(error) else float("inf")


def _angle(a: np.ndarray, b: np.ndarray) -> float:
    """1 less the cosine between two tensors."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return 1 - float(np.vdot(a, b)) / length if length and np.isfinite(length) else 0.0
