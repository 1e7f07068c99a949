"""A model of handwritten digits meets people who write differently, and learns their hand in the stock runtime.

    scripts/demo [--schemes NAMES] [--optimizer NAME] [--rate RATE] [--json FILE] [--out DIR]

A convolutional net is pretrained on scikit-learn's real digits. Each of several people, who slant their digits, use a
thick pen and write light on dark, then gives a few dozen samples; the training program that Pocketune compiled learns
from them in the stock LiteRT interpreter, on the processor, and is judged on all their other samples.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import converter
from examples import EXAMPLES
from examples.data.digits import PEOPLE
from scripts.arguments import writable

ROOT = Path(__file__).resolve().parents[1]
SCHEMES = ("full", "sparse", "head")

OPTIMIZER = "adam"
LEARNING_RATE = 2e-3
BATCH = 8
EPOCHS = 25
SAMPLES_OF_EACH_DIGIT = 6

narration = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Outcome:
    """What one update scheme reached, over all people.

    Attributes:
        before, after: mean accuracy on the people's held-out samples.
        before_each, after_each: the same, person by person.
        ms_per_step: median time of a training step, host side included.
        trained_parameters, arena_bytes, file_bytes: of the program.
        file: the program.
        state: what the first person's training changed.
    """

    before: float
    after: float
    before_each: list[float]
    after_each: list[float]
    ms_per_step: float
    trained_parameters: int
    arena_bytes: int
    file_bytes: int
    file: str
    state: str


def main() -> None:
    """Runs the demo and prints its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the figures to a file too")
    parser.add_argument("--out", type=Path, metavar="DIR", default=ROOT / "out" / "demo", help="where the files go")
    parser.add_argument(
        "--schemes", metavar="NAMES", default=",".join(SCHEMES), help="what is compared, as sparse,lora"
    )
    parser.add_argument("--optimizer", metavar="NAME", default=OPTIMIZER, help="of all schemes")
    parser.add_argument(
        "--rate", type=float, metavar="RATE", default=LEARNING_RATE, help="learning rate of all schemes"
    )
    arguments = parser.parse_args()
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    for state in folder.glob("digits-*.state*"):
        state.unlink()  # of the demo before: a session refuses to overwrite the state of another program
    started = time.perf_counter()

    say("pretraining a convolutional net on real handwritten digits")
    example = EXAMPLES["digits-cnn"]
    model = example.build()
    model.save(folder / "digits-cnn.keras")
    outcomes = {}
    for scheme in arguments.schemes.split(","):
        say(f"{scheme}: compiling, then training with {len(PEOPLE)} people in the stock runtime")
        update = converter.UpdateScheme("sparse", example.sparse) if scheme == "sparse" else scheme
        path = folder / f"digits-{scheme.replace('/', '-')}.tflite"
        chooses = scheme.partition("-")[0] == "channels"
        signatures = ("train", "evaluate", "infer", *(["fisher"] if chooses else []))
        program = converter.build(
            model, loss=example.loss, optimizer=arguments.optimizer, update=update, batch=BATCH, signatures=signatures
        )
        program.write(path)
        outcomes[scheme] = personalise(path, program.costs, arguments.rate)
        if program.manifest.redrawn:
            outcomes[f"{scheme}, each epoch"] = personalise(path, program.costs, arguments.rate, redraw=True)
        elif chooses:
            outcomes[f"{scheme}, chosen"] = personalise(path, program.costs, arguments.rate, chooses=True)
    how = {"optimizer": arguments.optimizer, "learning_rate": arguments.rate}
    report(outcomes, how, folder, time.perf_counter() - started)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures(outcomes, how), indent=2) + "\n")
        say(f"figures written to {arguments.json}")


def personalise(path: Path, costs: Any, rate: float, chooses: bool = False, redraw: bool = False) -> Outcome:
    """Trains one program from its initial state for each user in turn.

    Args:
        path: of the program.
        costs: its own.
        rate: the learning rate.
        chooses: whether its channels are chosen for each user first.
        redraw: whether other channels train in each epoch.
    """
    state = path.with_suffix(".chosen.state" if chooses else ".redrawn.state" if redraw else ".state")
    before, after, steps = [], [], []
    with converter.runtime.TrainingSession(path) as session:
        for person in PEOPLE:
            session.reset()
            theirs, held_out = person.samples(SAMPLES_OF_EACH_DIGIT)
            before.append(session.evaluate(*held_out)["accuracy"])
            if chooses:
                session.choose_channels(*theirs)
            given = {"epochs": EPOCHS, "learning_rate": rate, "progress": False, "redraw": redraw}
            trained = session.fit(*theirs, seed=person.seed, **given)
            after.append(session.evaluate(*held_out)["accuracy"])
            steps += [seconds / -(-len(theirs.y) // BATCH) for seconds in trained["seconds"]]
            if person is PEOPLE[0]:
                session.save(state)
    return Outcome(
        before=float(np.mean(before)),
        after=float(np.mean(after)),
        before_each=before,
        after_each=after,
        ms_per_step=1e3 * float(np.median(steps)),
        trained_parameters=costs["trained_parameters"],
        arena_bytes=costs["arena_bytes"],
        file_bytes=path.stat().st_size,
        file=str(path),
        state=str(state),
    )


def difference(outcomes: dict[str, Outcome], first: str, second: str) -> tuple[float, float]:
    """Mean and standard error over the people of the difference of two schemes, in points of accuracy."""
    points = 100 * (np.array(outcomes[first].after_each) - outcomes[second].after_each)
    return float(points.mean()), float(points.std(ddof=1) / np.sqrt(len(points)))


def figures(outcomes: dict[str, Outcome], how: dict[str, Any]) -> dict[str, Any]:
    """Return the outcomes and how they came about, for JSON."""
    return {
        "schemes": {scheme: asdict(outcome) for scheme, outcome in outcomes.items()},
        "people": [asdict(person) for person in PEOPLE],
        "samples": 10 * SAMPLES_OF_EACH_DIGIT,
        "held_out": [len(person.samples(SAMPLES_OF_EACH_DIGIT)[1].y) for person in PEOPLE],
        **how,
        "epochs": EPOCHS,
        "batch": BATCH,
    }


def report(outcomes: dict[str, Outcome], how: dict[str, Any], folder: Path, seconds: float) -> None:
    """Prints the table, what it means, where the files are, and what to do next."""
    table = Table(title="Personalised in the stock runtime", title_justify="left")
    table.add_column("update scheme")
    for heading in ("before", "after", "ms per step", "trained parameters", "arena", "file"):
        table.add_column(heading, justify="right")
    for scheme, outcome in outcomes.items():
        table.add_row(
            scheme,
            f"{outcome.before:.1%}",
            f"{outcome.after:.1%}",
            f"{outcome.ms_per_step:.2f}",
            f"{outcome.trained_parameters:,}",
            f"{outcome.arena_bytes / 1024:,.0f} KiB",
            f"{outcome.file_bytes / 1024:,.0f} KiB",
        )
    held_out = len(PEOPLE[0].samples(SAMPLES_OF_EACH_DIGIT)[1].y)
    first, *others = outcomes
    compared = "".join(
        f"{other} against {first}: {mean:+.1f} points, standard error {error:.1f}. "
        for other in others
        for mean, error in [difference(outcomes, other, first)]
    )
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(table)
    console.print(
        f"Accuracy: mean over {len(PEOPLE)} people, each with {10 * SAMPLES_OF_EACH_DIGIT} samples to learn from and "
        f"{held_out} others to be judged on.\n"
        f"{compared}All schemes: {how['optimizer']}, learning rate {how['learning_rate']:g}, {EPOCHS} epochs, "
        f"batch {BATCH}.\nTook {seconds:.0f} s.\n"
    )
    for path in sorted(folder.glob("digits-*")):
        console.print(f"  {shown(path)}", soft_wrap=True)
    console.print(f"\nNext: .venv/bin/pocketune inspect {shown(folder / f'digits-{first}.tflite')}", soft_wrap=True)


def shown(path: Path) -> str:
    """Return a path as the user would type it."""
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def say(text: str) -> None:
    """Narration, on stderr."""
    narration.print(f"demo: {text}")


if __name__ == "__main__":
    main()
