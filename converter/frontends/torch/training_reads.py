"""Code of a module that asks whether it trains: where it does, and whether it computes otherwise then."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from converter.frontends.torch.places import place_in
from converter.support.notes import Note

#: Dropout in an exported graph, whose last operand says whether it acts: it is marked, in either mode.
_DROPOUT = re.compile(r"(?<!alpha_)(dropout_?\.default\([^()]*, )(?:True|False)\)")
_WHY = (
    "asks self.training at {}, and computes otherwise where it trains: the program computes as in eval(), in its "
    "steps, too. Where a step is to do the other, write that into forward without asking"
)


@contextmanager
def reads_of_training(answer: bool | None = None) -> Iterator[dict[str, list[Any]]]:
    """While it lasts, reads of `training` by code outside of PyTorch are listed: the layers by line.

    Args:
        answer: what such code is told; None: the truth.
    """
    found: dict[str, list[Any]] = {}

    def read(layer: Any) -> bool:
        frame = sys._getframe(1)
        own = bool(vars(layer).get("training", True))
        if not (place := place_in(frame.f_code.co_filename, frame.f_lineno)):
            return own
        layers = found.setdefault(place, [])
        if not any(layer is known for known in layers):
            layers.append(layer)
        return own if answer is None else answer

    def write(layer: Any, mode: bool) -> None:
        vars(layer)["training"] = mode

    setattr(torch.nn.Module, "training", property(read, write))  # noqa: B010 (a data descriptor before each own one)
    try:
        yield found
    finally:
        del torch.nn.Module.training


def notes_on_reads(
    module: torch.nn.Module,
    program: torch.export.ExportedProgram,
    reads: dict[str, list[Any]],
    again: Callable[[], torch.export.ExportedProgram],
) -> list[Note]:
    """Return what to say of code that asks whether it trains, by layer; nothing where it does the same but dropout.

    Args:
        module: the module.
        program: of it, in inference.
        reads: layers by the lines that asked.
        again: exports it once more.
    """
    if not reads:
        return []
    if _does_the_same(program, again):
        return []
    paths = {id(layer): path for path, layer in module.named_modules()}
    notes: dict[str, list[str]] = {}
    for place, layers in reads.items():
        for layer in layers:
            notes.setdefault(paths.get(id(layer)) or "the module", []).append(place)
    return [Note(path, "left out", _WHY.format(", ".join(places))) for path, places in notes.items()]


def _does_the_same(program: torch.export.ExportedProgram, again: Callable[[], torch.export.ExportedProgram]) -> bool:
    """Whether a module does the same where its code is told that it trains."""
    try:
        with reads_of_training(True):
            return _shown(again()) == _shown(program)
    except Exception:  # whatever its other branch raises: then it is another one
        return False


def _shown(program: torch.export.ExportedProgram) -> tuple[str, str]:
    """A graph and what it returns and writes as text, without what marks dropout and places."""
    code = program.graph_module.print_readable(print_output=False)
    lines = [line for line in code.splitlines() if not line.lstrip().startswith("#")]
    return _DROPOUT.sub(r"\1False)", "\n".join(lines)), str(program.graph_signature.output_specs)
