"""Steps of a program in TensorFlow Lite Micro, whose state goes from one to the next; in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from converter.program.file import read_program
from converter.program.flatbuffer.parts import SIGNATURE, tensor_name
from converter.program.layers import Layers

Arrays = dict[str, np.ndarray]


def steps_in_tflm(path: Path, rows: list[Arrays], state: Arrays, signature: str = "train") -> list[Arrays]:
    """What each step gives, by name; the state that it gives goes into the next. Fails where the process does."""
    entry = Layers(read_program(path)).entry(signature)
    folder = path.with_suffix(".steps")
    folder.mkdir()
    (folder / "part.tflite").write_bytes(entry.part(range(len(entry.places)), list(entry.outputs)))
    np.savez(folder / "state.npz", **{tensor_name(i): state[n] for i, n in entry.inputs.items() if n in state})
    for k, row in enumerate(rows):
        np.savez(folder / f"{k}.npz", **{tensor_name(i): row[n] for i, n in entry.inputs.items() if n in row})
    taken = {name: tensor_name(i) for i, name in entry.inputs.items()}
    kept = [f"{tensor_name(i)}={taken[name]}" for i, name in entry.outputs.items() if name in state]
    command = [sys.executable, "-m", "tests.runtime.engines.tflm_steps", str(folder), str(len(rows)), *kept]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    made = [np.load(folder / f"out-{k}.npz") for k in range(len(rows))]
    return [{name: given[tensor_name(i)] for i, name in entry.outputs.items()} for given in made]


def main(folder: Path, steps: int, kept: dict[str, str]) -> None:
    """The other side."""
    from converter.runtime.engines.workers.tflm import Loaded

    model, state = Loaded(folder / "part.tflite", {}), dict(np.load(folder / "state.npz"))
    for k in range(steps):
        given = model(SIGNATURE, {**np.load(folder / f"{k}.npz"), **state})
        state = {kept[name]: array for name, array in given.items() if name in kept}
        np.savez(folder / f"out-{k}.npz", **given)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), dict(pair.split("=") for pair in sys.argv[3:]))
