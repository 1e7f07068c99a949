"""Channel-sparse training: some input channels of a weight train, and which is no matter of compilation."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from converter.support.errors import UsageError
from converter.training.schemes.lora import Contraction


@dataclass(frozen=True)
class Channels:
    """Trains a share of the input channels of a weight: y = x W + x[channels] D, where W is frozen and D begins at 0.

    Which channels is part of the state: the first ones as it is built, until a session chooses them by Fisher
    information on samples (Theis et al., arXiv 1801.05787).

    Attributes:
        ratio: how many of the channels train, at least one.
        redrawn: W is state as well, which no step changes: a session adds D to it and goes on with other channels, as
            many (TraDy, Quélennec et al., arXiv 2510.19675). False: W is a constant of the file, and the channels
            stay those that the training began with.
    """

    ratio: float = 0.25
    redrawn: bool = False

    def __post_init__(self) -> None:
        ratio: Any = self.ratio
        if isinstance(ratio, bool) or not isinstance(ratio, Real) or not 0 < float(ratio) <= 1:
            raise UsageError(f"Channels: ratio must be a number above 0 and up to 1, got {ratio!r}", page="adapters")
        if not isinstance(self.redrawn, bool):
            raise UsageError(f"Channels: redrawn is True or False, got {self.redrawn!r}", page="adapters")

    def of(self, channels: int) -> int:
        """Return how many of so many channels train."""
        return max(round(self.ratio * channels), 1)

    def __str__(self) -> str:
        return f"{self.ratio:.4g} of the channels{', redrawn' * self.redrawn}"


def problem(place: Contraction) -> str | None:
    """Return why input channels of a weight cannot be chosen, if so: wherever it is used they must be the same."""
    if all(use.transposed != (use.operand == 1) for use in place.uses.values()):
        return None
    return "used both ways round: its input channels are the outputs of another use"
