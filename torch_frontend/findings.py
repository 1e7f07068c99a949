"""Findings of an import beside its graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from converter.ir.batch_norm import BatchNorm
from converter.support.notes import Note


@dataclass
class Findings:
    """Collected while an exported graph is walked.

    Attributes:
        batch_norms: the batch normalization layers, by path.
        notes: what layers do in training alone, and what becomes of that.
    """

    batch_norms: dict[str, BatchNorm] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(self, layer: str, status: str, why: str) -> None:
        """Add a note, once."""
        made = Note(layer or "the module", status, why)
        if made not in self.notes:
            self.notes.append(made)
