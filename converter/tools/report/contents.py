"""Report contents, from a program file: figures by layer, the drawn model, the memory of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from converter.driver.build_report import KINDS, Account, MemoryRecord, read_account
from converter.ir import Origin
from converter.program.file import ProgramFile
from converter.program.flatbuffer.damage import DAMAGED
from converter.program.flatbuffer.operators import OperatorFile
from converter.program.origins import PHASES, read_origins
from converter.support.errors import UsageError
from converter.tools.report.board import MICRO, BoardCall, board_calls
from converter.tools.report.tree import groups

#: What trains of a part of the model, in the order in which a page explains it.
STATUSES = {
    "trained": "its weights train",
    "cut": "some of its weights or channels train",
    "passed": "frozen, and gradients pass through it",
    "frozen": "frozen, and the backward pass does not reach it",
    "free": "it has no weights, and gradients pass through it",
    "plain": "it has no weights, and the backward pass does not reach it",
}


@dataclass
class LayerCosts:
    """What a layer of a step costs, by phase.

    Attributes:
        flops: floating point operations of a step.
        costs: by the target's table, in its unit.
        ms: milliseconds of a step, where they were measured.
    """

    flops: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    costs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Peak:
    """When most bytes are alive in a call.

    Attributes:
        nbytes: that are alive.
        held: that the runtime holds all the time: arena and workspace as planned, gaps included.
        where: which operator runs, in words.
        alive: layer, phase, kind of memory and bytes, the largest first.
        placed: of a board, where it lies: from which byte, how many, layer, phase and kind, in the order of addresses.
        filled: of a board, what the arena consists of, and bytes.
    """

    call: str
    nbytes: int
    held: int
    where: str
    alive: list[tuple[str, str, str, int]]
    placed: list[tuple[int, int, str, str, str]]
    filled: list[tuple[str, int]]


@dataclass(frozen=True)
class Run:
    """A call of a step as the runtime makes it.

    Attributes:
        places: the operators in the order of execution, by their places in the file.
        partitions: the delegate's, of each of them; -1: the runtime's own kernel.
        memory: over the call.
        plan: of a board, what lies where.
    """

    places: tuple[int, ...]
    partitions: tuple[int, ...]
    memory: MemoryRecord
    plan: BoardCall | None = None

    def alive(self) -> list[int]:
        """Return bytes in use while each operator runs, in the order of execution."""
        return self.memory.alive(len(self.places))

    @classmethod
    def of_board(cls, call: BoardCall) -> Run:
        """Return the run of a call in TensorFlow Lite Micro."""
        pieces = call.plan.pieces
        memory = MemoryRecord(
            tuple(p.nbytes for p in pieces),
            tuple(p.first for p in pieces),
            tuple(p.last for p in pieces),
            tuple(-1 if p.maker is None else p.maker for p in pieces),
            tuple(KINDS.index(p.kind) for p in pieces),
            call.plan.arena.size,
            0,
        )
        return cls(call.places, (-1,) * len(call.places), memory, call)


@dataclass(frozen=True)
class ReportContents:
    """A program file as a report shows it."""

    program: ProgramFile
    account: Account

    @cached_property
    def origins(self) -> dict[str, list[Origin]]:
        """The origin of each operator by call, in the file's order. Raises UsageError."""
        origins = read_origins(self.program)
        if any(len(origins.get(name, ())) != len(call.flops) for name, call in self.account.calls.items()):
            raise UsageError(
                "account: it is of other operators than the file holds: build the program again", page="reports"
            )
        return origins

    @cached_property
    def operators(self) -> dict[str, list[str]]:
        """The builtins of each subgraph in the file's order. Raises UsageError."""
        try:
            found = self.program.own(OperatorFile(self.program.data).subgraphs())
            return {name: [o.kind for o in operators] for name, operators in found.items()}
        except DAMAGED:
            raise UsageError("its operators cannot be read: build or copy it again", page="reports") from None

    @property
    def is_micro(self) -> bool:
        """Whether the program runs in an arena that TensorFlow Lite Micro plans."""
        return self.program.manifest.target == MICRO

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The calls of a step as the runtime makes them, by signature. Raises UsageError."""
        if self.is_micro:
            return {name: Run.of_board(call) for name, call in board_calls(self.program).items()}
        return {
            name: Run(call.order or tuple(range(len(call.flops))), call.partitions, call.memory)
            for name, call in self.account.calls.items()
        }

    def times(self, signature: str) -> int:
        """Return how often a step calls a signature."""
        manifest = self.program.manifest
        return 1 if signature == "apply" else manifest.batch // manifest.micro_batch

    @cached_property
    def layers(self) -> dict[str, LayerCosts]:
        """The costs of each layer of a step, in the order in which the model has them."""
        found = {part.layer: LayerCosts() for part in self.account.model}
        for name, call in self.account.calls.items():
            for origin, flops, cost in zip(self.origins[name], call.flops, call.costs, strict=True):
                layer = found.setdefault(origin.layer, LayerCosts())
                layer.flops[origin.phase] += self.times(name) * flops
                layer.costs[origin.phase] += self.times(name) * cost
        return found

    @cached_property
    def fractions(self) -> dict[str, tuple[float, str]]:
        """How much of each weight of the model trains, and why: that of an adapter counts for its weight."""
        table = {row.parameter: (row.fraction, row.why) for row in self.program.manifest.update.table}
        found = {name: table.get(name, (0.0, "")) for name in self.account.weights}
        for name, (fraction, why) in table.items():
            owner = name.rpartition("/")[0]
            if name not in found and owner in found and fraction:
                found[owner] = (min(fraction, 0.5), why)
        return found

    @cached_property
    def statuses(self) -> list[str]:
        """What trains of each part of the model, of `STATUSES`: gradients pass where a trained weight lies after."""
        reached: list[bool] = []
        found = []
        for part in self.account.model:
            fractions = [self.fractions[name][0] for name in part.parameters if name in self.fractions]
            reached.append(any(fractions) or any(reached[read] for read in part.reads))
            if not fractions:
                found.append("free" if reached[-1] else "plain")
            elif not any(fractions):
                found.append("passed" if reached[-1] else "frozen")
            else:
                found.append("trained" if all(fraction == 1 for fraction in fractions) else "cut")
        return found

    def graph(self) -> list[dict[str, Any]]:
        """Return the drawn model: its parts."""
        seen: dict[str, int] = {}
        drawn = []
        for part, group, status in zip(self.account.model, groups(self.account.model), self.statuses, strict=True):
            seen[part.layer] = seen.get(part.layer, 0) + 1
            costs = self.layers[part.layer]
            weights = [
                [name, list(self.account.weights.get(name, ())), *self.fractions.get(name, (0.0, ""))]
                for name in part.parameters
            ]
            drawn.append(
                {
                    "layer": part.layer or "(no layer)",
                    "again": seen[part.layer],
                    "group": list(group),
                    "status": status,
                    "operations": part.operations,
                    "result": part.result,
                    "reads": list(part.reads),
                    "inputs": list(part.inputs),
                    "outputs": list(part.outputs),
                    "weights": weights,
                    "flops": part.flops,
                    "layer_flops": [costs.flops[phase] for phase in PHASES],
                }
            )
        return drawn

    def memory(self) -> list[dict[str, Any]]:
        """Return each call of a step: its operators in the order of execution, and the pieces of memory."""
        return [self._call(name) for name in self.runs]

    def _call(self, name: str) -> dict[str, Any]:
        run, origins, kinds = self.runs[name], self.origins.get(name, []), self.operators.get(name, [])
        if len(kinds) != len(origins):
            raise UsageError(
                "account: it is of other operators than the file holds: build the program again", page="reports"
            )
        layers, names = _indexed(origins[i].layer or "(compiler)" for i in run.places)
        codes, builtins = _indexed(kinds[i] for i in run.places)
        memory = run.memory
        return {
            "name": name,
            "times": self.times(name),
            "layers": names,
            "layer": layers,
            "builtins": builtins,
            "builtin": codes,
            "phase": [PHASES.index(origins[i].phase) for i in run.places],
            "partition": list(run.partitions),
            "nbytes": list(memory.nbytes),
            "first": list(memory.first),
            "last": list(memory.last),
            "maker": list(memory.maker),
            "kind": list(memory.kinds),
            "kinds": list(KINDS),
            "arena": memory.arena,
            "workspace": memory.workspace,
        }

    def peaks(self) -> list[Peak]:
        """Return for each call of a step the moment when most bytes are alive."""
        return [self._peak(name) for name in self.runs]

    def _peak(self, name: str) -> Peak:
        run, origins = self.runs[name], self.origins[name]
        memory, alive = run.memory, run.alive()
        at = alive.index(max(alive))
        there: Counter[tuple[str, str, str]] = Counter()
        pieces = zip(memory.nbytes, memory.first, memory.last, memory.maker, memory.kinds, strict=True)
        for nbytes, first, last, maker, kind in pieces:
            if first <= at <= last:
                there[_whose(origins, run, maker, KINDS[kind])] += nbytes
        running = origins[run.places[at]]
        return Peak(
            name,
            alive[at],
            memory.arena + memory.workspace,
            f"operator {at + 1} of {len(alive)}, {self.operators[name][run.places[at]]} of "
            f"{running.layer or '(compiler)'}",
            [(*key, nbytes) for key, nbytes in there.most_common()],
            _placed(run, origins, at),
            _filled(run),
        )


def _whose(origins: list[Origin], run: Run, maker: int, kind: str) -> tuple[str, str, str]:
    """Return layer, phase and kind of a piece of memory."""
    if maker < 0:
        return "(interpreter)" if kind == "records" else "(input)", "", kind
    origin = origins[run.places[maker]]
    return origin.layer or "(compiler)", origin.phase, kind


def _placed(run: Run, origins: list[Origin], at: int) -> list[tuple[int, int, str, str, str]]:
    """Return what a board's planner has placed while an operator runs, with gaps between, by address."""
    if run.plan is None:
        return []
    there = [p for p in run.plan.plan.pieces if p.offset is not None and p.first <= at <= p.last and p.nbytes]
    found, end = list[tuple[int, int, str, str, str]](), 0
    for piece in sorted(there, key=lambda piece: piece.offset or 0):
        start = piece.offset or 0
        if start > end:
            found.append((end, start - end, "(free)", "", "gap"))
        found.append(
            (start, piece.nbytes, *_whose(origins, run, -1 if piece.maker is None else piece.maker, piece.kind))
        )
        end = start + piece.nbytes
    free = run.plan.plan.arena.tensors - end
    return [*found, (end, free, "(free)", "", "gap")] if free else found


def _filled(run: Run) -> list[tuple[str, int]]:
    """Return what a board's arena consists of."""
    if run.plan is None:
        return []
    arena = run.plan.plan.arena
    more = max(arena.planning - arena.tensors, 0)
    return [
        ("tensors, with gaps between them", arena.tensors),
        ("records of tensors and operators, from the first call to the last", arena.records),
        ("transposed copies of operands, from the first call to the last", arena.copies),
        (f"lists of the planner, {arena.planning:,} bytes where tensors lie later: what is more than these", more),
        ("arena", arena.size),
    ]


def _indexed(names: Any) -> tuple[list[int], list[str]]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names], list(numbers)


def contents_of(program: ProgramFile, measured: Mapping[str, Mapping[str, float]] | None = None) -> ReportContents:
    """Return the contents of a program file.

    Args:
        program: the file.
        measured: milliseconds of a step by layer and phase.

    Raises:
        UsageError: it holds no account of its build, or a damaged one.
    """
    contents = ReportContents(program, read_account(program))
    for layer, ms in (measured or {}).items():
        contents.layers.setdefault(layer, LayerCosts()).ms = dict(ms)
    return contents
