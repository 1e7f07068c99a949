"""What an autoencoder learns of each machine in its first hour, in the stock wheel of TensorFlow Lite Micro.

    .venv/bin/python -m scripts.micro.machines [MACHINES]

Prints how well faults of so many machines (10), none of the fleet, are told from their usual running, before and
after. It takes the extra `micro`. The rate is chosen on four machines of which none is judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import pocketune
from examples.micro_anomaly import FAULTS, HOUR, detection, errors, machine, pretrained, program, rows
from scripts.arguments import parser
from scripts.micro.wheel import trained

RATES = (0.003, 0.01, 0.03, 0.1)
#: Numbers of machines: those of the fleet are below.
TUNING, JUDGED = range(50, 54), 100


def found(session: pocketune.TrainingSession, number: int) -> np.ndarray:
    """Return the area under the ROC curve for each fault, against usual running of the same machine."""
    usual = errors(session, rows([machine(number)], 200, 10 * number))
    faulty = [rows([machine(number)], 60, 10 * number + 1 + k, fault) for k, fault in enumerate(FAULTS)]
    return np.array([detection(usual, errors(session, x)) for x in faulty])


def learned(built: bytes, step: bytes, numbers: Sequence[int], rate: float) -> np.ndarray:
    """Return areas [machines, faults] after each machine's first hour, every row once, as it was measured."""
    areas = []
    with pocketune.TrainingSession(built) as session:
        for number in numbers:
            hour = rows([machine(number)], HOUR, 10 * number + 9)
            session.set_state(dict(trained(step, zip(hour, hour, strict=True), rate)[1]))
            areas.append(found(session, number))
    return np.stack(areas)


def measured(machines: int) -> tuple[np.ndarray, np.ndarray]:
    """Return areas [machines, faults] before and after."""
    weights = pretrained()
    built, step = program(weights).data, program(weights, signatures=["train"]).data
    choices = [(learned(built, step, TUNING, rate).mean(), rate) for rate in RATES]
    print("other machines, mean area by rate:", ", ".join(f"{rate}: {area:.3f}" for area, rate in choices))
    numbers = range(JUDGED, JUDGED + machines)
    with pocketune.TrainingSession(built) as session:
        before = np.stack([found(session, number) for number in numbers])
    return before, learned(built, step, numbers, max(choices)[1])


def main(machines: int) -> None:
    """Print a line for each fault, and one for all."""
    before, after = measured(machines)
    for fault, b, a in zip((*FAULTS, "all"), [*before.T, before.mean(1)], [*after.T, after.mean(1)], strict=True):
        print(f"{fault:12} {b.mean():.3f} -> {a.mean():.3f} +- {a.std(ddof=1):.3f}, least {a.min():.3f}")


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("machines", type=int, nargs="?", default=10, help="how many are judged (10)")
    main(options.parse_args().machines)
