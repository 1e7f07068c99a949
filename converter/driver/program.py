"""Finished training program, with its manifest and its costs, and the plan of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.backend.lowering.forms import FormChoice
from converter.ir import Graph
from converter.program.manifest import (
    Manifest,
)
from converter.support.files import Mapped, write_atomically
from converter.support.notes import Note
from converter.support.words import count, size
from converter.training.schemes import SchemeRow

if TYPE_CHECKING:
    from converter.driver.quantization import QuantizationReport
    from converter.runtime.export import State


@dataclass(frozen=True)
class Choice:
    """One way to build that was tried.

    Attributes:
        micro_batch: rows computed at once.
        recompute: whether the backward pass computes the forward pass again.
        resident_bytes: predicted memory of a session.
        flops: floating point operations of one training step.
    """

    micro_batch: int
    recompute: bool
    resident_bytes: int
    flops: int

    @staticmethod
    def of(plan: Plan) -> Choice:
        """Return the figures of a plan."""
        costs = plan.costs
        flops = costs["flops_forward"] + costs["flops_backward"] + costs["flops_update"]
        return Choice(plan.micro_batch, plan.recompute, costs["resident_bytes"], flops)


@dataclass(frozen=True)
class Plan:
    """A program whose costs are known, and which is not made yet.

    Attributes:
        scheme: the name of the update scheme.
        micro_batch: rows computed at once.
        costs: see `converter.backend.costs.costs`.
        begin: makes what the file is put together of (`converter.driver.assemble.Begun`); what it is given by name
            (`signatures`, `costs`) stands for what was planned.
        recompute: whether the backward pass computes the forward pass again.
        tried: what was weighed for a memory budget.
    """

    scheme: str
    micro_batch: int
    costs: Mapping[str, int]
    begin: Callable[..., Any] = field(repr=False)
    recompute: bool = False
    tried: Sequence[Choice] = ()

    def assemble(self, **other: Any) -> Program:
        """Make the program; `other` as of `begin`."""
        program: Program = self.begin(**other).program()
        return program


@dataclass(frozen=True)
class Program:
    """A training program.

    Attributes:
        data: the `.tflite` file; a large one is mapped, from a temporary file that ends with it.
        manifest: what the file says about itself.
        costs: trained parameters, FLOPs, bytes; see `converter.backend.costs.costs`.
        table: what trains, parameter by parameter, and why.
        signatures: the lowered, scheduled graph of each signature, before the state was exported; what they share with
            the file is a view of `data`.
        report: which form each op of the training step got, where there was a choice, and what the others cost.
        notes: what of the model is fixed, left out or read in another way than it was written, and why.
        quantization: what became int8 and what that costs, for `frozen="int8"`.
        tried: what was weighed for a memory budget.
        head: which of the heads of a file of several `data` is, and the program is that head; None of a file of one.
    """

    data: bytes | Mapped = field(repr=False)
    manifest: Manifest
    costs: Mapping[str, int]
    table: Sequence[SchemeRow]
    signatures: Mapping[str, Graph] = field(repr=False)
    report: Sequence[FormChoice] = field(repr=False)
    notes: Sequence[Note] = ()
    quantization: QuantizationReport | None = None
    tried: Sequence[Choice] = ()
    head: str | None = None

    def __repr__(self) -> str:
        """Return a short table: what the program is, what trains, and what a step takes."""
        manifest = self.manifest
        lines = {
            "program": f"{manifest.name}, {size(len(self.data))}, target {manifest.target}",
            **({} if self.head is None else {"head": self.head}),
            "signatures": ", ".join(manifest.signatures),
            "trains": f"{manifest.update.scheme}, {count(self.costs['trained_parameters'])} numbers",
            "optimizer": manifest.optimizer,
            "loss": str(manifest.loss),
            "batch": str(manifest.batch),
            "memory": f"{size(self.costs['resident_bytes'])} resident, {size(self.costs['state_bytes'])} of it state",
        }
        return "\n".join(f"{label:<11} {text}" for label, text in lines.items())

    def write(self, path: str | os.PathLike) -> Path:
        """Writes the file whole or not at all. Raises UsageError when it cannot be written."""
        write_atomically(path, self.data)
        return Path(path)

    def export_inference(
        self,
        path: str | os.PathLike,
        state: State = None,
        quantize: str | None = None,
        exact: bool = True,
        batch: int | None = None,
    ) -> Path:
        """Writes the model with the weights of a state as a plain `.tflite`; see `converter.runtime.export`."""
        from converter.program.file import read_program
        from converter.runtime.export import export_inference

        export_inference(read_program(self.data, self.head), path, state, quantize, exact, batch)
        return Path(path)

    def check(self) -> None:
        """Runs one step in the stock interpreter. Raises NumericError when a result is not finite or nothing moves."""
        from converter.driver.check import check_program

        check_program(self.data, self.head)
