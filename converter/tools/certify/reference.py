"""CPU reference: calls of a program's signatures, the stock interpreter's results, and the effect of rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.program.file import ProgramFile
from converter.program.flatbuffer.damage import sound_tables
from converter.program.manifest import FEATURES, Manifest, Signature, TensorSpec, at_length
from converter.program.synthetic import synthetic_target
from converter.runtime.data.examples import check_examples
from converter.support.errors import DeviceError
from converter.support.litert import Interpreter, OpResolverType
from converter.tools.certify.bounds import index_bounds
from converter.tools.certify.calling import Arrays, invocations, is_step, takes, together

#: Of the steps that lead from state to state: small enough for any optimizer on data that mean nothing.
RATE = 0.01
#: Of the steps that are compared. It multiplies the update: beside it a weight and its last bits are next to nothing.
PROBE = 1024.0
#: How often the last bits of what goes in are drawn.
DRAWS = 2


@dataclass(frozen=True)
class ReferenceCall:
    """A call of a signature.

    Attributes:
        signature: which.
        feed: its inputs.
        expected: what the CPU gives.
        shaken: what it gives where the last bits of the inputs are others.
        rounded: the inputs in float16, and what the CPU gives for them.
        other_kernels: what it gives where other kernels add numbers up.
    """

    signature: str
    feed: Arrays
    expected: Arrays
    shaken: tuple[tuple[Arrays, Arrays], ...]
    rounded: tuple[Arrays, Arrays]
    other_kernels: Arrays


class Cpu:
    """The stock interpreter, with XNNPACK's kernels or, `own_kernels`, with its own."""

    def __init__(self, program: bytes, own_kernels: bool = False) -> None:
        kernels = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if own_kernels else OpResolverType.AUTO
        try:
            self._interpreter = Interpreter(model_content=program, num_threads=1, experimental_op_resolver_type=kernels)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"LiteRT does not take the program on the CPU: {error}") from None

    def __call__(self, signature: str, feed: Mapping[str, np.ndarray]) -> Arrays:
        """Return results by name."""
        try:
            runner = self._interpreter.get_signature_runner(signature)
            return runner(**{name: feed[name] for name in runner.get_input_details()})
        except (RuntimeError, ValueError, KeyError) as error:
            raise DeviceError(f"LiteRT does not run {signature!r} of the program on the CPU: {error}") from error


class Reference:
    """A program on the CPU, whose state goes in and out of each call."""

    def __init__(self, program: ProgramFile) -> None:
        self._manifest = program.manifest
        self._cpu, self._other = (Cpu(bytes(program.data), own_kernels) for own_kernels in (False, True))

    def __call__(self, signature: str, feed: Mapping[str, np.ndarray]) -> Arrays:
        """Return results by name."""
        return self._run(self._cpu, signature, feed)

    def _run(self, cpu: Cpu, signature: str, feed: Mapping[str, np.ndarray]) -> Arrays:
        ran = [cpu(*invocation) for invocation in invocations(self._manifest, signature, feed)]
        return together(self._manifest, signature, ran)

    def call(self, signature: str, feed: Arrays, seed: int) -> ReferenceCall:
        """Return a call with all that is to be known of it."""
        rng = np.random.default_rng(seed)
        others = [_shaken(feed, rng) for _ in range(DRAWS)]
        half = {name: _in_half(array) for name, array in feed.items()}
        return ReferenceCall(
            signature,
            feed,
            self(signature, feed),
            tuple((other, self(signature, other)) for other in others),
            (half, self(signature, half)),
            self._run(self._other, signature, feed),
        )


def calls(program: ProgramFile, steps: int, data: Any = None, rate: float = PROBE) -> Iterator[ReferenceCall]:
    """Yield a few steps, each from the state that the CPU has come to, then `evaluate` and `infer`.

    Where the file has them on features alone, they take those of the CPU, and `features` is a call of its own. Of rows
    of fewer tokens, in a program of several lengths, it is one step and these.

    Args:
        program: of any kind of state.
        steps: how many.
        data: rows (x, y) to take instead of drawn ones, as for a training session.
        rate: the learning rate of the steps that are compared.

    Raises:
        UsageError: the data do not fit the program.
        DeviceError: the stock interpreter does not run it.
    """
    manifest, cpu = program.manifest, Reference(program)
    draw = _Draw(program, data)
    state: Arrays = {t.tensor: np.array(program.initial(t)) for t in manifest.state_tensors} | _chosen(manifest)
    usual = np.array([1.0 if manifest.learning_rate is None else manifest.learning_rate], np.float32)
    for step in range(steps):
        one = ReferenceStep(manifest, cpu, draw, state, step)
        if manifest.step == manifest.updating or manifest.state == "variables":
            yield cpu.call(manifest.stored_step, one.feed(manifest.stored_step, rate), step)
            state = one.after(usual)
        else:
            yield cpu.call(manifest.stored_step, one.feed(manifest.stored_step, rate), step)
            gradients = one.gradients()
            if manifest.state != "split":  # there the update is the CPU's
                feed = state | gradients | {"learning_rate": np.array([rate], np.float32)}
                takes = [spec.name for spec in manifest.signatures[manifest.updating].inputs]
                yield cpu.call(manifest.updating, {name: feed[name] for name in takes}, step)
            state = one.after(usual, gradients)
    one = ReferenceStep(manifest, cpu, draw, state, steps)
    behind = set(manifest.behind_features.values()) - {manifest.stored_step}
    also = {"evaluate", "infer", *behind, *([FEATURES] if manifest.behind_features else [])}
    for name in manifest.signatures:
        if name in also or at_length(name)[1] is not None:
            yield cpu.call(name, one.feed(name, rate), steps)


@dataclass(frozen=True)
class ReferenceStep:
    """A step of the CPU from a state."""

    manifest: Manifest
    cpu: Reference
    draw: _Draw
    state: Arrays
    number: int

    def feed(self, name: str, rate: float, part: int = 0) -> Arrays:
        """Return what goes into a call of a signature; the accumulators are empty."""
        parts = self.manifest.batch // self.manifest.micro_batch
        rows = self._rows(name, self.number * parts + part)
        # What adds up the gradients of micro-batches takes shares of the weight of all of them.
        adds = is_step(self.manifest, name) and self.manifest.step != self.manifest.updating
        adds = adds and self.manifest.state != "split"
        share = np.float32(1 / self.manifest.batch if adds else 1)
        for spec in takes(self.manifest, name):
            match spec.role:
                case "weight":
                    rows[spec.name] = np.full(spec.shape, share)
                case "learning_rate":
                    rows[spec.name] = np.full(spec.shape, rate, np.float32)
                case "gradient":
                    rows[spec.name] = np.zeros(spec.shape, spec.dtype)
                case "state":
                    rows[spec.name] = self.state[spec.name]
        return rows

    def _rows(self, name: str, number: int) -> Arrays:
        """Return the inputs and targets of a call of a signature: of the model, or features of these."""
        own = {on_features: whole for whole, on_features in self.manifest.behind_features.items()}
        rows = self.draw(self.manifest.calls[own.get(name, name)], number)
        if name not in own:
            return rows
        inputs = {spec.name for spec in self.manifest.signatures[FEATURES].inputs}
        targets = {other: array for other, array in rows.items() if other not in inputs}
        return self.cpu(FEATURES, self.state | rows) | targets

    def gradients(self) -> Arrays:
        """Return the gradients of the whole step: summed by signatures with accumulators, else mean of the calls."""
        name, parts = self.manifest.stored_step, self.manifest.batch // self.manifest.micro_batch
        taking = {spec.name for spec in self.manifest.signatures[name].taking("gradient")}
        sums: Arrays = {}
        for part in range(parts):
            feed = self.feed(name, 0.0, part) | {n: sums[n] for n in taking if n in sums}
            given = self.cpu(name, feed)
            for spec in self.manifest.signatures[name].giving("gradient"):
                more = given[spec.name]
                sums[spec.name] = more if taking or not part else sums[spec.name] + more
        return sums if taking else {n: (array / parts).astype(array.dtype) for n, array in sums.items()}

    def after(self, rate: np.ndarray, gradients: Arrays | None = None) -> Arrays:
        """Return the state after the step, as finite as it was."""
        feed = self.feed(self.manifest.stored_step, float(rate[0]))
        given = self.cpu(self.manifest.stored_step, feed)
        if gradients is not None:
            given |= self.cpu(self.manifest.updating, self.state | gradients | given | {"learning_rate": rate})
        after = self.state | {name: array for name, array in given.items() if name in self.state}
        return after if all(np.isfinite(array).all() for array in after.values()) else self.state


class _Draw:
    """Rows: the user's, or drawn ones that any model takes."""

    def __init__(self, program: ProgramFile, data: Any) -> None:
        self._manifest = program.manifest
        with sound_tables():
            behind = program.manifest.step in program.manifest.behind_features
            self._bounds = index_bounds(program.data, FEATURES if behind else program.manifest.step)
        step = program.manifest.calls[program.manifest.step]
        x, y = data if isinstance(data, tuple) else (data, None)
        self._given = None if data is None else check_examples(step, x, y)

    def __call__(self, signature: Signature, number: int) -> Arrays:
        wanted = (*signature.taking("input"), *signature.taking("target"))
        rows = wanted[0].shape[0] if wanted else 0
        if self._given is not None:
            chosen = self._given.take(np.arange(number * rows, (number + 1) * rows) % self._given.rows)
            return {spec.name: chosen.arrays[spec.name][tuple(map(slice, spec.shape))] for spec in wanted}
        rng = np.random.default_rng(1000 + number)
        return {spec.name: self._drawn(spec, rng) for spec in wanted}

    def _drawn(self, spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
        if spec.role == "target":
            labels = self._manifest.target_labels.get(spec.name)
            is_label = spec.dtype == "int32" and self._manifest.losses.get(spec.name) != "ctc"
            if is_label and labels is not None and labels.count is not None:
                return rng.integers(0, labels.count, spec.shape, np.int32)
            return synthetic_target(spec, self._manifest, rng)
        if spec.dtype == "float32":
            return rng.random(spec.shape, np.float32)
        return rng.integers(0, self._bounds.get(spec.name, 2), spec.shape).astype(spec.dtype)


def _chosen(manifest: Manifest) -> Arrays:
    """Return channels as a session may choose them: an engine that always takes the first ones must not pass."""
    rng = np.random.default_rng(0)
    return {
        choice.indices: np.sort(rng.choice(choice.channels, manifest.trained_channels(choice), replace=False)).astype(
            np.int32
        )
        for choice in manifest.choices
    }


def neighbours(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move each number to one of its two neighbours among the float32 numbers.

    Zeros and the largest ones stay.
    """
    stays = (array == 0) | (np.abs(array) >= np.finfo(np.float32).max)
    towards = np.where(rng.random(array.shape) < 0.5, -np.inf, np.inf).astype(np.float32)
    return np.nextafter(array, np.where(stays, array, towards))


def _shaken(feed: Mapping[str, np.ndarray], rng: np.random.Generator) -> Arrays:
    """Other last bits, but for what is said exactly."""
    exact = ("learning_rate", "weight")
    return {n: neighbours(a, rng) if a.dtype == np.float32 and n not in exact else a for n, a in feed.items()}


def _in_half(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32) if array.dtype == np.float32 else array
