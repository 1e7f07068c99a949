"""Result of an importer: a forward graph and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from converter.ir import Graph
from converter.ir.batch_norm import BatchNorm
from converter.ir.interface import Interface
from converter.support.notes import Note


@dataclass(frozen=True)
class Imported:
    """An imported model.

    Attributes:
        graph: its forward graph.
        notes: what it does in training alone, and what becomes of that.
        batch_norms: its batch normalization layers.
        interface: what it calls its inputs and outputs.
    """

    graph: Graph
    notes: Sequence[Note] = ()
    batch_norms: Sequence[BatchNorm] = ()
    interface: Interface = field(default_factory=Interface)
