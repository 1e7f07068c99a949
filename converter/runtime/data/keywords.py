"""Keyword arguments of other libraries, refused with the word for them here."""

from __future__ import annotations

from collections.abc import Iterable

from converter.support.errors import UsageError, nearest

#: Arguments of Keras' `fit`, and what is asked for instead.
_OF_KERAS = {
    "batch_size": "a step has the rows that the program was built for, {batch}: pocketune.build(..., batch=...)",
    "validation_data": "pass validation=(x, y)",
    "validation_split": "pass rows that were held out, validation=(x, y)",
    "verbose": "pass progress=False for silence",
    "callbacks": "pass listener=function, which is told of each step and epoch, and patience=3 to stop early",
    "sample_weight": "pass weight=, one number a row",
    "steps_per_epoch": "an epoch is all rows, or all batches",
}


def check_keywords(given: Iterable[str], known: Iterable[str], batch: int) -> None:
    """Raises UsageError for arguments that `fit` does not have."""
    said = [
        f"fit has no {name}: {_OF_KERAS[name].format(batch=batch)}"
        if name in _OF_KERAS
        else f"fit has no {name}.{nearest(name, known)}"
        for name in given
    ]
    if said:
        raise UsageError("; ".join(said), page="sessions")
