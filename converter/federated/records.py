"""Arrays in the records of Flower's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from converter.federated.arrays import RefusedRound

if TYPE_CHECKING:
    from flwr.app import ArrayRecord


def packed(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Return a record of arrays by name."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def unpacked(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return the arrays of a record; nothing in it is unpickled. Raises RefusedRound where one is none."""
    found = {}
    for name, array in record.items():
        try:
            found[name] = array.numpy()
        except Exception as error:  # of bytes that are no .npy file NumPy raises errors of many kinds
            raise RefusedRound(f"{name} came as no array: {error}") from None
    return found
