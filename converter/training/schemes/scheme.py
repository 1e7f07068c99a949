"""Update schemes: which parameters train, and how much of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, Literal

from converter.ir import Graph
from converter.support.errors import UsageError, nearest
from converter.training.schemes.channels import Channels
from converter.training.schemes.heads import Granted
from converter.training.schemes.lora import LoRA
from converter.training.schemes.skip import Adapting, SkipLoRA
from converter.training.schemes.structure import Member, members

#: What a rule grants: the fraction of the input channels that trains ("all": 1), only the biases of what it matches, or
#: adapters of its kernels.
Grant = float | Literal["bias", "all"] | Adapting

#: Parameters that a message names.
_MOST_NAMES = 3


@dataclass(frozen=True)
class SchemeRow:
    """One line of a resolved scheme: a parameter, the fraction of it that trains (whole channels), and why.

    A weight with an `adapter` is frozen; what trains is the adapter.
    """

    parameter: str
    fraction: float
    why: str
    adapter: Adapting | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the file holds the whole parameter, and no state does."""
        return self.fraction == 0 and not (isinstance(self.adapter, Channels) and self.adapter.redrawn)


@dataclass(frozen=True)
class UpdateScheme:
    """A named choice of trained weights.

    Attributes:
        name: for reports.
        rules: glob over parameter names -> fraction of the input channels in 0..1, "bias", a LoRA, a SkipLoRA or
            Channels. Of several matching rules the last one holds; a parameter that none matches is frozen. Empty when
            `choose` is given.
        choose: picks the grants from the model's structure instead.
        adapter: what `choose` may grant beside fractions.
    """

    name: str
    rules: Mapping[str, Grant] = field(default_factory=dict)
    choose: Callable[[list[Member]], Granted] | None = None
    adapter: Adapting | None = None

    @property
    def adapters(self) -> tuple[Adapting, ...]:
        """The adapters that it may grant."""
        own = () if self.adapter is None else (self.adapter,)
        return *own, *(grant for grant in self.rules.values() if isinstance(grant, Adapting))

    def resolve(
        self, graph: Graph, blocks: Sequence[str] | None = None, scored: Collection[str] | None = None
    ) -> list[SchemeRow]:
        """Return the table of the scheme for a model, in order of use; arguments as of `members`.

        Raises:
            UsageError: a pattern matches no parameter, a fraction is out of range, or nothing is left to train.
        """
        everything = members(graph, blocks, scored)
        names = [m.name for m in everything]
        for block in blocks or ():
            if not any(m.block == block for m in everything):
                raise UsageError(
                    f"the model's layers name {block!r}, and no parameter is in it.{nearest(block, names)}",
                    page="update-rules",
                )
        granted = self.choose(everything) if self.choose else self._by_rules(everything)
        rows = []
        for member in everything:
            fraction, why = granted.get(member.name, (0.0, "not chosen"))
            if member.parameter.idle:
                fraction, why = 0.0, "no output whose loss counts depends on it"
            if isinstance(fraction, Channels) and not member.parameter.trainable:
                fraction, why = 0.0, "not trainable in the model"
            if isinstance(fraction, Adapting):
                rows.append(_adapted(member, fraction, why))
                continue
            if not member.parameter.trainable:
                fraction, why = 0.0, "not trainable in the model"
            elif 0 < fraction < 1 and member.role != "kernel":
                fraction, why = 1.0, f"{why}; whole, a {member.role} has no input channels"
            elif 0 < fraction < 1 and not member.channels:
                fraction, why = 1.0, f"{why}; whole, {member.uses} cannot be cut"
            elif 0 < fraction < 1:
                trained = max(round(fraction * member.channels), 1)
                fraction, why = trained / member.channels, f"{why}: {trained} of {member.channels} input channels"
            rows.append(SchemeRow(member.name, fraction, why))
        if not any(row.fraction or row.adapter for row in rows):
            raise UsageError(
                f"update scheme {self.name!r} trains nothing in this model: no trainable parameter is chosen",
                page="update-rules",
            )
        return rows

    def _by_rules(self, everything: list[Member]) -> Granted:
        names = [m.name for m in everything]
        granted: dict[str, tuple[float | Adapting, str]] = {}
        for pattern, grant in self.rules.items():
            matched = [m for m in everything if fnmatchcase(m.name, pattern)]
            if not matched:
                raise UsageError(
                    f"update rule {pattern!r} matches no parameter of the model.{nearest(pattern, names)}",
                    page="update-rules",
                )
            if isinstance(grant, Adapting):
                granted |= {m.name: (grant, f"rule {pattern} = {grant}") for m in matched}
                if not any(m.role == "kernel" for m in matched):
                    others = ", ".join(f"{m.name} ({_said(m)})" for m in matched[:_MOST_NAMES])
                    kind = type(grant).__name__
                    raise UsageError(
                        f"update rule {pattern!r}: {kind} adapts kernels, and it matches none, only {others}",
                        page="update-rules",
                    )
                continue
            granted_fraction = _fraction(pattern, grant)
            for member in matched:
                if granted_fraction is None:
                    granted[member.name] = (float(member.role == "bias"), f"rule {pattern} = bias")
                else:
                    granted[member.name] = (granted_fraction, f"rule {pattern} = {granted_fraction:g}")
        return granted


def _said(member: Member) -> str:
    """Return what a parameter is that has no adapter."""
    return f"a {member.role}" if member.role in ("bias", "scale") else str(member.place)


def _adapted(member: Member, adapter: Adapting, why: str) -> SchemeRow:
    """Return the row of a parameter that was granted an adapter."""
    if member.role != "kernel":
        return SchemeRow(member.name, 0.0, f"{why}: adapts kernels; stays frozen, {_said(member)}")
    if isinstance(adapter, SkipLoRA):
        return SchemeRow(member.name, 0.0, why, adapter)
    trains = "its adapter trains" if isinstance(adapter, LoRA) else "a change of some of its channels trains"
    return SchemeRow(member.name, 0.0, f"{why}: frozen, {trains}", adapter)


def _fraction(pattern: str, grant: Any) -> float | None:
    """Return the fraction that a rule grants, None for "bias"."""
    if grant == "bias":
        return None
    if grant == "all":
        return 1.0
    if isinstance(grant, bool) or not isinstance(grant, Real) or not 0 <= float(grant) <= 1:
        raise UsageError(
            f'update rule {pattern!r}: {grant!r} is neither a fraction in 0..1 nor "bias" nor "all" nor a LoRA nor a '
            "SkipLoRA nor Channels",
            page="update-rules",
        )
    return float(grant)
