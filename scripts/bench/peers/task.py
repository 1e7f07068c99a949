"""What one side trains, as a file that any framework's environment can read: NumPy and the standard library only.

A peer's program is `run("name", prepare, load)`; it is called with the task's file and a scheme.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Another environment's python runs this file, so nothing of ours is installed there.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measured

_WEIGHT = "weight:"


@dataclass(frozen=True)
class Task:
    """A workload without its code.

    Attributes:
        file: holds the arrays.
        name: W1 to W4.
        options: with which `workloads.workload(name, **options)` makes it.
        kind: which net to write.
        sizes: what the net's code needs to know beside the shapes of its weights.
        trained: scheme -> names of the weights that train.
    """

    file: Path
    name: str
    options: Mapping[str, Any]
    kind: str
    sizes: Mapping[str, Any]
    trained: Mapping[str, list[str]]

    @classmethod
    def read(cls, file: Path) -> Task:
        """Return the task of a file."""
        with np.load(file, allow_pickle=False) as stored:
            return cls(file, **json.loads(stored["task"].item()))

    def write(self, arrays: Mapping[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> None:
        """Stores the task with the weights by name and the data of a step."""
        facts = {key: value for key, value in asdict(self).items() if key != "file"}
        weights = {_WEIGHT + name: array for name, array in arrays.items()}
        np.savez(self.file, task=np.array(json.dumps(facts)), x=x, y=y, **weights)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        with np.load(self.file, allow_pickle=False) as stored:
            return stored["x"], stored["y"]

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield names and arrays, one in memory at a time; as JAX lays them out: filters HWIO, matrices [in, out]."""
        with np.load(self.file, allow_pickle=False) as stored:
            for key in stored.files:
                if key.startswith(_WEIGHT):
                    yield key.removeprefix(_WEIGHT), stored[key]


def run(
    side: str,
    prepare: Callable[[argparse.Namespace], str],
    load: Callable[[Task, np.ndarray, np.ndarray, argparse.Namespace], Callable[[], float]],
    *flags: str,
) -> None:
    """Measures one side in this process and prints the JSON; what fails is a result with an `error`, not a crash.

    Args:
        side: name for the result.
        prepare: imports the runtime and makes what is not to be counted as the program's memory; returns its version.
        load: the step of a task on x and y.
        flags: further options of this side, without a value.
    """
    parser = argparse.ArgumentParser(description=f"One training step in {side}; scripts/bench/measured.py says how.")
    parser.add_argument("task", type=Path, help="file made by scripts/bench/peers")
    parser.add_argument("--scheme", required=True)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    measured.add_arguments(parser)
    args = parser.parse_args()
    with measured.report({"side": side}) as (result, say):
        measured.pin(args.threads)
        result["runtime"] = prepare(args)
        task = Task.read(args.task)
        x, y = task.data()
        result |= measured.measure(lambda: load(task, x, y, args), args, say)
