"""Whether dropout should drop while a model is fitted to one user: accuracy with and without, on digits.

    .venv/bin/python scripts/bench/dropout.py

A small net with two Dropout layers of rate 0.5 learns scikit-learn's digits; then its last layers learn a hand that
writes across the page (the digits transposed), from a few samples, and are judged on others of that hand.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import converter
from converter.runtime import TrainingSession
from scripts.arguments import parser

KNOWN, HELD_OUT, EPOCHS, SEEDS = 900, 400, 10, range(3)
UPDATES = {"both dense layers": {"*": 0, "net/dense*": 1}, "the last": "head"}


def pretrained(x: np.ndarray, y: np.ndarray) -> keras.Model:
    """Return the net as it comes with the app."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ],
        name="net",
    )
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, epochs=15, batch_size=32, verbose=0)
    return model


def main() -> None:
    """Prints a table."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    x, y = (digits.images / 16).astype(np.float32)[order, ..., None], digits.target.astype(np.int32)[order]
    model = pretrained(x[:KNOWN], y[:KNOWN])
    own, labels = x[KNOWN:].transpose(0, 2, 1, 3), y[KNOWN:]
    print("what trains, samples, dropout, accuracy after (mean), by seed")
    for name, update in UPDATES.items():
        for samples in (40, 120):
            for dropout in ("off", "train"):
                program = converter.build(model, optimizer="sgd", update=update, dropout=dropout, check=False)
                found = []
                for seed in SEEDS:
                    rows = np.random.default_rng(seed).permutation(len(own))
                    seen, others = rows[:samples], rows[HELD_OUT:]
                    with TrainingSession(program.data) as session:
                        session.fit(own[seen], labels[seen], EPOCHS, 0.1, progress=False, seed=seed)
                        found.append(session.evaluate(own[others], labels[others])["accuracy"])
                listed = ", ".join(f"{accuracy:.3f}" for accuracy in found)
                print(f"{name}, {samples}, {dropout}, {np.mean(found):.3f}, {listed}", flush=True)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
