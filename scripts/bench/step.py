"""Our training step against the official path's (tf.GradientTape + TFLiteConverter with Flex), side by side in one run.

    scripts/setup test && .venv/bin/python scripts/bench/step.py                      # MobileNetV2 1.0, 224, batch 8
    .venv/bin/python scripts/bench/step.py --alpha 0.35 --size 96 --batch 2 --json out/step.json

Both sides start from the same weights, train the same variables on the same batch and run in a process of their own,
pinned to the same CPU. They take turns (ours, official, official, ours), so that what else the machine does falls on
both. The losses of all steps are compared: a fast step that computes something else is worth nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from measured import LEARNING_RATE, spread
from official.program import MODES, Shape, data, network, short_path, trained_variables
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Relative difference of a loss above which the sides do not compute the same thing.
TOLERANCE = 1e-3

note = Console(stderr=True, highlight=False)


def main() -> int:
    """Measure the modes and print the table. 1: our side failed, or the losses differ."""
    args = _arguments()
    shape = Shape(args.alpha, args.size, args.batch)
    official_python = _official_python()
    with tempfile.TemporaryDirectory() as scratch:
        model, weights, batch = _common_ground(shape, Path(scratch))
        rows = []
        for mode in args.modes:
            program = Path(scratch) / f"{mode}.tflite"
            paths = [v.path for v in trained_variables(model, mode)]
            note.print(f"[bold]{mode}[/]: {len(paths)} variables train; building, converting, measuring")
            count = _build(model, paths, shape, args.target, program)
            commands = {
                "ours": [sys.executable, HERE / "ours.py", program, batch],
                "official": [official_python, HERE / "official" / "measure.py", "--mode", mode, "--weights", weights]
                + [f"--{name}={value}" for name, value in asdict(shape).items()],
            }
            rows.append({"mode": mode, "trained_variables": len(paths), "trained_parameters": count})
            rows[-1] |= _compare(commands, args)
    result = {"machine": _machine(), "model": asdict(shape), "target": args.target, "threads": args.threads}
    result |= {"learning_rate": LEARNING_RATE, "rows": rows}
    _show(result)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(row["ours"]["error"] or (row["loss_difference"] or 0) > TOLERANCE for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alpha", type=float, default=1.0, help="width of MobileNetV2")
    parser.add_argument("--size", type=int, default=224, help="height and width of the input")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each side")
    parser.add_argument("--turn", type=int, default=2, help="steps before it is the other side's turn")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--threads", type=int, default=1, help="of each side, and CPUs it is pinned to")
    parser.add_argument("--target", default="litert-2/x86-64", help="what our program is tuned for")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


def _official_python() -> Path:
    """The official side's interpreter, in an environment that is made if need be."""
    subprocess.run([HERE / "official" / "setup"], check=True)
    return ROOT / ".venv-official" / "bin" / "python"


# -- the same start for both sides -------------------------------------------------------------------------------------


def _common_ground(shape: Shape, folder: Path) -> tuple[Any, Path, Path]:
    """The model, its weights and the batch, the last two as files for the measured processes.

    A fresh model has normalizations that do nothing and logits near zero, whatever goes wrong: its statistics are
    drawn at random, so that the losses of both sides agree only if both are right.
    """
    model = network(shape, None)
    rng = np.random.default_rng(shape.seed)
    ranges = {"moving_mean": (-0.2, 0.2), "moving_variance": (0.5, 1.5), "beta": (-0.2, 0.2), "gamma": (0.7, 1.3)}
    for variable in model.weights:
        if variable.name in ranges:
            variable.assign(rng.uniform(*ranges[variable.name], variable.shape).astype(np.float32))
    weights, batch = folder / "weights.npz", folder / "batch.npz"
    values: dict[str, Any] = {short_path(v): np.asarray(v.value) for v in model.weights}
    np.savez(weights, **values)
    x, y = data(shape)
    np.savez(batch, x=x, y=y)
    return model, weights, batch


def _build(model: Any, paths: Sequence[str], shape: Shape, target: str, file: Path) -> int:
    """Write our program that trains the variables `paths`; the number of parameters it says it trains."""
    import optax

    import converter

    update = dict.fromkeys(paths, 1)
    # The official file offers nothing but its step either.
    options = {"batch": shape.batch, "target": target, "signatures": ("train",), "check": False}
    program = converter.build(model, optimizer=optax.sgd(1.0), update=update, **options)
    program.write(file)
    return sum(int(np.prod(parameter.shape)) for parameter in program.manifest.parameters)


# -- measuring ---------------------------------------------------------------------------------------------------------


class Side:
    """One of the two processes, which runs steps when told to.

    Attributes:
        result: what it reported; its `error` says why there is nothing more.
    """

    def __init__(self, command: Sequence[Any], args: argparse.Namespace, stack: ExitStack) -> None:
        """Starts the process; it loads, warms up and waits. `stack` ends it."""
        self._stderr = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 (the stack closes it)
        command = [*map(str, command), "--interactive", f"--threads={args.threads}"]
        self._process = stack.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True, bufsize=1
            )
        )
        # Popen's own exit waits for the process, which must not wait for us if we were interrupted.
        stack.callback(self._process.kill)
        self.result: dict[str, Any] = {"error": None}
        self.is_ready = "ready" in self._answer()

    def run(self, steps: int) -> tuple[float, float]:
        """Runs steps; their milliseconds by the clock and of CPU time, per step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        answer = self._answer()
        if self.result["error"]:
            raise RuntimeError(self.result["error"])
        return float(np.mean(answer["ms"])), float(np.mean(answer["cpu_ms"]))

    def finish(self) -> None:
        """Lets the process report and end."""
        if not self.result["error"]:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self.result = self._answer()

    def _answer(self) -> dict[str, Any]:
        """The next line of the process; a process that died, or reports an error, becomes a result with an `error`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._stderr.seek(0)
            last_words = "".join(self._stderr.readlines()[-15:])
            self.result = {"error": f"ended with status {self._process.wait()}:\n{last_words}"}
            return self.result
        answer: dict[str, Any] = json.loads(line)
        if answer.get("error"):
            self.result = answer
        return answer


def _compare(commands: dict[str, list[Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Both results, the ratios official / ours of every pair of turns, and the largest difference of a loss."""
    ratios: dict[str, list[float]] = {"ms": [], "cpu_ms": []}
    with ExitStack() as stack:
        # One after the other: loading and warming up side by side would fight for the CPU.
        sides = {name: Side(command, args, stack) for name, command in commands.items()}
        if all(side.is_ready for side in sides.values()):
            try:
                for turn in range(-(-args.steps // args.turn)):
                    order = ("ours", "official") if turn % 2 == 0 else ("official", "ours")
                    took = {name: sides[name].run(args.turn) for name in order}
                    for i, clock in enumerate(ratios):
                        ratios[clock].append(took["official"][i] / took["ours"][i])
            except RuntimeError as error:
                note.print(f"[red]stopped[/]: {error}", markup=True)
        else:
            for side in sides.values():
                if side.is_ready:
                    side.run(args.steps)
        for side in sides.values():
            side.finish()
        results = {name: side.result for name, side in sides.items()}
    return {
        **results,
        "ratio": {clock: spread(samples) for clock, samples in ratios.items()},
        "loss_difference": _loss_difference(results),
    }


def _loss_difference(results: dict[str, dict[str, Any]]) -> float | None:
    """The largest relative difference over all steps, from the first; None if a side failed."""
    if any(result["error"] for result in results.values()):
        return None
    ours, theirs = (np.array(r["warmup_losses"] + r["losses"]) for r in (results["ours"], results["official"]))
    return float(np.abs(ours / theirs - 1).max())


# -- showing -----------------------------------------------------------------------------------------------------------


def _machine() -> dict[str, Any]:
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    flags = [f for f in facts.get("flags", "").split() if f in ("avx2", "avx512f", "avx512_vnni", "amx_tile")]
    packages = {name: version(name) for name in ("ai-edge-litert", "jax", "keras")}
    return {"cpu": facts.get("model name", platform.machine()), "flags": flags, "cpus": os.cpu_count()} | packages


def _show(result: dict[str, Any]) -> None:
    model, machine = result["model"], result["machine"]
    out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    table = Table(
        title=f"MobileNetV2 {model['alpha']:g}, {model['size']}x{model['size']}, batch {model['batch']}, SGD, "
        f"{result['threads']} thread(s): one training step",
        caption=f"{machine['cpu']} ({' '.join(machine['flags'])}); target {result['target']}. ms: median [10%-90%]. "
        "Ratio: official / ours over pairs of turns. "
        "Memory: growth of the process from before it loads the program; peak: the whole process.",
    )
    for heading in ("mode", "trains", "side", "CPU ms", "wall ms", "memory MB", "peak MB", "file MB", "loss, last"):
        table.add_column(heading, justify="left" if heading in ("mode", "trains", "side") else "right")
    for row in result["rows"]:
        trains = f"{row['trained_parameters']:,} in {row['trained_variables']}"
        table.add_row(f"[bold]{row['mode']}[/]", trains, "ours", *_cells(row["ours"]))
        table.add_row("", "", "official", *_cells(row["official"]))
        if row["loss_difference"] is not None:
            ours, theirs = row["ours"]["memory"], row["official"]["memory"]
            memory = (f"{theirs[kind] / max(ours[kind], 1):.2f}x" for kind in ("growth", "peak"))
            size = f"{row['official']['file_bytes'] / row['ours']['file_bytes']:.2f}x"
            ratios = (f"{r['median']:.2f}x [{r['p10']:.2f}-{r['p90']:.2f}]" for r in _in_order(row["ratio"]))
            differ = f"differ {row['loss_difference']:.1e}"
            verdict = differ if row["loss_difference"] <= TOLERANCE else f"[red]{differ}[/]"
            table.add_row("", "", "ratio", *ratios, *memory, size, verdict, style="bold")
        table.add_section()
    out.print(table)
    for row in result["rows"]:
        for side in ("ours", "official"):
            if row[side]["error"]:
                out.print(f"{row['mode']}, {side} failed: {row[side]['error']}", markup=False)


def _in_order(ratio: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return ratio["cpu_ms"], ratio["ms"]


def _cells(result: dict[str, Any]) -> list[str]:
    if result["error"]:
        return ["failed"]
    times = (f"{t['median']:.1f} [{t['p10']:.1f}-{t['p90']:.1f}]" for t in _in_order(result))
    memory = (f"{result['memory'][kind] / 1e6:.1f}" for kind in ("growth", "peak"))
    return [*times, *memory, f"{result['file_bytes'] / 1e6:.1f}", f"{result['losses'][-1]:.5f}"]


if __name__ == "__main__":
    sys.exit(main())
