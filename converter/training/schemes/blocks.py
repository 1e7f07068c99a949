"""Blocks of a model: which parameters belong together, read from the names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence

from converter.ir.paths import layer_of_weight

#: A number at the end of a word, with the letter that some nets count by (`block2a`); the 2d of `conv2d` is none.
_NUMBER = re.compile(r"(?:(?<!conv)\d+[a-z]|\d+)(?=[_/.]|$)")


def named_block(name: str, blocks: Sequence[str]) -> str | None:
    """Return the one of the given prefixes that a parameter's name begins with."""
    return next((prefix for prefix in blocks if name == prefix or name.startswith(_with_ends(prefix))), None)


def _with_ends(prefix: str) -> tuple[str, str]:
    bare = prefix.rstrip("/.")
    return f"{bare}/", f"{bare}."


def numbered_blocks(names: Sequence[str], kernels: Collection[str]) -> dict[str, str]:
    """Return the block of each parameter: its name up to a number, else its layer.

    Of the first part of the path with a number it is the longest beginning that several parts share which have kernels:
    `conv2_block1_1_conv` and `conv2_block1_2_conv` are in `conv2_block1`, `encoder/layers/3/attention/query` is in
    `encoder/layers/3`, `block2a_expand_conv` in `block2a`, `conv2d_7` is a block of its own, `predictions` too.
    A stage of blocks alike is none: `layer3.0.conv1` is in `layer3.0`, `stages/1/blocks/4/up` in `stages/1/blocks/4`.
    """
    sharing: dict[str, set[str]] = defaultdict(set)
    for name in kernels:
        for prefix in _numbered_prefixes(name):
            sharing[prefix].add(re.split(r"[/.]", name[len(prefix) :])[0])
    found = {name: _block(name, sharing) for name in names}
    stages = {block: _blocks_of(block, [k for k in kernels if found.get(k) == block]) for block in set(found.values())}
    inner = {name: _inner(name, block) for name, block in found.items()}
    return {name: inner[name] if inner[name] in stages[block] else block for name, block in found.items()}


def _blocks_of(stage: str, kernels: Sequence[str]) -> set[str]:
    """Return the blocks that a stage repeats: two at least of several kernels, alike; one kernel may lie beside them.

    Blocks are alike where each has no other kernels than the largest: the first of a stage often has a shortcut. So
    attention and feed-forward part of a layer are none, nor experts, beside which an attention lies.
    """
    inside: dict[str, set[str]] = defaultdict(set)
    for kernel in kernels:
        block = _inner(kernel, stage)
        inside[block].add(kernel[len(block) :])
    beside = inside.pop(stage, set())
    repeated = {block: found for block, found in inside.items() if len(found) > 1}
    alone = len(beside) + len(inside) - len(repeated)
    largest = max(repeated.values(), key=len, default=set())
    alike = all(found <= largest for found in repeated.values())
    return set(repeated) if len(repeated) > 1 and alike and alone < 2 else set()


def _inner(name: str, block: str) -> str:
    """Return the name up to the next number that ends a part after a block's, or the block."""
    found = re.match(r"(?:[/.][^/.]*?)*?[/.][^/.]*\d+(?=[/.])", name[len(block) :])
    return block + found[0] if found else block


def _block(name: str, sharing: dict[str, set[str]]) -> str:
    prefixes = _numbered_prefixes(name)
    shared = [prefix for prefix in prefixes if len(sharing[prefix]) > 1]
    return (shared or prefixes or [layer_of_weight(name)])[-1]


def _numbered_prefixes(name: str) -> list[str]:
    """Return the name up to each number of the first part of the path that has one."""
    ends = [found.end() for found in _NUMBER.finditer(name)]
    return [name[:end] for end in ends if not re.search(r"[/.]", name[ends[0] : end])]
