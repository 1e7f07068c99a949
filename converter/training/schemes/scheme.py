"""Update schemes: which parameters train, and how much of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, Literal

from converter.ir import Graph
from converter.support.errors import UsageError, nearest
from converter.training.schemes.channels import Channels, problem
from converter.training.schemes.heads import Granted, own_head, scores_words, whole_head, without_adapter, without_words
from converter.training.schemes.lora import Contraction, LoRA
from converter.training.schemes.structure import Member, members

#: What a rule grants: the fraction of the input channels that trains ("all": 1), only the biases of what it matches, or
#: adapters of its kernels.
Grant = float | Literal["bias", "all"] | LoRA | Channels

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
    adapter: LoRA | Channels | None = None


@dataclass(frozen=True)
class UpdateScheme:
    """A named choice of what trains.

    Attributes:
        name: for reports.
        rules: glob over parameter names -> fraction of the input channels in 0..1, "bias", a LoRA or Channels. Of
            several matching rules the last one holds; a parameter that none matches is frozen. Empty when `choose` is
            given.
        choose: picks the grants from the model's structure instead.
    """

    name: str
    rules: Mapping[str, Grant] = field(default_factory=dict)
    choose: Callable[[list[Member]], Granted] | None = None

    @property
    def adapts(self) -> bool:
        """Whether it may grant adapters."""
        named = self.choose is not None and self.name.startswith(("lora", "dora", "channels"))
        return named or any(isinstance(grant, LoRA | Channels) for grant in self.rules.values())

    def resolve(self, graph: Graph, blocks: Sequence[str] | None = None) -> list[SchemeRow]:
        """Return the table of the scheme for a model, in order of use.

        Raises:
            UsageError: a pattern matches no parameter, a fraction is out of range, or nothing is left to train.
        """
        everything = members(graph, blocks)
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
                fraction, why = 0.0, "no output with a loss depends on it"
            if isinstance(fraction, Channels) and not member.parameter.trainable:
                fraction, why = 0.0, "not trainable in the model"
            if isinstance(fraction, LoRA | Channels):
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
        granted: dict[str, tuple[float | LoRA | Channels, str]] = {}
        for pattern, grant in self.rules.items():
            matched = [m for m in everything if fnmatchcase(m.name, pattern)]
            if not matched:
                raise UsageError(
                    f"update rule {pattern!r} matches no parameter of the model.{nearest(pattern, names)}",
                    page="update-rules",
                )
            if isinstance(grant, LoRA | Channels):
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


def _adapted(member: Member, adapter: LoRA | Channels, why: str) -> SchemeRow:
    """Return the row of a parameter that was granted an adapter."""
    if member.role != "kernel":
        return SchemeRow(member.name, 0.0, f"{why}: adapts kernels; stays frozen, {_said(member)}")
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
            f'update rule {pattern!r}: {grant!r} is neither a fraction in 0..1 nor "bias" nor "all" nor a LoRA nor '
            "Channels",
            page="update-rules",
        )
    return float(grant)


def _full(everything: list[Member]) -> dict[str, tuple[float, str]]:
    return {m.name: (1.0, "everything trains") for m in everything}


def _bias_only(everything: list[Member]) -> Granted:
    head = own_head(everything)
    biases = {m.name: (1.0, "a bias") for m in everything if m.role == "bias" and m.parameter.trainable}
    if biases.keys() <= whole_head(everything).keys():
        raise UsageError(
            "update scheme 'bias-only': the model has no biases outside of its head, so there is nothing that sets it "
            "apart: choose 'head', 'lora' or rules of your own",
            page="update-rules",
        )
    return without_words(biases | head, everything)


def _blocks(everything: list[Member]) -> list[str]:
    """Return blocks that train anything, in order of first use."""
    return list(dict.fromkeys(m.block for m in everything if m.parameter.trainable))


def _last(count: int) -> Callable[[list[Member]], dict[str, tuple[float, str]]]:
    def choose(everything: list[Member]) -> dict[str, tuple[float, str]]:
        chosen = _blocks(everything)[-count:]
        return {m.name: (1.0, f"in {m.block}, one of the last {count} blocks") for m in everything if m.block in chosen}

    return choose


def _sparse(everything: list[Member]) -> Granted:
    """PockEngine's schemes (arXiv 2310.17752, section 4): in the last blocks the biases and few kernels.

    The last blocks are the later half of those that have several kernels, of inverted bottlenecks at most 7. Of most
    the first kernel trains that is not depthwise, on the main path; of the layers of a transformer those of the
    attention and the first of the feed-forward part, and only in the last third, at most 5.
    """
    head = own_head(everything)
    kernels: dict[str, list[Member]] = {block: [] for block in _blocks([m for m in everything if m.name not in head])}
    for member in everything:
        if member.block in kernels and member.role == "kernel" and member.parameter.trainable:
            kernels[member.block].append(member)
    layers = [block for block, inside in kernels.items() if _attends(inside)]
    last_layers = layers[-_within(round(len(layers) / 3), _MOST_LAYERS) :]
    repeated = [block for block, inside in kernels.items() if len(inside) > 1] or list(kernels)
    inverted = any(m.depthwise for inside in kernels.values() for m in inside)
    later = repeated[-_within(len(repeated) // 2, _MOST_INVERTED if inverted else len(repeated)) :][:1]
    granted: dict[str, tuple[float, str]] = {}
    for block in list(kernels)[list(kernels).index(later[0]) :] if later else []:
        biases = [m for m in everything if m.block == block and m.role == "bias"]
        granted |= {m.name: (1.0, f"a bias of {block}, one of the last blocks") for m in biases}
        if block in last_layers:
            why = f"in the attention of {block}, or the next kernel, in the last third"
            granted |= {m.name: (1.0, why) for m in _attention_and_next(kernels[block])}
        elif block not in layers and (layers or block in repeated):
            why = f"first kernel of {block}, one of the last blocks"
            granted |= {m.name: (1.0, why) for m in _first(kernels[block])}
    return without_words(granted | head, everything)


#: Blocks of a net with depthwise convolutions in which something trains, as of MobileNetV2's 17 and MCUNet's 14.
_MOST_INVERTED = 7
#: Layers of a transformer whose kernels train, as of LLaMA2's 32.
_MOST_LAYERS = 5


def _within(count: int, most: int) -> int:
    return min(max(count, 1), most)


def _first(kernels: list[Member]) -> list[Member]:
    """Return the kernel that a block begins with: no depthwise one, and not that of a shortcut, which none follows."""
    full = [m for m in kernels if not m.depthwise] or kernels
    names = {m.name for m in kernels}
    return ([m for m in full if m.leads_to & names] or full)[:1]


def _attends(kernels: list[Member]) -> bool:
    """Do a block's kernels stand on both sides of scores and mix?"""
    return bool(kernels) and kernels[-1].products >= kernels[0].products + 2


def _attention_and_next(kernels: list[Member]) -> list[Member]:
    """Kernels of an attention (what comes before its mix, and its output), and the first one after it."""
    inside = sum(m.products < kernels[-1].products for m in kernels)
    return kernels[: inside + 2]


def _lora(rank: int, dora: bool) -> Callable[[list[Member]], Granted]:
    def choose(everything: list[Member]) -> Granted:
        adapter, head = LoRA(rank, 2 * rank, dora=dora), own_head(everything)
        kernels = [m for m in everything if m.role == "kernel" and not scores_words(m, everything)]
        without = without_adapter(kernels, adapter)
        ranks = {m.name: m.place.largest_rank // 2 for m in kernels if isinstance(m.place, Contraction)}
        granted: Granted = {name: (adapter, f"{adapter}") for name in ranks if name not in without}
        if not granted.keys() - head.keys():
            largest = max((most for name, most in ranks.items() if name not in head), default=0)
            named = f"{'dora' if dora else 'lora'}-{largest}"
            instead = f"the largest rank here is {largest}, {named}" if largest else "choose 'head'"
            raise UsageError(
                f"no weight outside of the head has twice the numbers of an adapter of rank {rank}: {instead}, or "
                "rules of your own",
                page="update-rules",
            )
        return without_words({**without, **granted, **head}, everything)

    return choose


def _targeted_lora(rank: int, targets: Sequence[str], dora: bool) -> Callable[[list[Member]], Granted]:
    """Return what PEFT's `target_modules` chooses: adapters alone, of layers whose names end so.

    `all-linear` is every dense layer but the last, which gives the logits.
    """

    def choose(everything: list[Member]) -> Granted:
        adapter = LoRA(rank, 2 * rank, dora=dora)
        all_kernels = [m for m in everything if m.role == "kernel"]
        kernels = [m for m in all_kernels if isinstance(m.place, Contraction)]
        layers = {m.name: m.name.removesuffix(".weight").removesuffix("/kernel").replace("/", ".") for m in kernels}
        granted: dict[str, tuple[float | LoRA, str]] = {}
        for target in targets:
            if target == "all-linear":
                head = whole_head(everything)
                kept = without_adapter([m for m in all_kernels if m.name not in head], adapter, any_rank=True)
                granted |= kept
                matched = [name for name in layers if name not in head and name not in kept]
            else:
                matched = [name for name, layer in layers.items() if f".{layer}".endswith(f".{target}")]
            if not matched:
                last = [layer.rpartition(".")[2] for layer in layers.values()]
                raise UsageError(
                    f"no layer with an adapter is called {target!r}.{nearest(target, last)} There are "
                    f"{', '.join(dict.fromkeys(last))}, and all-linear.",
                    page="update-rules",
                )
            granted |= dict.fromkeys(matched, (adapter, f"{adapter}, by the name {target}"))
        return granted

    return choose


def _channels(percent: int) -> Callable[[list[Member]], Granted]:
    def choose(everything: list[Member]) -> Granted:
        part, head = Channels(percent / 100), own_head(everything)
        granted: Granted = {
            m.name: (part, f"{part}")
            for m in everything
            if m.role == "kernel"
            and isinstance(m.place, Contraction)
            and problem(m.place) is None
            and m.name not in head
            and not scores_words(m, everything)
        }
        if not granted:
            raise UsageError(
                "no weight outside of the head has input channels that can be chosen: use other rules",
                page="update-rules",
            )
        return without_words({**granted, **head}, everything)

    return choose


_SPARSE = UpdateScheme("sparse", choose=_sparse)
NAMED = {
    "full": UpdateScheme("full", choose=_full),
    "head": UpdateScheme("head", choose=whole_head),
    "bias-only": UpdateScheme("bias-only", choose=_bias_only),
    "sparse": _SPARSE,
    "pockengine": _SPARSE,
    "lora": UpdateScheme("lora", choose=_lora(8, dora=False)),
    "dora": UpdateScheme("dora", choose=_lora(8, dora=True)),
    "channels": UpdateScheme("channels", choose=_channels(25)),
}


def update_scheme(update: str | Mapping[str, Grant] | UpdateScheme) -> UpdateScheme:
    """Return a scheme from its name (as `full`, `last-3`, `lora-16` or `channels-10`), from rules, or as it is.

    Raises:
        UsageError: unknown name; the nearest ones are suggested.
    """
    if isinstance(update, UpdateScheme):
        return update
    if isinstance(update, Mapping):
        if odd := [pattern for pattern in update if not isinstance(pattern, str)]:
            raise UsageError(f"the patterns of update rules are strings, got {odd[0]!r}", page="update-rules")
        return UpdateScheme("rules", dict(update))
    if not isinstance(update, str):
        raise UsageError(
            f"update must be a scheme's name, a dict of glob rules or an UpdateScheme, not {update!r}",
            page="update-rules",
        )
    kind, _, count = update.partition("-")
    if kind == "last" and count.isdecimal() and int(count) > 0:
        return UpdateScheme(update, choose=_last(int(count)))
    rank, named, targets = count.partition(":")
    if kind in ("lora", "dora") and rank.isdecimal() and int(rank) > 0 and (not named or all(targets.split(","))):
        own = targets.split(",") if named else None
        choose = _lora(int(rank), kind == "dora") if own is None else _targeted_lora(int(rank), own, kind == "dora")
        return UpdateScheme(update, choose=choose)
    if kind == "channels" and count.isdecimal() and 0 < int(count) <= 100:
        return UpdateScheme(update, choose=_channels(int(count)))
    if update not in NAMED:
        known = [*NAMED, "last-1", "last-3", "lora-16", "dora-16", "channels-10"]
        raise UsageError(
            f"unknown update scheme {update!r}.{nearest(update, known)} "
            f"Known: {', '.join(NAMED)}, last-K, lora-RANK, lora-RANK:q_proj,v_proj, dora-RANK, "
            "channels-PERCENT, or glob rules.",
            page="update-rules",
        )
    return NAMED[update]
