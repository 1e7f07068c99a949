"""Rows to search with for the example `digits-cnn`: twelve people who write scikit-learn's held-out digits their way.

    .venv/bin/python scripts/bench/handwriting.py digits.npz
    .venv/bin/pocketune search digits-cnn --data digits.npz --samples 60 --epochs 25 ...

`group` says whose each row is. All write the same 697 images, which the net has not seen before.
"""

from __future__ import annotations

import numpy as np

from examples.data.digits import PEOPLE, Person, load
from scripts.arguments import parser, writable

#: The people of the demo, and six others.
WRITERS = (
    *PEOPLE,
    Person(slant=0.25, thickness=0.4, seed=20),
    Person(slant=-0.25, thickness=0.4, seed=21),
    Person(slant=0.2, thickness=0.5, seed=22),
    Person(slant=-0.2, thickness=0.45, seed=23),
    Person(slant=0.3, thickness=0.35, seed=24),
    Person(slant=-0.3, thickness=0.4, seed=25),
)


def main() -> None:
    """Writes the file."""
    options = parser(__doc__)
    options.add_argument("rows", type=writable, metavar="ROWS.npz", help="the file to write")
    file = options.parse_args().rows
    images = load()[1]
    x = np.concatenate([writer.write(images.x) for writer in WRITERS])
    group = np.repeat(np.arange(len(WRITERS)), len(images.y))
    np.savez(file, x=x, y=np.tile(images.y, len(WRITERS)), group=group)


if __name__ == "__main__":
    main()
