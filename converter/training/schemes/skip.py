"""Skip-LoRA: the low-rank way from what a frozen weight reads to the logits that a scheme may ask for.

Nothing frozen lies between such an adapter and the loss, so no gradient enters the backbone, and all that it reads is
the same in every epoch: the signature `features` keeps it. `shortcuts.py` adds it to a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from converter.support.errors import UsageError
from converter.training.schemes.channels import Channels
from converter.training.schemes.lora import LoRA


@dataclass(frozen=True)
class SkipLoRA:
    """Trains a low-rank way from what a weight reads to the logits (Skip2-LoRA, Matsutani et al., arXiv 2410.21073).

    y = frozen(x) + sum over k of p(x_k) A_k B_k, where x_k is what the k-th such weight multiplies, p the way in which
    the net brings positions together before its head, and y the output of the last layer, without its activation.

    Attributes:
        rank: columns of A and rows of B.
        seed: of A, which begins uniform in +-1/sqrt(fan in); B begins at zero: the model begins as it was.
        parts: p gives means of so many parts along each axis of a picture or series, one after the other.
    """

    rank: int = 8
    seed: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("seed", 0), ("parts", 1)):
            number = getattr(self, name)
            if type(number) is not int or number < least:
                raise UsageError(
                    f"SkipLoRA: {name} must be a whole number of at least {least}, got {number!r}", page="adapters"
                )

    def __str__(self) -> str:
        return f"Skip-LoRA of rank {self.rank}"


#: What may be granted to a weight that stays frozen itself.
Adapting = LoRA | Channels | SkipLoRA
