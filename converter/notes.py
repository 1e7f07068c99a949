"""What a build does with the model that its author may not expect: said, never done in silence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """One such thing.

    Attributes:
        subject: the layer, or `loss` or `optimizer`.
        status: what became of it: `fixed`, `left out`, `in the loss`, `as compiled`, `not used`.
        why: the reason, and what to do about it.
    """

    subject: str
    status: str
    why: str
