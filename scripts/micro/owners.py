"""What a wake word learns of its owners, each taught in the stock wheel of TensorFlow Lite Micro; printed as a table.

    .venv/bin/python -m scripts.micro.owners [PRETRAININGS] [--hidden WIDTH]

It takes the extra `micro`, and `scripts/pretrained pymicro-features espeakng-loader`. The net is pretrained so many
times (1) from other numbers. A device keeps a bank of what other people say, by which it sets its threshold, as sold
and when it has learned. Rate, epochs and how much of the bank may wake are chosen on people of whom nobody is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import pocketune
from examples.data.micro_speech import Rows, people, rows
from examples.micro_wake_word import JUDGED, WORD, of_an_owner, pretrained, program, scores
from scripts.arguments import parser
from scripts.micro.wheel import trained

#: How many of a bank of other words wake the device as it is sold, and the choices for one that has learned.
SHARE, SHARES = 0.05, (0.05, 0.03, 0.02, 0.01)
CHOICES = ((0.003, 20), (0.003, 50))


@dataclass(frozen=True)
class Heard:
    """Scores of what an owner says and of what other people say, with what was the word; and of the bank."""

    owner: np.ndarray
    owner_y: np.ndarray
    others: np.ndarray
    others_y: np.ndarray
    bank: np.ndarray

    def judged(self, share: float) -> np.ndarray:
        """Return shares that wake: the owner's word, her other words, that of other people, their other words.

        The device's threshold is where so much of its bank wakes.
        """
        pairs, at = ((self.owner, self.owner_y), (self.others, self.others_y)), np.quantile(self.bank, 1 - share)
        return np.array([(scored[y == label] > at).mean() for scored, y in pairs for label in (1, 0)])


@dataclass(frozen=True)
class Owner:
    """A person: her 20 utterances, what she is judged by, what other people say, and the bank of her device."""

    name: str
    taught: Rows
    judged: Rows
    others: Rows
    bank: np.ndarray

    def heard(self, session: pocketune.TrainingSession) -> Heard:
        """Return what her device makes of all."""
        own, others, bank = (scores(session, x) for x in (self.judged.x, self.others.x, self.bank))
        return Heard(own, self.judged.y, others, self.others.y, bank)


def of(group: str, others: Rows, bank: np.ndarray, seed: int) -> list[Owner]:
    """Return the people of a group as owners, each beside the same other people."""
    return [Owner(s.voice, *of_an_owner(s, seed + 2 * i + 1), others, bank) for i, s in enumerate(people(group))]


def learned(built: bytes, step: bytes, owners: Sequence[Owner], rate: float, epochs: int) -> Iterator[Heard]:
    """Yield what each owner's device hears after her 20 utterances, so many times over, in the order they were said."""
    with pocketune.TrainingSession(built) as session:
        for owner in owners:
            turns = list(zip(owner.taught.x, owner.taught.y, strict=True)) * epochs
            session.set_state(dict(trained(step, turns, rate)[1]))
            yield owner.heard(session)


def measured(seed: int, hidden: int = 0) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return names of the owners, and for each what wakes before and after, [owners, 4] each; see `Heard.judged`."""
    net = pretrained(people("pretraining"), seed=seed, hidden=hidden)
    built, step = program(net).data, program(net, signatures=["train"]).data
    said = rows(people("validation"), [*[WORD] * 12, *JUDGED * 3], WORD, 1000 + 100 * seed)
    bank = said.x[said.y == 0]
    tuning = of("validation owners", said, bank, 1001 + 100 * seed)
    others = rows(people("others"), [*[WORD] * 12, *JUDGED * 3], WORD, 5000 + 100 * seed)
    owners = of("owners", others, bank, 5001 + 100 * seed)
    with pocketune.TrainingSession(built) as session:
        most = np.mean([owner.heard(session).judged(SHARE) for owner in tuning], 0)
        before = np.stack([owner.heard(session).judged(SHARE) for owner in owners])
    choices = []
    for rate, epochs in CHOICES:
        heard = list(learned(built, step, tuning, rate, epochs))
        for share in SHARES:
            found = np.mean([h.judged(share) for h in heard], 0)
            print(f"validation: rate {rate}, {epochs:2} epochs, {share:.0%} of the bank: {np.round(100 * found)}")
            if found[1] <= most[1]:
                choices.append((found[0], rate, epochs, share))
    _, rate, epochs, share = max(choices)
    print(f"validation, as sold: {np.round(100 * most)}; chosen: {rate}, {epochs}, {share:.0%}", flush=True)
    after = np.stack([h.judged(share) for h in learned(built, step, owners, rate, epochs)])
    return [owner.name for owner in owners], before, after


def accuracy(shares: np.ndarray) -> np.ndarray:
    """Return of each owner the mean of her word that wakes and of her other words that do not."""
    return (shares[:, 0] + 1 - shares[:, 1]) / 2


def main(pretrainings: int, hidden: int) -> None:
    """Print a table for each pretraining."""
    for seed in range(pretrainings):
        names, before, after = measured(seed, hidden)
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
    options = parser(__doc__)
    options.add_argument("pretrainings", type=int, nargs="?", default=1, help="how many nets are pretrained (1)")
    options.add_argument("--hidden", type=int, default=0, help="numbers of a dense layer before the last one (none)")
    given = options.parse_args()
    main(given.pretrainings, given.hidden)
