"""Rows of several lengths: each call uses the signature of the shortest length that holds its rows' labels.

What stands after the last label of a row changes nothing before it, so it is left out where all rows have none there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from converter.program.manifest import Manifest, Signature
from converter.runtime.data.examples import Examples, check_examples
from converter.support.errors import UsageError


def check_rows(signature: Signature, x: Any, y: Any, weight: Any, most: int) -> Examples:
    """Return the checked rows for a signature, of as many tokens as x has.

    Args:
        signature: for the longest rows.
        x: as for `check_examples`.
        y: as there.
        weight: as there.
        most: tokens of the longest rows.

    Raises:
        UsageError: as `check_examples`, or the rows have more tokens.
    """
    several = list(x.values()) if isinstance(x, Mapping) else x if len(signature.taking("input")) > 1 else [x]
    shape = _shape(several[0]) if isinstance(several, list | tuple) and several else ()
    if len(shape) != 2:
        return check_examples(signature, x, y, weight)
    tokens = shape[1]
    if not 1 <= tokens <= most:
        raise UsageError(
            f"x: rows of {tokens} tokens, and those of this program have 1 to {most}: cut the texts into parts, or "
            "build it with a larger length",
            page="sessions",
        )
    inputs = (
        replace(spec, shape=(spec.shape[0], tokens, *spec.shape[2:])) if spec.role in ("input", "target") else spec
        for spec in signature.inputs
    )
    return check_examples(replace(signature, inputs=tuple(inputs)), x, y, weight)


def of_fewest_tokens(manifest: Manifest, signature: str, examples: Examples) -> tuple[str, Examples]:
    """Return the signature of the shortest length for some rows, and the rows cut or padded to it.

    Args:
        manifest: of the program; a program of one length returns its arguments unchanged.
        signature: name of the called signature for the longest rows.
        examples: checked rows; without labels all of their tokens count.
    """
    known = manifest.by_length(signature)
    if not known:
        return signature, examples
    targets = [examples.arrays[spec.name] for spec in manifest.targets if spec.name in examples.arrays]
    asked = max(map(_asked, targets)) if targets else next(iter(examples.arrays.values())).shape[1]
    tokens = next(n for n in known if n >= asked)
    return known[tokens], of_tokens(manifest, examples, tokens)


def of_tokens(manifest: Manifest, examples: Examples, tokens: int) -> Examples:
    """Return rows cut to so many tokens, or padded on the right: with 0, labels with -1, which are left out."""
    targets = {spec.name for spec in manifest.targets}

    def fitted(name: str, rows: np.ndarray) -> np.ndarray:
        missing = max(0, tokens - rows.shape[1])
        return np.pad(rows[:, :tokens], ((0, 0), (0, missing)), constant_values=-1 if name in targets else 0)

    return Examples({name: a if a.ndim < 2 else fitted(name, a) for name, a in examples.arrays.items()})


def _asked(labels: np.ndarray) -> int:
    """Return how many tokens of rows there are up to the last one with a label."""
    return int(np.flatnonzero((labels >= 0).any(0)).max(initial=-1)) + 1


def _shape(array: Any) -> tuple[int, ...]:
    """Return the shape of what is to become an array; none where it becomes none."""
    try:
        return np.shape(array)
    except (ValueError, TypeError):
        return ()
