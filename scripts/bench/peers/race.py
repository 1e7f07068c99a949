"""Runs the sides of one cell in turns: who takes part, the processes, and what their figures come to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measured import spread

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
#: Relative difference of a loss from JAX's above which a side does not compute the same thing.
TOLERANCE = 1e-3
#: The same for our program with frozen layers in int8, which rounds on purpose.
INT8_TOLERANCE = 0.1


@dataclass(frozen=True)
class Peer:
    """A framework that the step is measured in.

    Attributes:
        program: its file in this folder.
        environment: which of the environments that `setup` makes.
        flags: further options of the program.
        variables: of the process' environment.
    """

    program: str
    environment: str
    flags: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


#: The C library otherwise gives large blocks back to the system and asks for them anew, page by page, in every step.
_KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 26)}
PEERS = {
    "tensorflow": Peer("tensorflow_peer.py", "tensorflow"),
    "tensorflow-folded": Peer("tensorflow_peer.py", "tensorflow", ["--fold"]),
    "tensorflow-xla": Peer("tensorflow_peer.py", "tensorflow", ["--xla"]),
    "jax": Peer("jax_peer.py", "jax"),
    "torch": Peer("torch_peer.py", "torch", variables=_KEEP_PAGES),
    "flex": Peer("flex_peer.py", "flex"),
    "ort": Peer("ort_peer.py", "ort"),
}
#: Whose losses everyone must have, and the peers that are measured unless others are named.
REFERENCE = "jax"
USUAL = ("tensorflow", "tensorflow-folded", "jax")


def command(name: str, task: Path, scheme: str, here: bool) -> list[str]:
    """Return what starts a peer; makes its environment if need be, unless it is to run in this one (`here`)."""
    peer = PEERS[name]
    python = sys.executable
    if not here:
        subprocess.run([HERE / "setup", peer.environment], check=True)
        python = str(ROOT / ".venv-peers" / peer.environment / "bin" / "python")
    return [python, str(HERE / peer.program), str(task), f"--scheme={scheme}", *peer.flags]


class Side:
    """One of the processes, which runs steps when told to.

    Attributes:
        result: what it reported; its `error` says why there is nothing more.
        losses: of the warm-up steps.
    """

    def __init__(self, name: str, command: Sequence[str], threads: int, stack: ExitStack) -> None:
        """Starts the process; it loads, warms up and waits. `stack` ends it."""
        self._stderr = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 (the stack closes it)
        self._process = stack.enter_context(
            subprocess.Popen(
                [*command, "--interactive", f"--threads={threads}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                bufsize=1,
                env=os.environ | (PEERS[name].variables if name in PEERS else {}),
            )
        )
        # Popen's own exit waits for the process, which must not wait for us if we were interrupted.
        stack.callback(self._process.kill)
        self.result: dict[str, Any] = {"error": None}
        self.losses: list[float] = self._answer().get("losses", [])

    @property
    def is_alive(self) -> bool:
        """Whether it can run steps."""
        return self.result["error"] is None

    def dismiss(self, reason: str) -> None:
        """Ends a side that is not to be measured."""
        self.result = {"error": reason}
        self._process.kill()

    def run(self, steps: int) -> dict[str, float] | None:
        """Runs steps; their milliseconds by the clock and of CPU time, per step. None if it failed."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer then says why
            self._process.stdin.write(f"{steps}\n")
        answer = self._answer()
        return {clock: float(np.mean(answer[clock])) for clock in ("ms", "cpu_ms")} if self.is_alive else None

    def finish(self) -> None:
        """Lets the process report and end."""
        if self.is_alive:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self.result = self._answer()

    def _answer(self) -> dict[str, Any]:
        """Return the next line of the process.

        A process that died, or reports an error, becomes a result with an `error`.
        """
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


def race(
    commands: Mapping[str, list[str]], timed: Collection[str], steps: int, turn: int, threads: int, ours: float
) -> dict[str, Any]:
    """Measures the sides in turns and compares them with ours.

    Args:
        commands: name -> how it is started; `ours` and the reference are among them.
        timed: which of them are measured; the reference's losses are wanted in any case.
        steps: timed steps of each side.
        turn: steps before it is the next side's turn.
        threads: of each side.
        ours: tolerance of our losses.

    Returns:
        sides: name -> its result, with `loss_difference`, and for peers the `ratio` of their time to ours;
        best: the peer with the lowest ratio.
    """
    samples: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        # One after the other: loading and warming up side by side would fight for the CPU.
        sides = {name: Side(name, how, threads, stack) for name, how in commands.items()}
        differences = _checked(sides, ours)
        sides = {name: side for name, side in sides.items() if name in timed}
        for i in range(-(-steps // turn)):
            racing = [name for name, side in sides.items() if side.is_alive]
            for name in racing if i % 2 == 0 else reversed(racing):
                if (took := sides[name].run(turn)) is not None:
                    samples.setdefault(name, []).append(took)
        for side in sides.values():
            side.finish()
        results = {name: side.result for name, side in sides.items()}
    for name, result in results.items():
        result["loss_difference"] = differences[name]
        if name != "ours" and not result["error"] and not results["ours"]["error"]:
            pairs = list(zip(samples[name], samples["ours"], strict=False))
            result["ratio"] = {c: spread([theirs[c] / mine[c] for theirs, mine in pairs]) for c in ("ms", "cpu_ms")}
    # Of several threads only the clock says what they are worth.
    clock = "cpu_ms" if threads == 1 else "ms"
    compared = {name: result["ratio"][clock]["median"] for name, result in results.items() if "ratio" in result}
    best = min(compared, key=lambda name: compared[name], default=None)
    return {"sides": results, "clock": clock, "best": best, "best_ratio": compared.get(best)}


def _checked(sides: Mapping[str, Side], ours: float) -> dict[str, float | None]:
    """Return the largest relative difference of a side's first losses from the reference's.

    Who differs is dismissed.
    """
    differences: dict[str, float | None] = {}
    expected = np.array(sides[REFERENCE].losses)
    for name, side in sides.items():
        differences[name] = None
        if not side.is_alive:
            continue
        if not expected.size:
            side.dismiss(f"not measured: {REFERENCE} failed, whose losses all others are compared with")
            continue
        difference = float(np.max(np.abs(np.array(side.losses) / expected - 1)))
        differences[name] = difference
        # Not `>`: a loss that is no number differs too.
        if not difference <= (ours if name == "ours" else TOLERANCE):
            side.dismiss(f"trains something else: losses {side.losses}, {REFERENCE}'s are {expected.tolist()}")
    return differences
