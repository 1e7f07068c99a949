"""How far states that the trainer in Kotlin wrote are from the one that the host trained.

    check_state.py PROGRAM TRAINED STATE...

It needs what trains alone, so a test has its answer soon.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from converter.runtime import TrainingSession


def main() -> None:
    """Print the largest difference of a number, of all states."""
    program, trained, *states = map(Path, sys.argv[1:])
    expected, worst = np.fromfile(trained, np.float32), 0.0
    with TrainingSession(program) as session:
        for state in states:
            session.restore(state)
            found = np.concatenate([array.reshape(-1) for array in session.state().values()])
            worst = max(worst, float(np.abs(found - expected).max()))
    print(worst)


if __name__ == "__main__":
    main()
