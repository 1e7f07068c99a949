"""Fault localization: the operators that an engine refuses, or computes wrongly, and their layers.

What is wrong is looked for in windows: an operator, alone or with those that make what it reads, is run on the engine
on the numbers that the CPU has there, and nothing but its own result is asked for. So it does not matter that an engine
keeps other things than results where it has fused operators; a wrong window is a witness whatever else is right.
To know where to look, the engine first runs the whole signature with every result exposed. That hint may be wrong both
ways: an exposed result may hold garbage that nobody else reads, and exposing it may undo the fusion that was wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from converter.program.flatbuffer.operators import STATE
from converter.program.flatbuffer.parts import SIGNATURE, tensor_name
from converter.program.flatbuffer.truth_values import with_numbers
from converter.program.layers import Layers, OperatorEntry, Place
from converter.program.manifest import CertificateFailure
from converter.runtime.engines import Engine
from converter.runtime.engines.engine import Refusal
from converter.runtime.engines.work import Outcome, Task
from converter.runtime.session.gradient_range import LARGEST
from converter.tools.certify.advice import RANGE, SPLIT, advice
from converter.tools.certify.conformance import Deviation
from converter.tools.certify.reference import Cpu, ReferenceCall

#: Operators of which each is tried on its own, at most.
MOST_TRIED = 100
#: Operators that one window may hold before the last one.
DEPTHS = (0, 1, 2)
#: Witnesses that are told of one signature.
MOST_TOLD = 5
#: Seconds for a window.
LIMIT = 120.0
#: What is left of larger numbers in these is known no better than they are.
_SUMS = ("ADD", "SUB")
#: What is larger than this was put there to be so.
_MASK = 1e8
#: How far a window may be off, relative to its largest number, by the engine's precision, which its operands have.
LIMITS = {"float32": 1e-4, "float16": 5e-3}


def refused(engine: Engine, entries: Sequence[OperatorEntry], refusals: Sequence[Refusal]) -> list[CertificateFailure]:
    """Return the operators after what an engine wrote, or after its end; each kind of operator is tried on its own.

    Args:
        engine: which.
        entries: the signatures that it was given.
        refusals: what it wrote; none where it ended without a word, then all operators are tried.
    """
    kinds = {refusal.operator for refusal in refusals} - {""}
    parts = {
        place.operator.key: entry.part([number], entry.read(number))
        for entry in entries
        for number, place in enumerate(entry.places)
        if (not kinds or place.operator.kind in kinds)
        and not place.operator.unpacks
        # A file of such an operator alone says nothing of an engine that has variables.
        and not (engine.has_variables and place.operator.kind in STATE)
    }
    tried = _one_of_each_kind_first(parts, entries)[:MOST_TRIED]
    programs = (parts[key] for key in tried)
    tasks = [Task(program if engine.has_truth_values else with_numbers(program)) for program in programs]
    outcomes = engine.run(tasks, LIMIT)
    bad = {key: outcome for key, outcome in zip(tried, outcomes, strict=True) if _is_refused(engine, outcome)}
    failures: dict[tuple[str, str], CertificateFailure] = {}
    for entry in entries:
        for place in entry.places:
            key = place.operator.key
            if key in bad:
                where = (place.origin.layer, place.operator.kind)
                failures.setdefault(
                    where, CertificateFailure(*where, _why(engine, bad[key]), advice(place.operator.kind))
                )
    told = {failure.operator for failure in failures.values()}
    # What stands alone may be fine, and refused only beside others; what names no operator is explained by any.
    others = [r for r in refusals if r.operator not in told and (r.operator or not told)]
    return [*failures.values(), *(_unplaced(entries, refusal) for refusal in others)]


def _one_of_each_kind_first(keys: Iterable[tuple], entries: Sequence[OperatorEntry]) -> list[tuple]:
    """Return keys of operators in the order of their places, but the second of a kind after the first of all kinds."""
    kinds = {place.operator.key: place.operator.kind for entry in entries for place in entry.places}
    seen, turns = Counter[str](), dict[tuple, int]()
    for key in keys:
        turns[key] = seen[kinds[key]]
        seen[kinds[key]] += 1
    return sorted(turns, key=lambda key: turns[key])


def _is_refused(engine: Engine, outcome: Outcome) -> bool:
    return bool(outcome.error or not outcome.said.get("whole") or engine.refusals(outcome.log))


def _why(engine: Engine, outcome: Outcome) -> str:
    reasons = [refusal.reason for refusal in engine.refusals(outcome.log)]
    return f"refused: {reasons[0] or 'the engine has no such operator'}" if reasons else f"refused: {outcome.error}"


def _unplaced(entries: Sequence[OperatorEntry], refusal: Refusal) -> CertificateFailure:
    places = [p for entry in entries for p in entry.places if p.operator.kind == refusal.operator]
    names = list(dict.fromkeys(place.origin.layer for place in places if place.origin.layer))
    layer = names[0] if len(names) == 1 else ""
    among = f"; one of {', '.join(names[:6])}" if len(names) > 1 else ""
    return CertificateFailure(layer, refusal.operator, f"refused: {refusal.reason}{among}", advice(refusal.operator))


def wrong(
    engine: Engine, layers: Layers, call: ReferenceCall, worst: Deviation, known: set[tuple]
) -> list[CertificateFailure]:
    """Return the first operators of a signature that an engine computes wrongly.

    Args:
        engine: which.
        layers: of the program.
        call: one that gave wrong results.
        worst: what is wrong.
        known: what was found in other signatures, which explains this one too; what is found here is added.
    """
    if known.intersection(place.operator.key for place in layers.entry(call.signature).places):
        return []
    search = _Search(engine, layers.entry(call.signature), call)
    found = search.witnesses(search.suspects()) or search.witnesses(range(len(search.entry.places)))
    known.update(place.operator.key for place, _, _ in found)
    if found:
        return [search.told(*witness, worst) for witness in found[:MOST_TOLD]]
    if (large := search.too_large(search.entry.places)) is not None:
        place, reach = large
        what = f"{worst}; no operator alone shows why, and its result reaches {reach:.1e}"
        return [CertificateFailure(place.origin.layer, place.operator.kind, what, RANGE)]
    maker = search.maker(worst.name)
    where = ("", "") if maker is None else (maker.origin.layer, maker.operator.kind)
    what = f"{worst}; no operator alone, or with those before it, shows why"
    drowned = engine.precision != "float32" and worst.kind == "update" and "learning_rate" in call.feed
    return [CertificateFailure(*where, what, SPLIT if drowned else "")]


class _Search:
    """The search in one signature, on the numbers of one call."""

    def __init__(self, engine: Engine, entry: OperatorEntry, call: ReferenceCall) -> None:
        self.engine, self.entry = engine, entry
        self._inputs = {index: call.feed[name] for index, name in entry.inputs.items()}
        # Truth values stay inside: an engine may have a form of its own for them.
        self._shown = [i for i in entry.made if entry.dtype(i) in (np.float32, np.int32)]
        self._whole = entry.part(range(len(entry.places)), self._shown)
        self._feed = {tensor_name(i): array for i, array in self._inputs.items()}
        given = Cpu(self._whole)(SIGNATURE, self._feed)
        self._values = self._inputs | {i: given[tensor_name(i)] for i in self._shown}

    def maker(self, name: str) -> Place | None:
        """Return the operator that makes an output."""
        index = next(i for i, output in self.entry.outputs.items() if output == name)
        return self.entry.places[self.entry.made[index]] if index in self.entry.made else None

    def told(self, place: Place, window: Sequence[Place], error: float, worst: Deviation) -> CertificateFailure:
        """Return what a witness shows."""
        kinds = [other.operator.kind for other in window[:-1]]
        suffix = f" behind {', '.join(kinds)}" if kinds else ""
        amount = f"is off by {error:.1e}" if np.isfinite(error) else "is no number"
        what = f"computed wrongly{suffix}: its result {amount}; seen in {worst}"
        if (large := self.too_large(window)) is not None:
            return CertificateFailure(
                place.origin.layer, place.operator.kind, f"{what}. What it is made of reaches {large[1]:.1e}", RANGE
            )
        return CertificateFailure(place.origin.layer, place.operator.kind, what, advice(place.operator.kind, kinds))

    def too_large(self, places: Sequence[Place]) -> tuple[Place, float] | None:
        """Return the first operator whose result float16 has no number for, and what it reaches; masks are larger."""
        if self.engine.precision != "float16":
            return None
        for place in places:
            reach = max((_largest(self._values[i]) for i in place.operator.outputs if i in self._values), default=0.0)
            if LARGEST < reach < _MASK:
                return place, reach
        return None

    def suspects(self) -> list[int]:
        """Return operators that give something wrong for something right where every result is exposed, in order."""
        outcome = self.engine.run([Task(self._whole, [(SIGNATURE, self._feed)])])[0]
        if not outcome.results:
            return []
        off = {i: self._error(self._values[i], outcome.results[0].get(tensor_name(i))) for i in self._shown}
        return [
            number
            for number, place in enumerate(self.entry.places)
            if any(off.get(i, 0) > self._limit for i in place.operator.outputs)
            and all(off.get(i, 0) <= self._limit for i in self.entry.operands(number))
        ]

    def witnesses(self, numbers: Sequence[int]) -> list[tuple[Place, list[Place], float]]:
        """Return those that are wrong on the CPU's numbers, in windows as small as may be.

        Equal windows are run once.
        """
        for depth in DEPTHS:
            firsts: dict[tuple, list[int]] = {}
            for number in (n for n in numbers if set(self.entry.places[n].operator.outputs).intersection(self._shown)):
                window = self._window(number, depth)
                if (depth == 0 or len(window) > 1) and self._read(window):  # of constants alone there is no program
                    firsts.setdefault(tuple(self.entry.places[n].operator.key for n in window), window)
            windows = list(firsts.values())[:MOST_TRIED]
            found = {
                window[-1]: (self.entry.places[window[-1]], [self.entry.places[n] for n in window], error)
                for window, error in zip(windows, self._errors(windows), strict=True)
                if error > self._limit
            }
            if found:
                return [found[number] for number in sorted(found)]
        return []

    @property
    def _limit(self) -> float:
        return LIMITS[self.engine.precision]

    def _window(self, number: int, depth: int) -> list[int]:
        """Return an operator and those that make what it reads, and so on; truth values come with who makes them.

        In order.
        """
        chosen = {number}
        for _ in range(depth):
            chosen |= {self.entry.made[i] for n in chosen for i in self.entry.operands(n) if i in self.entry.made}
        while (
            hidden := {
                self.entry.made[i]
                for n in chosen
                for i in self.entry.operands(n)
                if i in self.entry.made and i not in self._values
            }
            - chosen
        ):
            chosen |= hidden
        return sorted(chosen)

    def _read(self, window: Sequence[int]) -> list[int]:
        """Return what operators read that they do not make, but for constants."""
        made = {i for n in window for i in self.entry.places[n].operator.outputs}
        return [i for n in window for i in self.entry.operands(n) if i not in made]

    def _errors(self, windows: Sequence[list[int]]) -> list[float]:
        tasks, wanted = [], list[Mapping[int, np.ndarray]]()
        for window in windows:
            outputs = [i for i in self.entry.read(window[-1]) if i in self._shown]
            feed = {tensor_name(i): self._values[i] for i in self._read(window)}
            part = self.entry.part(window, outputs)
            made_there = self._values
            if self.engine.precision == "float16":  # a difference of neighbours is none there: that is no mistake
                feed = {name: _in_half(array) for name, array in feed.items()}
                given = Cpu(part)(SIGNATURE, feed)
                made_there = {i: given[tensor_name(i)] for i in outputs}
            tasks.append(Task(part, [(SIGNATURE, feed)]))
            wanted.append({i: made_there[i] for i in outputs})
        outcomes = self.engine.run(tasks, LIMIT)
        return [
            max(
                (self._error(array, _first(outcome).get(tensor_name(i)), size) for i, array in arrays.items()),
                default=0.0,
            )
            for arrays, outcome, size in zip(wanted, outcomes, map(self._summed, windows), strict=True)
        ]

    def _summed(self, window: Sequence[int]) -> float:
        """Return the largest number that the last operator adds up, of which a float16 engine leaves the rounding."""
        last = self.entry.places[window[-1]].operator
        if self.engine.precision != "float16" or last.kind not in _SUMS:
            return 0.0
        return min(max((_largest(self._values[i]) for i in last.inputs if i in self._values), default=0.0), LARGEST)

    def _error(self, right: np.ndarray, got: np.ndarray | None, least: float = 0.0) -> float:
        wanted = right.astype(np.float64)
        if self.engine.precision == "float16" and got is not None:  # a mask of -1e9 is the largest number there
            wanted, got = (np.clip(array, -LARGEST, LARGEST) for array in (wanted, got))
        if got is None or got.size != wanted.size or not np.isfinite(got).all():
            return float("inf") if np.isfinite(wanted).all() else 0.0
        size = float(np.abs(wanted).max(initial=least))
        error = float(np.abs(got.astype(np.float64).reshape(wanted.shape) - wanted).max(initial=0.0))
        return error / size if size else float(error > 0)


def _in_half(array: np.ndarray) -> np.ndarray:
    """Rounded to float16; what is given from outside and too large for it would be infinite there."""
    if array.dtype != np.float32:
        return array
    return np.clip(array, -LARGEST, LARGEST).astype(np.float16).astype(np.float32)


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0)) if array.dtype == np.float32 else 0.0


def _first(outcome: Outcome) -> Mapping[str, np.ndarray]:
    return outcome.results[0] if outcome.results else {}
