"""Plan of a round: the server's request to a client, within the bounds that the client's owner set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any

from converter.federated.arrays import RefusedRound
from converter.support.errors import UsageError, nearest

#: More rounds are no number of rounds.
_ROUNDS = 1 << 20
#: Entries of a config that are read elsewhere: by the client, and by Flower's mods.
_OTHERS = ("program", "clipping_norm")


@dataclass(frozen=True)
class Bounds:
    """What a server may ask at most of this client. The client's owner sets them, and no message changes them.

    Attributes:
        epochs: of a round.
        steps: of a round.
        learning_rate: of a step.
        proximal_mu: of FedProx.
        norm: the largest L2 norm of all trained arrays together; None goes by what was built (`Exchange`).
    """

    epochs: int = 10
    steps: int = 10_000
    learning_rate: float = 1.0
    proximal_mu: float = 100.0
    norm: float | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a bound that nothing is within."""
        for name, bound in vars(self).items():
            if bound is not None and not (isfinite(bound) and bound >= (1 if name in ("epochs", "steps") else 0)):
                raise UsageError(f"the bound of {name} is {bound!r}: nothing is within it", page="federated")


@dataclass(frozen=True)
class Plan:
    """What a client does in a round, every value checked.

    Attributes:
        epochs: passes over the client's rows.
        steps: after so many it ends, wherever it is; None: after the epochs.
        learning_rate: None: that of the program.
        seed: of the order of rows.
        proximal_mu: of the term that holds the weights near those of the server; None: that of the program.
        round: of the run, from 1; epochs are numbered through, so that the order differs by round.
    """

    epochs: int = 1
    steps: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    proximal_mu: float | None = None
    round: int = 1

    @staticmethod
    def of(config: Mapping[str, Any], bounds: Bounds) -> Plan:
        """Return the plan in a config.

        Args:
            config: `epochs`, `steps`, `learning-rate`, `seed`, `proximal-mu` and `server-round`, all optional.
            bounds: of the client's owner.

        Raises:
            RefusedRound: a value is no number of its kind or beyond its bound, or an entry is not known.
        """
        most = {
            "epochs": (1, bounds.epochs),
            "steps": (1, bounds.steps),
            "learning-rate": (0.0, bounds.learning_rate),
            "seed": (0, (1 << 31) - 1),
            "proximal-mu": (0.0, bounds.proximal_mu),
            "server-round": (1, _ROUNDS),
        }
        for name in config:
            if name not in most and name not in _OTHERS:
                known = ", ".join(most)
                raise RefusedRound(f"the config has {name!r}, which is not known: {known}.{nearest(name, most)}")
        given = {name: _number(name, config[name], *most[name]) for name in most if name in config}
        number = given.pop("server-round", 1)
        return Plan(round=int(number), **{name.replace("-", "_"): value for name, value in given.items()})  # type: ignore[arg-type]


def _number(name: str, value: Any, least: float, most: float) -> float | int:
    """Return a number of the kind of its bounds' least. Raises RefusedRound."""
    whole = isinstance(least, int)
    kind: Any = Integral if whole else Real
    if isinstance(value, bool) or not isinstance(value, kind) or not isfinite(value):
        raise RefusedRound(f"{name} is {value!r}, and expected is a {'whole ' * whole}number")
    if not least <= value <= most:
        raise RefusedRound(f"{name} is {value!r}, and the owner of this client allows {least} to {most}")
    return int(value) if whole else float(value)
