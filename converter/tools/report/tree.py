"""Layer tree: by their paths, and where these say nothing by their numbers (`block_3_expand` is of `block_3`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from converter.driver.build_report import ModelPart
from converter.ir.paths import parts_of

#: A name with a number in it, and more behind.
_NUMBERED = re.compile(r"(.*?\d+)[_.-](?=.)")


def groups(parts: Sequence[ModelPart]) -> list[tuple[str, ...]]:
    """Return the groups in which each part is drawn, the outermost first.

    What has no weights, and the name of a layer elsewhere, is drawn where it happens: the sum around an attention,
    which is said to be of the embedding that it began with.
    """
    paths = [_path(part.layer) for part in parts]
    inner = {path[:k] for path in paths for k in range(1, len(path))}
    homes = [path if path in inner else path[:-1] for path in paths]
    anchors = [home if part.parameters else None for part, home in zip(parts, homes, strict=True)]
    placed = []
    for place, home in enumerate(homes):
        before = next((a for a in reversed(anchors[:place]) if a is not None), None)
        after = next((a for a in anchors[place + 1 :] if a is not None), None)
        if anchors[place] is None and before is not None and after is not None:
            around = _common(before, after)
            if _common(home, around) != around:
                home = around
        placed.append(home)
    return [home or numbered for home, numbered in zip(placed, _by_numbers(parts), strict=True)]


def _path(layer: str) -> tuple[str, ...]:
    return tuple(part for part in parts_of(layer) if part)


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return a[:count]


def _by_numbers(parts: Sequence[ModelPart]) -> list[tuple[str, ...]]:
    single = [part.layer if len(parts_of(part.layer)) == 1 else "" for part in parts]
    found = [match[1] if (match := _NUMBERED.match(layer)) else "" for layer in single]
    often = Counter(found)
    return [(name,) if name and often[name] > 1 else () for name in found]
