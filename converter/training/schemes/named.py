"""Names of update schemes: each names one scheme, or begins a family of them, as `last-3` of `last-K`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from converter.support.errors import UsageError, nearest
from converter.training.schemes.channels import Channels
from converter.training.schemes.choose.adapters import low_rank, low_rank_of, of_channels, skips
from converter.training.schemes.choose.layers import bias_only, full, last
from converter.training.schemes.choose.sparse import sparse
from converter.training.schemes.heads import whole_head
from converter.training.schemes.lora import LoRA
from converter.training.schemes.scheme import Grant, UpdateScheme
from converter.training.schemes.skip import SkipLoRA


@dataclass(frozen=True)
class Family:
    """Schemes that are named alike: the name of the family, a hyphen, and what sets one apart.

    Attributes:
        forms: how their names are written.
        examples: some of the names, which completion offers and misspelled names are compared with.
        read: makes a scheme of its name and the text after the hyphen; None: there is none of that name.
    """

    forms: tuple[str, ...]
    examples: tuple[str, ...]
    read: Callable[[str, str], UpdateScheme | None]


def _count(text: str, most: int | None = None) -> int | None:
    """Return a number of 1 or more, up to `most`; None: the text is none."""
    number = int(text) if text.isdecimal() else 0
    return number if number > 0 and (most is None or number <= most) else None


def _last(name: str, text: str) -> UpdateScheme | None:
    count = _count(text)
    return None if count is None else UpdateScheme(name, choose=last(count))


def _low_rank(dora: bool) -> Callable[[str, str], UpdateScheme | None]:
    def read(name: str, text: str) -> UpdateScheme | None:
        number, named, targets = text.partition(":")
        rank = _count(number)
        if rank is None or (named and not all(targets.split(","))):
            return None
        adapter = LoRA(rank, 2 * rank, dora=dora)
        choose = low_rank_of(adapter, targets.split(",")) if named else low_rank(adapter)
        return UpdateScheme(name, choose=choose, adapter=adapter)

    return read


def _channels(name: str, text: str) -> UpdateScheme | None:
    number, said, redrawn = text.partition("-")
    percent = _count(number, most=100)
    if percent is None or (said and redrawn != "redrawn"):
        return None
    part = Channels(percent / 100, redrawn=bool(said))
    return UpdateScheme(name, choose=of_channels(part), adapter=part)


def _skips(name: str, text: str) -> UpdateScheme | None:
    found = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?(?:/([1-9]\d?))?", text, re.ASCII)
    if found is None:
        return None
    adapter = SkipLoRA(int(found[1]), parts=int(found[3] or 1))
    return UpdateScheme(name, choose=skips(adapter, int(found[2]) if found[2] else None), adapter=adapter)


#: Families by their names.
FAMILIES: dict[str, Family] = {
    "last": Family(("last-K",), ("last-3",), _last),
    "lora": Family(("lora-RANK", "lora-RANK:q_proj,v_proj"), ("lora-16",), _low_rank(dora=False)),
    "dora": Family(("dora-RANK",), ("dora-16",), _low_rank(dora=True)),
    "skip-lora": Family(
        ("skip-lora-RANK", "skip-lora-RANK:BLOCKS", "skip-lora-RANK:BLOCKS/PARTS"),
        ("skip-lora-16", "skip-lora-8:4", "skip-lora-8/2"),
        _skips,
    ),
    "channels": Family(
        ("channels-PERCENT", "channels-PERCENT-redrawn"), ("channels-10", "channels-10-redrawn"), _channels
    ),
}


def _of_family(family: str, text: str, name: str) -> UpdateScheme:
    """Return a scheme of a family that is there, under another name."""
    scheme = FAMILIES[family].read(name, text)
    assert scheme is not None
    return scheme


_SPARSE = UpdateScheme("sparse", choose=sparse)
#: Schemes by their names.
NAMED: dict[str, UpdateScheme] = {
    "full": UpdateScheme("full", choose=full),
    "head": UpdateScheme("head", choose=whole_head),
    "bias-only": UpdateScheme("bias-only", choose=bias_only),
    "sparse": _SPARSE,
    "pockengine": _SPARSE,
    "lora": _of_family("lora", "8", "lora"),
    "dora": _of_family("dora", "8", "dora"),
    "skip-lora": _of_family("skip-lora", "8", "skip-lora"),
    "channels": _of_family("channels", "25", "channels"),
}


def examples() -> list[str]:
    """Return every name, and some of each family."""
    return [*NAMED, *(name for family in FAMILIES.values() for name in family.examples)]


def is_scheme(name: str) -> bool:
    """Return whether a scheme has a name; that of one, `skip-lora-8/2`, looks like a path."""
    try:
        update_scheme(name)
    except UsageError:
        return False
    return True


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
    if update in NAMED:
        return NAMED[update]
    family = next((kind for kind in FAMILIES if update.startswith(f"{kind}-")), None)
    scheme = FAMILIES[family].read(update, update.removeprefix(f"{family}-")) if family is not None else None
    if scheme is None:
        forms = [form for family in FAMILIES.values() for form in family.forms]
        raise UsageError(
            f"unknown update scheme {update!r}.{nearest(update, examples())} "
            f"Known: {', '.join([*NAMED, *forms])}, or glob rules.",
            page="update-rules",
        )
    return scheme
