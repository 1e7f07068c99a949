"""What a wake word learns of its owners, each taught in the stock wheel of TensorFlow Lite Micro; printed as a table.

    .venv/bin/python -m scripts.micro.owners [PRETRAININGS]

It takes the extra `micro`, and `scripts/pretrained pymicro-features espeakng-loader`. The net is pretrained so many
times (1) from other numbers. The rate, the epochs and both thresholds are chosen on people of whom nobody is judged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import pocketune
from examples.micro_speech import Rows, people, rows
from examples.micro_wake_word import JUDGED, WORD, of_an_owner, pretrained, program, scores
from scripts.micro.wheel import trained

#: How many of other words wake the device as it is sold, at most.
SHARE = 0.05
RATES, EPOCHS = (0.001, 0.003), (5, 20, 50)


@dataclass(frozen=True)
class Heard:
    """Scores of what an owner says, and of what other people say, with what was the word."""

    owner: np.ndarray
    owner_y: np.ndarray
    others: np.ndarray
    others_y: np.ndarray

    def judged(self, threshold: float) -> np.ndarray:
        """Return shares that wake: the owner's word, her other words, that of other people, their other words."""
        pairs = ((self.owner, self.owner_y), (self.others, self.others_y))
        return np.array([(scored[y == label] > threshold).mean() for scored, y in pairs for label in (1, 0)])


@dataclass(frozen=True)
class Owner:
    """A person: her 20 utterances, what she is judged by, and what other people say."""

    name: str
    taught: Rows
    judged: Rows
    others: Rows

    def heard(self, session: pocketune.TrainingSession) -> Heard:
        return Heard(scores(session, self.judged.x), self.judged.y, scores(session, self.others.x), self.others.y)


def of(group: str, others: str, seed: int) -> list[Owner]:
    """Return the people of a group as owners, each beside the same other people."""
    said = rows(people(others), [*[WORD] * 12, *JUDGED * 3], WORD, seed)
    return [Owner(s.voice, *of_an_owner(s, seed + 2 * i + 1), said) for i, s in enumerate(people(group))]


def learned(built: bytes, step: bytes, owners: Sequence[Owner], rate: float, epochs: int) -> Iterator[Heard]:
    """Yield what each owner's device hears after her 20 utterances, so many times over, in the order they were said."""
    with pocketune.TrainingSession(built) as session:
        for owner in owners:
            turns = list(zip(owner.taught.x, owner.taught.y, strict=True)) * epochs
            session.set_state(dict(trained(step, turns, rate)[1]))
            yield owner.heard(session)


def threshold(heard: Sequence[Heard], shares: Sequence[float]) -> float:
    """Return the lowest at which no more of the owners' other words, and of other people's, wake than the shares."""
    for at in np.arange(-20, 60, 0.1):
        found = np.mean([h.judged(at) for h in heard], 0)
        if found[1] <= shares[0] and found[3] <= shares[1]:
            return float(at)
    raise AssertionError("everything wakes")


def measured(seed: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return names of the owners, and for each what wakes before and after, [owners, 4] each; see `Heard.judged`."""
    net = pretrained(people("pretraining"), seed=seed)
    built, step = program(net).data, program(net, signatures=["train"]).data
    tuning = of("validation owners", "validation", 1000 + 100 * seed)
    with pocketune.TrainingSession(built) as session:
        new = [owner.heard(session) for owner in tuning]
        sold = threshold(new, (SHARE, SHARE))
        most = np.mean([h.judged(sold) for h in new], 0)
        choices = []
        for rate in RATES:
            for epochs in EPOCHS:
                heard = list(learned(built, step, tuning, rate, epochs))
                at = threshold(heard, (most[1], most[3]))
                found = np.mean([h.judged(at) for h in heard], 0)
                choices.append((found[0], rate, epochs, at))
                print(f"validation: rate {rate}, {epochs:2} epochs, threshold {at:5.1f}: {np.round(100 * found)}")
        _, rate, epochs, at = max(choices)
        owners = of("owners", "others", 5000 + 100 * seed)
        before = np.stack([owner.heard(session).judged(sold) for owner in owners])
    print(f"validation, as sold, threshold {sold:.1f}: {np.round(100 * most)}; chosen: {rate}, {epochs}, {at:.1f}")
    after = np.stack([h.judged(at) for h in learned(built, step, owners, rate, epochs)])
    return [owner.name for owner in owners], before, after


def accuracy(shares: np.ndarray) -> np.ndarray:
    """Return of each owner the mean of her word that wakes and of her other words that do not."""
    return (shares[:, 0] + 1 - shares[:, 1]) / 2


def main(pretrainings: int) -> None:
    """Print a table for each pretraining."""
    for seed in range(pretrainings):
        names, before, after = measured(seed)
        print("owner                 word wakes   her others wake  others' word  their others wake   accuracy")
        for name, b, a, x, y in zip(names, before, after, accuracy(before), accuracy(after), strict=True):
            shares = "   ".join(f"{100 * old:4.0f} -> {100 * new:3.0f}" for old, new in zip(b, a, strict=True))
            print(f"{name:20} {shares}   {100 * x:4.0f} -> {100 * y:3.0f}")
        gain, false = 100 * (accuracy(after) - accuracy(before)), 100 * (after - before)[:, [1, 3]].mean(0)
        print(
            f"pretraining {seed}: accuracy {100 * accuracy(before).mean():.1f} -> {100 * accuracy(after).mean():.1f}; "
            f"gain {gain.mean():.1f} +- {gain.std(ddof=1):.1f}, least {gain.min():.1f}; "
            f"false accepts {false[0]:+.1f} of hers, {false[1]:+.1f} of others'",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
