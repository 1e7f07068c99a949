"""What an exported program takes, holds and gives, by the names of the user's module."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from converter.frontends.torch.tensors import to_numpy
from converter.frontends.torch.weights import Weights
from converter.ir import LazyArray
from converter.support.errors import UsageError, nearest
from converter.support.notes import Note

#: Of attributes and buffers that a module writes.
ASSIGNS = "the module assigns to it as it is called: every call of the program begins with its value now"
#: Operators that read the statistics of batch normalization, and where these stand among their operands.
_STATISTICS = {"batch_norm": (3, 4), "_native_batch_norm_legit_no_training": (3, 4), "native_batch_norm": (3, 4)}


class State:
    """The parameters and buffers of a program.

    Attributes:
        parameters: what can train, and the statistics of batch normalization, by the names of `state_dict()`; what is
            tied by the first of its names.
        frozen: those of them that do not train: statistics, and what has `requires_grad=False`.
        places: their names by the placeholder of the graph.
        known: all other placeholders with values: buffers and constants.
        notes: on what of it is not as it is in PyTorch.
    """

    def __init__(self, program: torch.export.ExportedProgram, weights: Weights) -> None:
        """`weights`: what stands for the tensors of the program, by name."""
        signature = program.graph_signature
        statistics = _statistics(program)
        self._weights = weights
        self.parameters: dict[str, np.ndarray | LazyArray] = {}
        self.frozen: list[str] = []
        self.places: dict[str, str] = {}
        self.known: dict[str, torch.Tensor] = {}
        self.notes: list[Note] = []
        self._tied: dict[Any, str] = {}
        held = {**program.constants, **program.state_dict}
        for place, name in signature.inputs_to_parameters.items():
            self._add(place, name, held[name], held[name].requires_grad)
        for place, name in signature.inputs_to_buffers.items():
            if place in statistics:
                self._add(place, name, held[name], False)
            else:
                self.known[place] = self._tensor(name, held[name])
        for place, name in signature.inputs_to_lifted_tensor_constants.items():
            self.known[place] = program.constants[name].detach()
        for name in signature.buffers_to_mutate.values():
            if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
                self.notes.append(Note(name, "left out", ASSIGNS))

    def _add(self, place: str, name: str, tensor: torch.Tensor, trains: bool) -> None:
        if tensor.is_floating_point():
            memory = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else name
            name = self.places[place] = self._tied.setdefault(memory, name)
            if tensor.dtype != torch.float32 and name not in {**self.parameters, **self._weights}:
                why = f"{str(tensor.dtype).removeprefix('torch.')} in the module: the program computes in float32"
                self.notes.append(Note(name, "in float32", why))
            self.parameters[name] = self._weights[name] if name in self._weights else to_numpy(tensor)
            if not trains and name not in self.frozen:
                self.frozen.append(name)
        else:
            self.known[place] = self._tensor(name, tensor)

    def _tensor(self, name: str, own: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.array(self._weights[name])) if name in self._weights else own.detach()


def _statistics(program: torch.export.ExportedProgram) -> set[str]:
    """The placeholders that batch normalization takes for its moving statistics."""
    found = set()
    for node in program.graph.nodes:
        name = getattr(node.target, "__name__", "").partition(".")[0]
        for place in _STATISTICS.get(name, ()):
            found.add(getattr(node.args[place], "name", ""))
    return found


def counted(program: torch.export.ExportedProgram) -> dict[str, int]:
    """Return the numbers of batches that layers of batch normalization have counted, by the names of the buffers."""
    held = program.state_dict
    return {name: int(held[name]) for name in held if name.endswith("num_batches_tracked")}


def user_inputs(program: torch.export.ExportedProgram) -> list[Any]:
    """Return the placeholders of the tensors that the module is called with, in order."""
    names = set(program.graph_signature.user_inputs)
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in names]
    return [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]


def user_outputs(program: torch.export.ExportedProgram, values: Sequence[Any]) -> Any:
    """Return what the module returns: dicts, lists and arrays, of the values of all outputs of the graph."""
    kept = [
        value
        for spec, value in zip(program.graph_signature.output_specs, values, strict=True)
        if spec.kind.name == "USER_OUTPUT"
    ]
    return _plain(torch.utils._pytree.tree_unflatten(kept, program.call_spec.out_spec))


def _plain(tree: Any) -> Any:
    """Dicts and lists in place of what a library calls its outputs; what is no tensor is gone.

    The dicts are ordered ones, whose order JAX keeps: that of the keys as the module returns them.
    """
    if isinstance(tree, Mapping):
        parts = {str(key): _plain(value) for key, value in tree.items()}
        return OrderedDict((key, value) for key, value in parts.items() if value is not None)
    if isinstance(tree, list | tuple):
        if hasattr(tree, "_fields"):
            return _plain(dict(zip(tree._fields, tree, strict=True)))
        return [part for part in map(_plain, tree) if part is not None]
    if isinstance(tree, torch.Tensor):
        return to_numpy(tree)
    return tree if hasattr(tree, "shape") else None


def chosen(outputs: Any, names: Sequence[str] | None, model: str) -> Any:
    """Return those of the outputs that are wanted, as a dict where there are several; None for all.

    Raises:
        UsageError: there is no output of a name, or the outputs have none.
    """
    if names is None:
        return _without_wrapping(outputs)
    named = outputs if isinstance(outputs, Mapping) else {f"output_{i}": v for i, v in enumerate(outputs)}
    for name in names:
        if name not in named:
            raise UsageError(
                f"{model} has no output {name!r}.{nearest(name, named)} It has {', '.join(named)}", page="pytorch"
            )
    return _without_wrapping(OrderedDict((name, named[name]) for name in names))


def _without_wrapping(outputs: Any) -> Any:
    """Return what dicts and lists of one hold, where that is several; of an only output its name is kept."""
    inner = outputs
    while isinstance(inner, Mapping | list) and len(inner) == 1:
        (inner,) = inner.values() if isinstance(inner, Mapping) else inner
    return inner if isinstance(inner, Mapping | list) else outputs
