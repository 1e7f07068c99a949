"""Values that options may have, checked before anything else is known."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from math import frexp, isfinite
from numbers import Real
from typing import Any

from converter.program.manifest import FEATURES, ON_FEATURES, rows_to_infer
from converter.support.errors import UsageError, nearest

#: What may take what `features` gives in the place of the model's inputs.
_BEHIND = ("train", "evaluate", "infer")
#: What a program may offer, and `infer_<rows>`.
SIGNATURES = (*_BEHIND, "features", *(name + ON_FEATURES for name in _BEHIND), "fisher", "generate")
#: Of `loss_scale`; it and its inverse are the smallest and largest.
LEAST_SCALE = 2.0**-24
#: The largest weight of a penalty: behind it nothing of a float32 loss would be left.
LARGEST_WEIGHT = 1e6


def check_loss_scale(scale: Any) -> None:
    """Raise UsageError where it is no power of two from 2^-24 to 2^24."""
    if not _is_number(scale) or scale <= 0:
        raise UsageError(f"loss_scale must be a positive number, got {scale!r}", page="arguments")
    if frexp(scale)[0] != 0.5 or not LEAST_SCALE <= scale <= 1 / LEAST_SCALE:
        raise UsageError(
            f"loss_scale {scale:g}: take a power of two from 2^-24 to 2^24, for example 1024, which changes "
            "nothing but the range of the gradients",
            page="arguments",
        )


def check_keep_base(weight: Any) -> None:
    """Raise UsageError where it is no weight of a penalty, from 0 on."""
    if not _is_number(weight) or not 0 <= weight <= LARGEST_WEIGHT:
        raise UsageError(
            f"keep_base is the weight of a penalty beside the loss, a number from 0 (none) to {LARGEST_WEIGHT:g}, for "
            f"example 0.1; it is {weight!r}",
            page="arguments",
        )


def check_proximal(mu: Any) -> None:
    """Raise UsageError where it is no weight of FedProx's term, from 0 on, and not None."""
    if mu is not None and (not _is_number(mu) or not 0 <= mu <= LARGEST_WEIGHT):
        raise UsageError(
            f"proximal is FedProx's mu, a number from 0 to {LARGEST_WEIGHT:g}, for example 0.01; it is {mu!r}",
            page="arguments",
        )


def check_row_clipping(norm: Any) -> None:
    """Raise UsageError where it is no norm above 0, and not None."""
    if norm is not None and (not _is_number(norm) or not 1 / LARGEST_WEIGHT <= norm <= LARGEST_WEIGHT):
        raise UsageError(
            f"row_clipping is the largest norm of a row's gradient, a number from {1 / LARGEST_WEIGHT:g} to "
            f"{LARGEST_WEIGHT:g}, for example 1; it is {norm!r}",
            page="arguments",
        )


def check_signatures(names: Collection[str]) -> None:
    """Raise UsageError where one is not known, or none trains."""
    for name in names:
        if name not in SIGNATURES and not rows_to_infer(name):
            raise UsageError(
                f"unknown signature {name!r}.{nearest(name, SIGNATURES)} Known: {', '.join(SIGNATURES)}, and "
                "infer_1 or any other number of rows.",
                page="arguments",
            )
    if not {"train", f"train{ON_FEATURES}"} & set(names):
        raise UsageError("the signature 'train' is missing: it is what the program is for", page="arguments")
    if FEATURES not in names and (behind := [name for name in names if name.endswith(ON_FEATURES)]):
        raise UsageError(
            f"the signature {behind[0]!r} takes what the frozen first layers give, and that is another signature: ask "
            "for 'features' too",
            page="arguments",
        )


def whole_names(names: Collection[str]) -> tuple[str, ...]:
    """Return what a program offers by its own names: `evaluate` also where it is asked for on features alone."""
    own = (name.removesuffix(ON_FEATURES) for name in names)
    return tuple(dict.fromkeys(own))


def check_names(option: str, given: Any) -> None:
    """Raise UsageError where they are no names: of `labels` or `outputs`, None where nothing is given."""
    listed = isinstance(given, Collection) and not isinstance(given, str)
    if given is not None and not (listed and all(isinstance(name, str) for name in given)):
        of = {"labels": "the classes", "outputs": "the model's outputs"}[option]
        raise UsageError(f"{option} are names of {of}, a list of strings, not {given!r}", page="arguments")


def check_card(given: Any) -> None:
    """Raise UsageError where it is no mapping of texts by name, and not None."""
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise UsageError(
            f"card holds texts by name, for example {{'license': 'Apache-2.0'}}, not {given!r}", page="arguments"
        )


def check_preprocessing(given: Any) -> None:
    """Raise UsageError where it is no mapping by names, and not None."""
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise UsageError(
            f"preprocessing is a dict that the app reads, for example {{'mean': 127.5}}, not {given!r}",
            page="arguments",
        )


def check_writable(option: str, given: Any) -> None:
    """Raise UsageError where a manifest cannot hold what was given: half a character, NaN, an object of Python."""
    try:
        json.dumps(dict(given) if isinstance(given, Mapping) else given, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{option} is written into the program, as JSON in UTF-8, which cannot hold it ({error}): pass text, "
            "finite numbers, lists and dicts of them",
            page="arguments",
        ) from None


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and isfinite(value)
