"""Program identity, by which saved states are matched: the meaning of a program, not its form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

#: How `Identity.forward` and `Identity.update` are computed. Those of two versions say nothing of each other: to be
#: raised when an unchanged model gets another one.
FINGERPRINT = 1


@dataclass(frozen=True)
class ModelTensor:
    """A state tensor in the model's own terms, which programs of all targets and batch sizes share.

    Attributes:
        name: of the parameter or slot.
        shape: of the whole parameter in the model's own layout; a slot that goes with one has its.
        view: how the state tensor is cut out of that; see `converter.ir.view`.
    """

    name: str
    shape: tuple[int, ...]
    view: tuple[Any, ...]


@dataclass(frozen=True)
class FrozenWeight:
    """A weight, or the part of one, that does not train.

    Attributes:
        name: in the model.
        shape: of the whole weight, in the model's own layout.
        digest: of the numbers that do not train: the first 16 hexadecimal digits of their sha256.
    """

    name: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Identity:
    """What two programs must have in common beside their state tensors for one to go on with the other's state.

    Neither lines, folders, target, batch size, order nor signatures have a part in it.

    Attributes:
        optimizer: its name, for people.
        update: 16 hexadecimal digits of how the optimizer computes an update and its slots, whatever its rates are.
        forward: the same of what the model computes of its inputs and weights, adapters included.
        frozen: the weights that do not train, in the order in which the model reads them.
        int8: the same of what became int8, int4 or float16, and how; empty where nothing did.
        version: of the way in which `forward` and `update` are computed.
    """

    optimizer: str
    update: str
    forward: str
    frozen: tuple[FrozenWeight, ...]
    int8: str
    version: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return json.loads(json.dumps(asdict(self)))
