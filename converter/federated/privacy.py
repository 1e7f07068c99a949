"""Differential privacy of a client: clipping and Gaussian noise by Flower's mod, and the epsilon of dp-accounting."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log, sqrt
from typing import TYPE_CHECKING, Any

from converter.federated.arrays import RefusedRound
from converter.federated.participant import arguments, examples
from converter.federated.plan import Bounds
from converter.program.manifest import Manifest
from converter.support.errors import UsageError
from converter.support.extras import require

if TYPE_CHECKING:
    from flwr.app import Context, Message

#: Entry of a config by which Flower's DifferentialPrivacyClientSideFixedClipping asks clients to clip.
_CLIPPING = "clipping_norm"
#: Flower's code of an error that an app raised.
_REFUSED = 2


@dataclass(frozen=True)
class Privacy:
    """What a client's owner does to each answer before it leaves the device.

    With it an answer to `train` has no loss and no times, and each client counts as one row, so that nothing but the
    noisy arrays tells of the rows; `evaluate` is refused.

    Attributes:
        clip: the largest L2 norm of a round's change of all arrays together; larger changes are scaled down to it.
        noise: standard deviation of the Gaussian noise on each number, in units of `clip`. 0 adds none.
        delta: of (epsilon, delta).
    """

    clip: float
    noise: float = 0.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        """Raises UsageError for a value that protects nothing."""
        if not (isfinite(self.clip) and self.clip > 0 and isfinite(self.noise) and self.noise >= 0):
            raise UsageError(
                f"clip is {self.clip!r} and noise {self.noise!r}: give clip > 0, noise >= 0", page="federated"
            )
        if not 0 < self.delta < 1:
            raise UsageError(f"delta is {self.delta!r}, and must be between 0 and 1", page="federated")

    def mods(self) -> list[Any]:
        """Return Flower's mods that do it, the last to see an answer first."""
        from flwr.clientapp.mod import LocalDpMod

        # Its noise has the standard deviation sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon.
        unit = sqrt(2 * log(1.25 / self.delta))
        return [_without_figures, LocalDpMod(self.clip, self.clip * self.noise, unit, self.delta)]

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of so many answers: of any two sets of rows of this client (local privacy).

        Two changes differ by at most twice `clip`, so the noise counts half.

        Raises:
            UsageError: dp-accounting is not installed.
        """
        return epsilon(self.noise / 2, rounds, self.delta)

    def one_row(self, manifest: Manifest, data: Any, bounds: Bounds, personal: bool = False) -> float:
        """Return the noise of an answer in units of how far one row moves it at most, for `epsilon`.

        It holds for the replacement of any one row by another, with the number of rows known, and without any
        amplification by sampling: each answer is made of all rows.

        Args:
            manifest: of a program with `row_clipping`, whose step moves by the learning rate times the gradient.
            data: the client's rows.
            bounds: of the owner: `steps` 1, and the largest learning rate.
            personal: whether tensors stay here from round to round.

        Raises:
            UsageError: a row may move an answer further than is known here; says why.
        """
        x, _, weight = arguments(data)
        rows, rate = examples(x, None), manifest.learning_rate
        reason = (
            "the program was built without row_clipping"
            if manifest.row_clipping is None
            else f"the optimizer is {manifest.optimizer}, and what one row does to its step is known of sgd alone"
            if manifest.optimizer != "sgd" or rate is None
            else f"a round may have {bounds.steps:,} steps: allow one (--max-steps 1)"
            if bounds.steps != 1
            else f"{rows:,} rows do not fit in a step of {manifest.batch}: build with a batch of as many"
            if rows > manifest.batch
            else "personal tensors stay here without noise, and what a row did to them shows in later answers"
            if personal
            else "rows count differently (weight)"
            if weight is not None
            else ""
        )
        if reason or manifest.row_clipping is None or rate is None:
            raise UsageError(f"there is no epsilon of single rows: {reason}", page="federated")
        moved = 2 * max(rate, bounds.learning_rate) * manifest.row_clipping / rows
        return self.noise * self.clip / moved


def epsilon(noise: float, rounds: int, delta: float) -> float:
    """Return the epsilon of Gaussian mechanisms one after the other, by the RDP accountant of dp-accounting.

    Args:
        noise: standard deviation of the noise, in units of the sensitivity.
        rounds: how many.
        delta: of (epsilon, delta).

    Returns:
        Infinity without noise.

    Raises:
        UsageError: dp-accounting is not installed.
    """
    if not rounds:
        return 0.0
    if not noise:
        return float("inf")
    require("dp", "the epsilon of a federated client")
    from flwr.supercore.privacy_accounting import (
        GaussianPrivacyEvent,
        NeighboringRelation,
        PrivacyConfig,
        SamplingMethod,
    )
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    accountant = RdpAccountant(PrivacyConfig(delta, 1, relation, sampling))
    accountant.compose(GaussianPrivacyEvent(noise, 1, 1), rounds)
    return float(accountant.get_epsilon(delta))


def clipped(message: Message, context: Context, call_next: Any) -> Message:
    """Clip what leaves where the server's config asks for it: the mod of Flower, which wants that every config does."""
    from flwr.clientapp.mod import fixedclipping_mod

    asked = any(_CLIPPING in config for config in message.content.config_records.values())
    return fixedclipping_mod(message, context, call_next) if asked else call_next(message, context)


def _without_figures(message: Message, context: Context, call_next: Any) -> Message:
    """Leave out of an answer what has no noise."""
    from flwr.app import Error, Message, MetricRecord

    if message.metadata.message_type.partition(".")[0] != "train":
        refused = RefusedRound("the owner of this client keeps the rows private: it evaluates and describes nothing")
        return Message(Error(_REFUSED, str(refused)), reply_to=message)
    answer = call_next(message, context)
    if answer.has_content():
        for name in list(answer.content.metric_records):
            answer.content[name] = MetricRecord({"num-examples": 1})
    return answer
