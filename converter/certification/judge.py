"""How far an engine's results are from the CPU's, and how far they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from converter.certification.calling import Arrays, gives
from converter.certification.reference import Call
from converter.certification.rounding import draws
from converter.layers import Layers
from converter.program.manifest import Manifest

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

    What rounding to float16 does is taken of all results of a kind together: one of them is a gauge for the others.
    What seems wrong in float32 is compared once more, with what rounding does inside: that takes longer.
    """

    def __init__(self, manifest: Manifest, layers: Layers, calls: Sequence[Call], precision: str) -> None:
        self._manifest, self._layers, self._precision = manifest, layers, precision
        # Operator by operator there are no variables.
        self._draws = precision == "float32" and manifest.state != "variables"
        self._floors: dict[Kind, tuple[float, float]] = {"loss": (0, 0), "update": (0, 0), "output": (0, 0)}
        for call in calls:
            for spec in gives(manifest, call.signature):
                wanted, rounded = _moved(call.feed, call.expected, spec.name), _moved(*call.rounded, spec.name)
                kind = _KINDS.get(spec.role, "output")
                ratio, angle = self._floors[kind]
                scale = max(_largest(wanted), FACTOR * _noise(call, spec.name, wanted))
                floor = _ratio(_largest(rounded - wanted), scale)
                self._floors[kind] = (max(ratio, floor), max(angle, _angle(rounded, wanted)))

    @property
    def floor(self) -> float:
        """How far the CPU's updates are off where inputs and state are rounded to float16."""
        return self._floors["update"][0]

    def deviations(self, call: Call, results: Mapping[str, np.ndarray]) -> list[Deviation]:
        """How far each result of a call is off."""
        found, made = [], None
        for spec in gives(self._manifest, call.signature):
            wanted = _moved(call.feed, call.expected, spec.name)
            given = results.get(spec.name)
            if given is None or given.shape != call.expected[spec.name].shape or not np.isfinite(given).all():
                got = np.full(wanted.shape, np.inf)
            else:
                got = _moved(call.feed, results, spec.name)
            kind, noise = _KINDS.get(spec.role, "output"), FACTOR * _noise(call, spec.name, wanted)
            deviation = self._deviation(call.signature, spec.name, kind, got, wanted, noise)
            if not deviation.is_right and np.isfinite(deviation.error) and self._draws:
                made = draws(self._layers.entry(call.signature), call.feed) if made is None else made
                rounding = max(_spread(_moved(call.feed, others, spec.name) - wanted) for others in made)
                deviation = self._deviation(call.signature, spec.name, kind, got, wanted, max(noise, FACTOR * rounding))
            found.append(deviation)
        return found

    def _deviation(
        self, signature: str, name: str, kind: Kind, got: np.ndarray, wanted: np.ndarray, noise: float
    ) -> Deviation:
        """How far a result is off, where so much is noise."""
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


def _noise(call: Call, name: str, wanted: np.ndarray) -> float:
    """How far the CPU is from itself where the last bits of what goes in are others, and the last bit of the result.

    A number that a sum of larger ones leaves is known no better than the last bit of these.
    """
    shaken = max(_largest(_moved(*pair, name) - wanted) for pair in call.shaken)
    array = call.expected[name]
    return max(shaken, float(np.finfo(np.float32).eps * _largest(array)) if array.dtype == np.float32 else 0.0)


def _moved(feed: Arrays, results: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A result, or what it adds to the input of that name."""
    after = results[name].astype(np.float64)
    return after - feed[name].astype(np.float64).reshape(after.shape) if name in feed else after


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array, dtype=np.float64).max(initial=0.0))


def _spread(difference: np.ndarray) -> float:
    """The largest number, or none at all where other last bits give no numbers: that excuses nothing."""
    return _largest(difference) if np.isfinite(difference).all() else 0.0


def _ratio(error: float, size: float) -> float:
    return 0.0 if error == 0 else error / size if size and np.isfinite(error) else float("inf")


def _angle(a: np.ndarray, b: np.ndarray) -> float:
    """1 less the cosine between two tensors."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return 1 - float(np.vdot(a, b)) / length if length and np.isfinite(length) else 0.0
