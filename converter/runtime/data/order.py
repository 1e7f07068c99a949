"""Shuffling, as java.util.Random does it: a phone, a page and the host go through samples alike."""

from __future__ import annotations

import numpy as np

#: The generator is `state = (state * _MULTIPLIER + _INCREMENT) mod 2^_BITS`; its numbers are the highest 31 bits.
_MULTIPLIER, _INCREMENT, _BITS = 0x5DEECE66D, 0xB, 48
#: What is between the seeds of the same epoch of two seeds.
_EPOCHS_APART = 1_000_003


def order_of(seed: int, epoch: int, rows: int) -> np.ndarray:
    """Return the places of the rows in the order of an epoch: int64 [rows], by Fisher and Yates from the last on.

    Args:
        seed: a whole number.
        epoch: from 0.
        rows: how many there are.
    """
    state = ((int(seed) * _EPOCHS_APART + epoch) ^ _MULTIPLIER) % (1 << _BITS)
    order = list(range(rows))
    for last in range(rows - 1, 0, -1):
        bound = last + 1
        while True:
            state = (state * _MULTIPLIER + _INCREMENT) % (1 << _BITS)
            bits = state >> 17
            if not bound & last:  # a power of two: the highest bits
                drawn = bound * bits >> 31
                break
            drawn = bits % bound
            if bits - drawn + last < 1 << 31:  # not of the last, incomplete run of numbers
                break
        order[last], order[drawn] = order[drawn], order[last]
    return np.array(order, np.int64)
