"""Names of signatures that say more than which: `infer_<rows>`, `train_length_<tokens>`, `evaluate_features`."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: What `infer` for another number of rows is called: this, and the number.
INFER = "infer_"
#: The signature that gives what the frozen first layers make of rows, and how one is called that takes that: its name,
#: and this.
FEATURES, ON_FEATURES = "features", "_features"
#: Signatures that a training step calls, where a program has them for the model's inputs.
STEP = ("train", "accumulate", "gradients", "apply")
#: What a signature is called for rows of fewer tokens: its name, and with how many.
_AT_LENGTH = "(train|accumulate|gradients|evaluate|infer)_length_([1-9][0-9]{0,8})"


def rows_to_infer(name: str) -> int | None:
    """Return the rows of `infer_<rows>`; None for any other name of a signature."""
    digits = name.removeprefix(INFER)
    return int(digits) if digits != name and re.fullmatch("[1-9][0-9]{0,8}", digits) else None


def at_length(name: str) -> tuple[str, int | None]:
    """Return of `train_length_64` and the like `train` and 64, of any other name of a signature itself and None."""
    found = re.fullmatch(_AT_LENGTH, name)
    return (name, None) if found is None else (found[1], int(found[2]))


def updates(signatures: Iterable[str]) -> str:
    """Return which signature of a program gives the weights new values, and so has every parameter."""
    names = set(signatures)
    return next(name for name in ("apply", "train", f"train{ON_FEATURES}") if name in names)


def called_by_step(signatures: Iterable[str]) -> list[str]:
    """Return which signatures of a program a training step calls: on features alone, `features` and these."""
    names = list(signatures)
    step = [name for name in names if name in STEP]
    if any(name != "apply" for name in step):
        return step
    return [name for name in names if name == FEATURES or name.removesuffix(ON_FEATURES) in STEP]
