"""Findings of an import beside its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from converter.ir.batch_norm import BatchNorm
from converter.support.notes import Note


@dataclass(frozen=True)
class Modes:
    """What the layers of a module say of training that a graph of it does not.

    Attributes:
        known: whether there is a module, not only a program of one.
        evaluated: paths of those that evaluate in a module that trains.
        cumulative: paths of those of batch normalization whose averages are the means of all batches.
    """

    known: bool = False
    evaluated: frozenset[str] = frozenset()
    cumulative: frozenset[str] = frozenset()


@dataclass
class Findings:
    """Collected while an exported graph is walked.

    Attributes:
        batch_norms: the batch normalization layers, by path.
        notes: what layers do in training alone, and what becomes of that.
        counted: the numbers of batches that these have counted, by the names of the buffers.
        modes: of the module's layers.
    """

    batch_norms: dict[str, BatchNorm] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)
    modes: Modes = field(default_factory=Modes)

    def add_batch_norm(self, layer: str, names: Sequence[str | None], momentum: float) -> None:
        """Add a batch normalization layer.

        Args:
            layer: its path.
            names: of its scale, shift, mean and variance; None where it has none.
            momentum: the part of a batch in a moving average.
        """
        scale, shift, mean, variance = names
        assert mean is not None
        assert variance is not None
        path = mean.rpartition(".")[0]
        counter = f"{path}.num_batches_tracked".removeprefix(".")
        problem = "it is called more than once" if layer in self.batch_norms else None
        if not momentum and not self.modes.known:
            problem = "an exported program does not say whether its momentum is 0 or None, the mean of all batches"
        self.batch_norms[layer] = BatchNorm(
            layer=layer,
            mean=mean,
            variance=variance,
            weights=[name for name in (scale, shift) if name is not None],
            axis=1,
            momentum=None if path in self.modes.cumulative else 1 - float(momentum),
            trainable=path not in self.modes.evaluated,
            problem=problem,
            unbiased=True,
            counter=counter if counter in self.counted else None,
            counted=self.counted.get(counter, 0),
        )

    def note(self, layer: str, status: str, why: str) -> None:
        """Add a note, once."""
        made = Note(layer or "the module", status, why)
        if made not in self.notes:
            self.notes.append(made)
