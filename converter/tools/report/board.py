"""Arena of each call of a step on a microcontroller, from the program file: what lies where, and what it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from converter.backend.schedule.micro_arena import MicroPlan, micro_plan
from converter.backend.targets import target
from converter.program.file import ProgramFile
from converter.program.flatbuffer.damage import sound_tables
from converter.program.layers import Layers
from converter.program.manifest import Manifest
from converter.tools.micro.entries import FEATURES, entries, step_of
from converter.tools.micro.joined import joined

#: The target whose programs run in an arena that TensorFlow Lite Micro plans.
MICRO = "tflm"


@dataclass(frozen=True)
class BoardCall:
    """A call of a step.

    Attributes:
        places: of each operator that runs its place among those of the signature in the file.
        plan: its arena, by these operators.
    """

    places: tuple[int, ...]
    plan: MicroPlan


def board_calls(program: ProgramFile) -> dict[str, BoardCall]:
    """Return the calls of a step by signature, as a sketch makes them (`export-c`), on a board.

    Raises:
        UsageError: the file's tables are damaged.
    """
    with sound_tables():
        return dict(_exported(program) if program.manifest.state == "stateless" else _alone(program))


def _exported(program: ProgramFile) -> Iterator[tuple[str, BoardCall]]:
    """A row that is int8 first comes as int8, and layers in front run apart where there is a step on their results."""
    called, records = entries(program), target(MICRO).records["board"]
    models = joined(program, called)
    names = _step(program.manifest)
    for entry, start in zip(called, models.starts, strict=True):
        if entry.name in names:
            yield entry.name, BoardCall(entry.places, micro_plan(models.data, records, start))


def _alone(program: ProgramFile) -> Iterator[tuple[str, BoardCall]]:
    """No sketch makes these calls; each signature is a file of its own, as the wheel takes it."""
    records, names = target(MICRO).records["board"], _step(program.manifest)
    for entry in Layers(program).entries:
        if entry.name in names:
            places = tuple(range(len(entry.places)))
            yield entry.name, BoardCall(places, micro_plan(entry.part(places, list(entry.outputs)), records))


def _step(manifest: Manifest) -> tuple[str, ...]:
    """Return the signatures that a step is made of."""
    step = step_of(manifest)
    return (step, "apply") if step == manifest.step else (FEATURES, step, "apply")
