"""Whether training on Hexagon ends where it does on the CPU: the same steps on both, by Qualcomm's emulation.

    pocketune engines hexagon
    .venv/bin/python scripts/bench/float16_training.py                        # all, about half an hour of one core
    .venv/bin/python scripts/bench/float16_training.py --only digits --optimizers adam lion

Each net trains whole, from fresh weights, on the same rows in the same order, and is tested on rows that it never saw.
The figures go into the table of docs/accelerators.md, in which rows that were not run this time stay as they were.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from measured_table import MeasuredTable

import converter
import jax_frontend
from converter.runtime import TrainingSession
from examples import EXAMPLES, imu
from examples.data import digits, motions, writings
from scripts.arguments import existing

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- measured: scripts/bench/float16_training.py -->", "<!-- end of training -->"
HEAD = (
    "| data | net | optimizer | on | steps | test accuracy, CPU | there | loss, CPU | there |",
    "|---|---|---|---|---|---|---|---|---|",
)
#: By optimizer, its learning rate, of which tasks take a share.
RATES = {
    "sgd": 0.1,
    "momentum": 0.02,
    "adam": 2e-3,
    "adamw": 2e-3,
    "rmsprop": 1e-3,
    "adagrad": 0.02,
    "lion": 5e-4,
}
#: Of the loss, this many last steps are averaged.
LAST = 20
#: Of the texts: how many words are known and read, and how many texts of each kind are for training and for the test.
VOCABULARY, LENGTH, TEXTS, TESTED = 500, 12, 1500, 150


class Rows(NamedTuple):
    """Inputs float32 [N, ...] or whole numbers int32 [N, length], and labels int32 [N]."""

    x: np.ndarray
    y: np.ndarray


class Task(NamedTuple):
    """What is learnt.

    Attributes:
        net: in words.
        model: makes it, with fresh weights.
        data: the rows to train on, and those to test on.
        batch: rows of a step.
        share: of the learning rates.
    """

    net: str
    model: Callable[[], Any]
    data: Callable[[], tuple[Rows, Rows]]
    batch: int
    share: float = 1.0


def dense() -> jax_frontend.Model:
    """float32 [B, 8, 8, 1] -> logits [B, 10], through 64 units with ReLU."""
    rng = np.random.default_rng(0)
    params = {
        name: {"w": rng.standard_normal((64, n), np.float32) / 8, "b": np.zeros(n, np.float32)}
        for name, n in (("hidden", 64), ("classifier", 10))
    }

    def apply(params: Any, x: Any) -> Any:
        with jax.named_scope("hidden"):
            x = jax.nn.relu(x.reshape(-1, 64) @ params["hidden"]["w"] + params["hidden"]["b"])
        with jax.named_scope("classifier"):
            return x @ params["classifier"]["w"] + params["classifier"]["b"]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 8, 8, 1), np.float32)])


def watch() -> tuple[Rows, Rows]:
    """Return windows of what a watch measured, of some recordings and of others."""
    train, test = (motions.windows(part, imu.LENGTH, 5) for part in motions.load())
    return Rows(train.x, train.y), Rows(test.x, test.y)


def images() -> tuple[Rows, Rows]:
    """Digits."""
    train, test = digits.load()
    return Rows(train.x, train.y), Rows(test.x, test.y)


def texts() -> tuple[Rows, Rows]:
    """First words of texts, and which of four kinds they are: tweets, of film reviews, editorials, reviews of goods."""
    read = [[text.lower().split() for text in writings.load(kind)[: TEXTS + TESTED]] for kind in writings.KINDS]
    counts = Counter(word for kind in read for text in kind[:TEXTS] for word in text)
    # 0 is behind the end, 1 any other word.
    numbers = {word: index for index, (word, _) in enumerate(counts.most_common(VOCABULARY - 2), 2)}

    def rows(part: slice) -> Rows:
        chosen = [(text[:LENGTH], label) for label, kind in enumerate(read) for text in kind[part]]
        x = np.zeros((len(chosen), LENGTH), np.int32)
        for row, (words, _) in zip(x, chosen, strict=True):
            row[: len(words)] = [numbers.get(word, 1) for word in words]
        return Rows(x, np.array([label for _, label in chosen], np.int32))

    return rows(slice(TEXTS)), rows(slice(TEXTS, None))


def encoder() -> jax_frontend.Model:
    """int32 [B, 12] -> logits [B, 4], through one layer of width 32."""
    return EXAMPLES["encoder"].build(layers=1, width=32, length=LENGTH, vocabulary=VOCABULARY, classes=4)


TASKS = {
    "digits": Task("dense, ReLU, 64-64-10", dense, images, 32),
    "digits-cnn": Task("digits-cnn", lambda: EXAMPLES["digits-cnn"].build(pretrained=False), images, 8),
    "imu": Task("imu", lambda: EXAMPLES["imu"].build(pretrained=False), watch, 8, 0.3),
    "texts": Task("encoder, one layer of width 32", encoder, texts, 8),
}


def trained(program: bytes, task: Task, rate: float, steps: int, on: str) -> tuple[float, float]:
    """Return the accuracy on the test rows in percent, and the mean of the last losses."""
    train, test = task.data()
    rng = np.random.default_rng(0)
    session = TrainingSession(program, accelerator=on)
    losses = []
    for _ in range(steps):
        rows = rng.integers(0, len(train.y), task.batch)
        losses.append(session.train(train.x[rows], train.y[rows], rate))
    accuracy = session.evaluate(test.x, test.y)["accuracy"]
    session.close()
    return 100 * accuracy, float(np.mean(losses[-LAST:]))


def row(name: str, optimizer: str, on: str, steps: int) -> str:
    """Return a line of the table."""
    task = TASKS[name]
    program = converter.build(
        task.model(), loss="sparse_categorical_crossentropy", optimizer=optimizer, update="full", batch=task.batch,
        target=on.partition(":")[0], check=False,
    )  # fmt: skip
    rate = task.share * RATES[optimizer]
    pairs = [trained(program.data, task, rate, steps, where) for where in ("cpu", on)]
    figures = [f"{accuracy:.1f}" for accuracy, _ in pairs] + [f"{loss:.4f}" for _, loss in pairs]
    return f"| {' | '.join([name, task.net, optimizer, on, str(steps), *figures])} |"


def main() -> None:
    """Runs what is asked for, and writes the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--optimizers", nargs="+", default=list(RATES), choices=list(RATES))
    parser.add_argument("--on", default="hexagon:SM8650")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--document", type=existing, default=ROOT / "docs" / "accelerators.md")
    arguments = parser.parse_args()
    table = MeasuredTable(arguments.document, BEGIN, END, HEAD, keys=4)
    for name in arguments.only:
        for optimizer in arguments.optimizers:
            line = row(name, optimizer, arguments.on, arguments.steps)
            print(line, flush=True)
            table.add(line)


if __name__ == "__main__":
    main()
