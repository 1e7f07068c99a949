"""Shuffling, as java.util.Random does it: a phone, a page and the host go through samples alike."""

from __future__ import annotations

import numpy as np

#: The generator is `state = (state * _MULTIPLIER + _INCREMENT) mod 2^_BITS`; its numbers are the highest 31 bits.
_MULTIPLIER, _INCREMENT, _BITS = 0x5DEECE66D, 0xB, 48
#: What is between the seeds of the same epoch of two seeds.
_EPOCHS_APART = 1_000_003


class Random:
    """java.util.Random.

    Attributes:
        state: from 0 to below 2^48, from which it goes on.
    """

    def __init__(self, state: int) -> None:
        self.state = state

    @staticmethod
    def seeded(seed: int) -> Random:
        """Return the generator that Java makes of a seed, any whole number."""
        return Random((int(seed) ^ _MULTIPLIER) % (1 << _BITS))

    @staticmethod
    def of_epoch(seed: int, epoch: int) -> Random:
        """Return the generator of an epoch, from 0, of a training with a seed."""
        return Random.seeded(int(seed) * _EPOCHS_APART + epoch)

    def next_int(self, bound: int) -> int:
        """Return a number from 0 to below `bound`, which is at most 2^31 - 1."""
        while True:
            self.state = (self.state * _MULTIPLIER + _INCREMENT) % (1 << _BITS)
            bits = self.state >> 17
            if not bound & (bound - 1):  # a power of two: the highest bits
                return bound * bits >> 31
            drawn = bits % bound
            if bits - drawn + bound - 1 < 1 << 31:  # not of the last, incomplete run of numbers
                return drawn

    def shuffled(self, rows: int) -> np.ndarray:
        """Return the places of some rows in a new order: int64 [rows], by Fisher and Yates from the last on."""
        order = list(range(rows))
        for last in range(rows - 1, 0, -1):
            drawn = self.next_int(last + 1)
            order[last], order[drawn] = order[drawn], order[last]
        return np.array(order, np.int64)


def order_of(seed: int, epoch: int, rows: int) -> np.ndarray:
    """Return the places of the rows in the order of an epoch: int64 [rows].

    Args:
        seed: a whole number.
        epoch: from 0.
        rows: how many there are.
    """
    return Random.of_epoch(seed, epoch).shuffled(rows)


def mixed_order(seed: int, epoch: int, rows: int, replayed: int, drawn: int, shuffle: bool) -> np.ndarray:
    """Return the places of an epoch's rows and of those that it replays: int64 [rows + drawn].

    Those replayed are drawn anew, none twice before each came once; then all are shuffled.

    Args:
        seed: a whole number.
        epoch: from 0.
        rows: how many there are, the first places.
        replayed: how many of them come behind these, to draw from.
        drawn: how many of these are to come.
        shuffle: whether the rows and what was drawn are shuffled.
    """
    random = Random.of_epoch(seed, epoch)
    rounds = -(-drawn // replayed) if drawn else 0
    draws = [rows + random.shuffled(replayed) for _ in range(rounds)]
    places = np.concatenate([np.arange(rows), *draws])[: rows + drawn]
    return places[random.shuffled(len(places))] if shuffle else places
