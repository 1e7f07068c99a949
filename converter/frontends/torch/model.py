"""`converter.frontends.torch.Model`: a PyTorch module, or an exported program of one, and its inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from converter.frontends.torch.archive import load_archive
from converter.frontends.torch.exporting import export_module, quiet, rows_of
from converter.frontends.torch.findings import Modes
from converter.frontends.torch.training_only import notes_of_layers
from converter.frontends.torch.weights import Weights, for_all_names, on_cpu
from converter.support.errors import UsageError
from converter.support.notes import Note


@dataclass(frozen=True)
class Model:
    """A PyTorch model that is to be trained.

    Attributes:
        module: a `torch.nn.Module`, a `torch.export.ExportedProgram`, or the path of a `.pt2` file of one.
        example_inputs: the tensors that a module is called with, of any number of rows: the first axis of each is the
            batch. A dict for arguments by keyword. Not needed for an exported program, which knows them.
        outputs: names of the outputs that are kept; None: all.
        name: what the program is called; empty: the class of the module, or the file.
        weights: for a module, parameters and buffers by their names in `state_dict()`, in place of its own: arrays, or
            `converter.ir.LazyArray`, whose numbers are read when the program needs them. The module's own may be on
            the device `meta` then.

    Raises:
        UsageError: the module is none of these, nothing says what it takes, or `weights` are not its own.
    """

    module: Any
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None
    outputs: Sequence[str] | None = None
    name: str = ""
    weights: Weights = field(default_factory=dict)
    _opened: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = isinstance(self.module, torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike)
        if not known:
            raise UsageError(
                f"a pocketune.TorchModel is a torch.nn.Module, an ExportedProgram or the path of a .pt2 file, not "
                f"{type(self.module).__name__}",
                page="pytorch",
            )
        if isinstance(self.module, torch.nn.Module) and self.example_inputs is None:
            raise UsageError(
                f"{type(self.module).__name__} does not say what it takes: give example inputs, "
                "inputs=(torch.zeros(1, 3, 224, 224),), of any number of rows; a function that the command line calls "
                "returns both, pocketune.TorchModel(module, (torch.zeros(1, 3, 224, 224),))",
                page="pytorch",
            )
        _check_inputs(self.example_inputs)
        if not self.name:
            object.__setattr__(self, "name", _called(self.module))
        if isinstance(self.module, torch.nn.Module):
            object.__setattr__(self, "weights", for_all_names(self.module, self.weights))
        elif self.weights:
            raise UsageError("weights: an exported program holds its own; leave them out", page="pytorch")

    def exported(self, batch: int) -> torch.export.ExportedProgram:
        """Return the program of the module for a number of rows, in PyTorch's training IR.

        Raises:
            UsageError: it cannot be exported, or the exported program is for another number of rows.
        """
        if isinstance(self.module, torch.nn.Module):
            assert self.example_inputs is not None
            args, kwargs = _for_rows(self.example_inputs, batch)
            return export_module(on_cpu(self.module), args, kwargs)
        return self._again(self._program(), batch)

    def parameter_names(self) -> dict[int, str]:
        """Return the names of the parameters by the `id` of each, as an optimizer of PyTorch has them."""
        module = self.module if isinstance(self.module, torch.nn.Module) else self._program()
        return {id(parameter): name for name, parameter in module.named_parameters()}

    def modes(self) -> Modes:
        """Return what the layers say of training, where there are any."""
        if not isinstance(self.module, torch.nn.Module):
            return Modes()
        layers = dict(self.module.named_modules())
        norms = [n for n, layer in layers.items() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
        return Modes(
            known=True,
            evaluated=frozenset(n for n, layer in layers.items() if self.module.training and not layer.training),
            cumulative=frozenset(n for n in norms if getattr(layers[n], "momentum", 0.1) is None),
        )

    def training_notes(self) -> list[Note]:
        """Return what to say of layers that do something in training alone which no graph shows."""
        return notes_of_layers(self.module) if isinstance(self.module, torch.nn.Module) else []

    def _program(self) -> torch.export.ExportedProgram:
        if isinstance(self.module, torch.export.ExportedProgram):
            return self.module
        if not self._opened:
            self._opened.append(load_archive(Path(self.module)))
        return self._opened[0]

    def _again(self, program: torch.export.ExportedProgram, batch: int) -> torch.export.ExportedProgram:
        """An exported program, exported again for a number of rows."""
        given = self.example_inputs
        if given is None:
            args, kwargs = program.example_inputs or ((), {})
            given = (args, kwargs) if args or kwargs else _described_inputs(program)
            args, kwargs = (_for_rows(part, batch)[i] for i, part in enumerate(given))
        else:
            args, kwargs = _for_rows(given, batch)
        try:
            with quiet():
                return torch.export.export(program.module(), args, kwargs, strict=False)
        except Exception as error:
            raise UsageError(
                f"{self.name} cannot be built for {batch} rows, as it was exported for another number of them: "
                f"{str(error).splitlines()[0][:300]}. Build it with that number (batch=), or export it for any: "
                f"torch.export.export(module, inputs, dynamic_shapes={{{_free_batches(program)}}})",
                page="pytorch",
            ) from error


def _free_batches(program: torch.export.ExportedProgram) -> str:
    """The arguments of a program by name, the first axis of each of any size, in Python."""
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return ", ".join(f"{name!r}: {{0: torch.export.Dim.DYNAMIC}}" for name in names)


def _for_rows(given: Sequence[Any] | Mapping[str, Any], batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs, by place and by keyword, of so many rows; tensors in lists and dicts, too."""
    args, kwargs = ((), dict(given)) if isinstance(given, Mapping) else (tuple(given), {})
    return torch.utils._pytree.tree_map(lambda v: rows_of(_tensor(v), batch), (args, kwargs))


def _check_inputs(given: Any) -> None:
    """Raise UsageError for example inputs that are no tuple or dict of arguments, or in which there is no tensor."""
    if given is None:
        return
    if hasattr(given, "shape"):
        raise UsageError(
            "inputs has an entry for each argument of the module: a tuple, inputs=(x,), or a dict of them by name",
            page="pytorch",
        )
    leaves = torch.utils._pytree.tree_leaves(dict(given) if isinstance(given, Mapping) else given)
    if not any(hasattr(leaf, "shape") for leaf in leaves):
        raise UsageError(
            f"inputs are example tensors, (torch.zeros(1, 3, 224, 224),), and there is none in {given!r}",
            page="pytorch",
        )


def _called(module: Any) -> str:
    if isinstance(module, torch.nn.Module):
        return type(module).__name__
    return "model" if isinstance(module, torch.export.ExportedProgram) else Path(module).stem


def _tensor(value: Any) -> Any:
    """An example input as a tensor, of the shape and type of anything that has these."""
    if isinstance(value, torch.Tensor) or not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return value
    return torch.zeros(tuple(value.shape), dtype=getattr(torch, str(value.dtype).rpartition(".")[2]))


def _described_inputs(program: torch.export.ExportedProgram) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Zeros of the shapes that a program takes; an axis that may have any size gets the least that it may."""
    names = set(program.graph_signature.user_inputs)
    values = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name in names]

    def sized(d: Any) -> int:
        return d if isinstance(d, int) else max(2, int(d.node.hint or 2))

    leaves = [
        torch.zeros([sized(d) for d in v.shape], dtype=v.dtype) if isinstance(v, torch.Tensor) else v for v in values
    ]
    args, kwargs = torch.utils._pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(args), dict(kwargs)
