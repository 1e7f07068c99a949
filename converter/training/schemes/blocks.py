"""Blocks of a model: which parameters belong together, read from the names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence

#: A number at the end of a word, with the letter that some nets count by (`block2a`); the 2d of `conv2d` is none.
_NUMBER = re.compile(r"(?:(?<!conv)\d+[a-z]|\d+)(?=[_/.]|$)")


def named_block(name: str, blocks: Sequence[str]) -> str | None:
    """Return the one of the given prefixes that a parameter's name begins with."""
    found = (prefix for prefix in blocks if name == prefix or name.startswith(f"{prefix.rstrip('/')}/"))
    return next(found, None)


def numbered_blocks(names: Sequence[str], kernels: Collection[str]) -> dict[str, str]:
    """Return the block of each parameter: its name up to a number, else its layer.

    Of the first part of the path with a number it is the longest beginning that several parts share which have kernels:
    `conv2_block1_1_conv` and `conv2_block1_2_conv` are in `conv2_block1`, `encoder/layers/3/attention/query` is in
    `encoder/layers/3`, `block2a_expand_conv` in `block2a`, `conv2d_7` is a block of its own, `predictions` too.
    """
    sharing: dict[str, set[str]] = defaultdict(set)
    for name in kernels:
        for prefix in _numbered_prefixes(name):
            sharing[prefix].add(re.split(r"[/.]", name[len(prefix) :])[0])
    return {name: _block(name, sharing) for name in names}


def _block(name: str, sharing: dict[str, set[str]]) -> str:
    prefixes = _numbered_prefixes(name)
    shared = [prefix for prefix in prefixes if len(sharing[prefix]) > 1]
    return (shared or prefixes or [name.rpartition("/")[0] or name])[-1]


def _numbered_prefixes(name: str) -> list[str]:
    """Return the name up to each number of the first part of the path that has one."""
    ends = [found.end() for found in _NUMBER.finditer(name)]
    return [name[:end] for end in ends if not re.search(r"[/.]", name[ends[0] : end])]
