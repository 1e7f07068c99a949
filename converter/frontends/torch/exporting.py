"""Export of modules for one batch size, down to the operators that have rules."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

import torch

from converter.frontends.torch.checks import check_module
from converter.frontends.torch.functional import made_functional
from converter.frontends.torch.guards import assigned, guarded
from converter.frontends.torch.markers import mark, stochastic_depth_marked
from converter.frontends.torch.places import place_in
from converter.frontends.torch.training_reads import notes_on_reads, reads_of_training
from converter.support.errors import UsageError

#: Of a graph's metadata: the attributes that the module assigned to as it was traced, and notes on reads of `training`.
ASSIGNED, READS = "assigned", "reads"


def rows_of(value: Any, batch: int) -> Any:
    """Return an example input with that many rows, its own repeated; an input that is not a tensor is unchanged."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    if value.shape[0] == batch:
        return value
    return value[torch.arange(batch) % value.shape[0]]


def export_module(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.export.ExportedProgram:
    """Return a module as it infers, traced on the example inputs.

    Of the graph's metadata: `ASSIGNED` are attributes that it assigned to, `READS` notes on what it does in training
    alone by its own code.

    Raises:
        UsageError: the module cannot be traced; its own message and line are in it.
    """
    check_module(module)
    try:
        with reads_of_training() as reads:
            program = _traced(module, args, kwargs)
        notes = notes_on_reads(module, program, reads, lambda: _traced(module, args, kwargs))
        program.graph_module.meta[READS] = notes
        return program
    except Exception as error:
        raise UsageError(
            f"{_name(module)} cannot be exported: {_reason(error)}{_where(module, error)}", page="pytorch"
        ) from error


def _traced(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.export.ExportedProgram:
    with inference(module), stochastic_depth_marked(module), guarded() as guard, assigned(module) as names, quiet():
        program = torch.export.export(module, tuple(args), dict(kwargs), strict=False)
    guard.check()
    program.graph_module.meta[ASSIGNED] = names
    return program


def lowered(program: torch.export.ExportedProgram, known: Sequence[str]) -> torch.export.ExportedProgram:
    """Return a program without in-place operators and views, of the operators that are known wherever there are rules.

    Args:
        program: of the training IR; marked in place.
        known: names of operators that stay as they are, `linear`, or of one overload, `max.dim`.
    """
    mark(program)
    table = torch.export.default_decompositions()
    operators = list(table.keys())
    if made_functional(program, known, {operator.name() for operator in operators}):
        return program
    for operator in operators:
        namespace, _, name = operator.name().partition("::")
        if namespace == "aten" and (name in known or name.partition(".")[0] in known):
            table.pop(operator)
    with quiet():
        return program.run_decompositions(table)


@contextmanager
def inference(module: Any) -> Iterator[None]:
    """While it lasts, a module infers, by the code that a step can train: without the fast path of attention."""
    modes = {layer: layer.training for layer in module.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    for layer in modes:
        layer.training = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for layer, mode in modes.items():
            layer.training = mode


@contextmanager
def quiet() -> Iterator[None]:
    """While it lasts, torch's own advice about exports is not shown, nor graphs that it prints before it raises."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    names = vars(import_module("torch.export._trace"))
    names["print"] = lambda *_, **__: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        names.pop("print", None)
        logger.setLevel(level)


def _is_packed(frame: FrameType) -> bool:
    """Whether a frame of PyTorch works on a packed sequence."""
    file = frame.f_code.co_filename.replace("\\", "/")
    layer = file.endswith("torch/nn/modules/rnn.py") and frame.f_locals.get("batch_sizes") is not None
    return layer or file.endswith("torch/nn/utils/rnn.py")


def _where(module: Any, error: Exception) -> str:
    """The layer and the line of the user's code at which an error was raised; nothing where there is none."""
    paths = {id(layer): path for path, layer in module.named_modules()}
    found, layer = "", None
    for frame, line in traceback.walk_tb(error.__traceback__):
        source = place_in(frame.f_code.co_filename, line)
        layer = paths.get(id(frame.f_locals.get("self")), layer)
        if source and layer is not None:
            found = f" ({f'layer {layer} at ' if layer else ''}{source} in {frame.f_code.co_name})"
    return found


def _name(module: Any) -> str:
    return type(module).__name__


#: What errors of `torch.export` mean that speak of its insides.
_MEANT = {
    "higher order operator": "torch.cond, while_loop and their like have no form in a program. Compute both and choose "
    "by torch.where",
    "data-dependent": "Python takes a number out of a tensor (if, float(), int(), item()), which a graph has not. "
    "Keep it a tensor, x * self.scale, and choose by torch.where",
    "not a known type": "it returns, or takes, an object that is no tensor, tuple, list or dict. Give these",
    "torch.classes.quantized": "its layers are quantized. Build the module of floats that they were made of: "
    "frozen='int8' quantizes what does not train",
    "fake tensor in the exported program": "a tensor is used that was kept of another call, or made where no graph "
    "sees it. Make it in forward of the inputs, or register it as a buffer",
}


def _reason(error: Exception) -> str:
    """What an error of `torch.export` says, without what its authors tell each other."""
    if any(map(_is_packed, (frame for frame, _ in traceback.walk_tb(error.__traceback__)))):
        return (
            "a packed sequence has no fixed shape. Give the recurrent layer the padded batch itself, [rows, time, "
            "features], and mask what lies behind the ends"
        )
    for said, meant in _MEANT.items():
        if said in str(error):
            return meant
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:6])[:900] or type(error).__name__
