"""Step profile: where its time goes, by layer, phase and operator.

The Python package of LiteRT does not say what its operators take, so each different operator of the step is run alone,
in the same interpreter with the same types, constants and threads, and the whole step is run too. Alone an operator
finds its operands in the cache; so what is told is each operator's share of the sum, as time of the measured step, and
how far the sum is from it. Of several runs the fastest counts: it is the one that other processes have disturbed least.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.emit.emit import Subgraph, emit
from converter.ir import FLOAT32, Builder, Origin, TensorType
from converter.program.file import ProgramFile, read_program
from converter.program.flatbuffer.operators import STATE, FileOperator, OperatorFile
from converter.program.manifest import called_by_step
from converter.program.origins import PHASES, read_origins
from converter.program.synthetic import synthetic_inputs, synthetic_targets
from converter.runtime.interpreters.choice import open_engine
from converter.runtime.interpreters.entry import SignatureEntry
from converter.runtime.interpreters.memory import memory_of
from converter.support.errors import DeviceError, UsageError
from converter.support.litert import Interpreter

#: They only hand on memory, also on XNNPACK: alone they would be charged for a copy that the step does not make.
FREE = ("RESHAPE", *STATE)
#: Seconds that an operator takes at least in a step; alone, what it takes beyond the bare call is within the noise.
_LEAST = 1e-7
#: Integer operands of these are divisors; those of others may be indices, for which zero is safe.
_DIVISIONS = ("DIV", "FLOOR_DIV", "FLOOR_MOD")


@dataclass(frozen=True)
class ProfileRow:
    """What an operator of the step takes.

    Attributes:
        signature: where it is: `train`, or that of the rows or `apply`.
        operator: the builtin.
        layer: of the user's model; empty for what the compiler adds.
        phase: `forward`, `backward` or `update`.
        calls: how often a step runs it.
        alone: milliseconds of it alone, less those of a call that does nothing.
        share: of the step.
    """

    signature: str
    operator: str
    layer: str
    phase: str
    calls: int
    alone: float
    share: float


@dataclass(frozen=True)
class Profile:
    """A measured step.

    Attributes:
        steps: how often everything was run; times are the shortest.
        threads: processor cores a step may use.
        step: milliseconds of the whole step.
        alone: milliseconds of its operators alone, summed up.
        rows: one for each operator, in the order of the file.
    """

    steps: int
    threads: int
    step: float
    alone: float
    rows: tuple[ProfileRow, ...]

    def by(self, what: Literal["layer", "operator"]) -> dict[str, dict[str, float]]:
        """Return milliseconds of the step for each layer or operator, by phase; what takes most comes first."""
        groups: dict[str, dict[str, float]] = {}
        for row in self.rows:
            times = groups.setdefault(getattr(row, what), dict.fromkeys(PHASES, 0.0))
            times[row.phase] += row.share * self.step
        return dict(sorted(groups.items(), key=lambda item: -sum(item[1].values())))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "steps": self.steps,
            "threads": self.threads,
            "step_ms": self.step,
            "alone_ms": self.alone,
            "layers": self.by("layer"),
            "operators": self.by("operator"),
            "rows": [asdict(row) for row in self.rows],
        }


def profile(path: str | os.PathLike | bytes, steps: int = 10, threads: int = 1, head: str | None = None) -> Profile:
    """Measures a training step and each of its operators.

    Args:
        path: the `.tflite`, or its bytes.
        steps: how often each is run.
        threads: processor cores to use.
        head: which, of a file of several.

    Raises:
        UsageError: the file is missing, damaged, or no Pocketune program, or a number is below 1.
        DeviceError: LiteRT does not run it.
    """
    if steps < 1 or threads < 1:
        raise UsageError(f"steps and threads must be at least 1, got {steps} and {threads}", page="program-files")
    program = read_program(path, head)
    operators = _operators(program)
    manifest = program.manifest
    calls = {name: 1 if name == "apply" else manifest.batch // manifest.micro_batch for name in operators}
    whole = sum(calls[name] * seconds for name, seconds in _signature_times(program, [*operators], steps, threads))
    known: dict[tuple, float] = {}
    call = _call_time(steps, threads)
    measured = []
    for name, (origin, operator) in ((n, pair) for n, pairs in operators.items() for pair in pairs):
        if operator.kind in FREE or operator.unpacks:
            measured.append((name, operator.kind, origin, 0.0))
            continue
        if operator.key not in known:
            alone = _alone(operator, f"{operator.kind} of {origin}", steps, threads)
            known[operator.key] = max(alone - call, _LEAST)
        measured.append((name, operator.kind, origin, known[operator.key]))
    total = sum(calls[name] * seconds for name, _, _, seconds in measured)
    rows = tuple(
        ProfileRow(name, kind, o.layer, o.phase, calls[name], 1000 * seconds, calls[name] * seconds / total)
        for name, kind, o, seconds in measured
    )
    return Profile(steps, threads, 1000 * whole, 1000 * total, rows)


def _operators(program: ProgramFile) -> dict[str, list[tuple[Origin, FileOperator]]]:
    """Return the operators of each signature of the step with where they come from."""
    origins = read_origins(program)
    wanted = called_by_step(program.manifest.signatures)
    try:
        found = program.own(OperatorFile(program.data).subgraphs())
        return {name: list(zip(origins[name], found[name], strict=True)) for name in wanted}
    except (struct.error, IndexError, ValueError, KeyError):
        raise UsageError(
            "its operators are not those that it says they are: build it again", page="program-files"
        ) from None


def _signature_times(program: ProgramFile, names: list[str], steps: int, threads: int) -> list[tuple[str, float]]:
    """Return the seconds of a call of each signature, on data that any loss takes; the state stays as it is."""
    engine = open_engine(program, threads)
    memory, times = memory_of(program, engine), []
    for name in names:
        entry = engine.entry(name)
        memory.lend(entry)
        _fill(program, entry)
        times.append((name, _fastest(entry.invoke, steps)))
    return times


def _fill(program: ProgramFile, entry: SignatureEntry) -> None:
    rng, signature = np.random.default_rng(0), entry.signature
    given = synthetic_inputs(signature, rng)
    if signature.taking("target"):
        given |= synthetic_targets(program.manifest, rng)
    given |= {spec.name: np.ones(spec.shape, np.float32) for spec in signature.taking("weight")}
    given |= {spec.name: np.zeros(spec.shape, np.float32) for spec in signature.taking("learning_rate")}
    for name, array in given.items():
        entry.input(name)[...] = array


def _alone(operator: FileOperator, what: str, steps: int, threads: int) -> float:
    """Return the seconds of an operator alone, with the call."""
    try:
        return _program_time(operator.program(), operator.kind in _DIVISIONS, steps, threads)
    except (RuntimeError, ValueError) as error:
        raise DeviceError(f"LiteRT could not run {what} alone: {error}") from None


def _call_time(steps: int, threads: int) -> float:
    """Return the seconds of a call of next to nothing."""
    b = Builder()
    b.graph.outputs["y"] = b(tfl.Neg(), b.input("x", TensorType((1,), FLOAT32)))
    return _program_time(emit([Subgraph("call", b.graph)], {}, "one number"), 0, steps, threads)


def _program_time(program: bytes, integer: int, steps: int, threads: int) -> float:
    """Return the seconds of a call of a program without state; its integer inputs are all the same."""
    interpreter = Interpreter(model_content=program, num_threads=threads)
    interpreter.allocate_tensors()
    rng = np.random.default_rng(0)
    for tensor in interpreter.get_input_details():
        shape, dtype = tensor["shape"], np.dtype(tensor["dtype"])
        # Neither zero nor so small that a processor would take its slow path.
        floats = rng.uniform(0.5, 1.5, shape).astype(dtype)
        interpreter.set_tensor(tensor["index"], floats if dtype.kind == "f" else np.full(shape, integer, dtype))
    return _fastest(interpreter.invoke, steps)


def _fastest(call: Callable[[], None], steps: int) -> float:
    call()  # the first one packs and takes memory
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
