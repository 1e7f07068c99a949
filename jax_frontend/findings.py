"""Findings of a trace beside its graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from converter.ir import Interface
from converter.ir.batch_norm import BatchNorm
from converter.support.notes import Note


@dataclass(frozen=True)
class Findings:
    """Collected while a model is traced.

    Attributes:
        halves: weights and layers that are of half precision in the model, and float32 in the graph, with their types.
        batch_norms: the batch normalization layers of Flax, where their statistics are among the parameters, by path.
        notes: what layers of Flax and Equinox do in training alone, and what becomes of that.
        inputs: what the function calls its arguments, by the names in the graph, where it names them.
        outputs: the path of an only output, by the name in the graph, where it stands in a dict.
    """

    halves: dict[str, str] = field(default_factory=dict)
    batch_norms: dict[str, BatchNorm] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def interface(self) -> Interface:
        """What the model calls its inputs and outputs."""
        return Interface(self.inputs, self.outputs)

    def leave_out_attention_dropout(self, layer: str, rate: float) -> None:
        """Notes that an attention of `layer` drops none of its weights, which it does with probability `rate`."""
        why = f"dropout of attention weights (rate={rate:g}): the program attends as in inference"
        note = Note(layer or "attention", "left out", why)
        if note not in self.notes:
            self.notes.append(note)
