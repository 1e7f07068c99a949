"""Time and memory of the official on-device training path, as JSON. Run by the python of `.venv-official`.

    scripts/bench/official/setup
    .venv-official/bin/python scripts/bench/official/measure.py --mode sparse             # one JSON object on stdout
    ... measure.py --mode sparse --interactive      # a step at a time, to be interleaved with another program

The file is converted in a process of its own and kept under --cache, so that nothing of the converter is in the
measured process. That one is pinned to one CPU before TensorFlow is imported: the thread count of the interpreter also
reaches Flex's intra-op pool, but TensorFlow's other pools only obey the affinity mask.

Result (shared with our side, scripts/bench/step.py):
    side, runtime, mode, model {alpha, size, batch, classes, seed}, trained_parameters, file_bytes,
    ops {total, flex, by_name}, threads, cpu, warmup, steps, losses (of the timed steps),
    ms {median, p10, p90, all}, cpu_ms {the same, CPU time of the process: what a busy machine does not blur},
    memory {before, loaded, after, peak, growth = after - before, peak_growth = peak - before} in bytes, error (text or null)

`--interactive`: after load and warm-up prints {"ready": true}; for each line "N" on stdin runs N steps and prints
{"ms": [...], "cpu_ms": [...], "losses": [...]}; when stdin ends prints the result over all those steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from program import MODES, Shape, convert, data

ROOT = Path(__file__).resolve().parents[3]
LEARNING_RATE = 0.01


def main() -> None:
    """Parse the arguments and print the JSON; a mode that fails is a result with an `error`, not a crash."""
    args = _arguments()
    shape = Shape(args.alpha, args.size, args.batch, args.classes, args.seed)
    result: dict[str, Any] = {"side": "official", "mode": args.mode, "model": asdict(shape), "error": None}
    with _quiet_stdout() as say:
        try:
            if args.convert_to:
                _convert_here(shape, args)
                return
            file = _converted(shape, args)
            result["trained_parameters"] = int(file.with_suffix(".trained").read_text())
            result |= _measure(file, shape, args, say)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        say(result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="full")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="the CPU to run on")
    parser.add_argument("--weights", type=Path, help=".npz by layer/weight to start from instead of the seed")
    parser.add_argument("--cache", type=Path, default=ROOT / "out" / "bench" / "official", help="kept programs")
    parser.add_argument("--interactive", action="store_true", help="take the number of steps to run from stdin")
    parser.add_argument("--convert-to", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A `say` that alone writes to stdout: TensorFlow's own prints, from C++ too, go to stderr."""
    real = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(real, "w") as out:
        yield lambda message: print(json.dumps(message), file=out, flush=True)


# -- conversion, in a process of its own ---------------------------------------------------------------------------


def _converted(shape: Shape, args: argparse.Namespace) -> Path:
    """The program's file, converted now if it is not kept yet."""
    if args.weights is not None:
        args.weights = args.weights.resolve()
    name = f"mobilenet_v2-{args.mode}-a{shape.alpha:g}-{shape.size}-b{shape.batch}-c{shape.classes}-s{shape.seed}"
    # Programs made from someone else's weights are never reused: the .npz may have changed.
    file = args.cache / f"{name}{'-weights' if args.weights else ''}.tflite"
    if file.exists() and file.with_suffix(".trained").exists() and not args.weights:
        return file
    args.cache.mkdir(parents=True, exist_ok=True)
    again = [sys.executable, __file__, *sys.argv[1:], "--convert-to", str(file.resolve())]
    done = subprocess.run(again, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"conversion failed:\n{_last_words(done.stderr)}")
    return file


def _convert_here(shape: Shape, args: argparse.Namespace) -> None:
    content, trained = convert(shape, args.mode, args.weights)
    # The file's name appears only with all of its content, so an interrupted conversion is not taken for a program.
    part = args.convert_to.with_suffix(".part")
    part.write_bytes(content)
    args.convert_to.with_suffix(".trained").write_text(str(trained))
    part.rename(args.convert_to)


def _last_words(stderr: str) -> str:
    """The end of a failed process' narration, where the reason stands."""
    return "\n".join(stderr.strip().splitlines()[-25:])


# -- measurement ---------------------------------------------------------------------------------------------------


def _measure(file: Path, shape: Shape, args: argparse.Namespace, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    os.sched_setaffinity(0, {args.cpu})
    for pool in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ[pool] = "1"
    import tensorflow as tf

    x, y = data(shape)
    rate = np.float32(LEARNING_RATE)
    _forget_peak()
    before = _status("VmRSS")
    interpreter = tf.lite.Interpreter(model_path=str(file), num_threads=1)
    train = interpreter.get_signature_runner("train")
    loaded = _status("VmRSS")
    ms: list[float] = []
    cpu_ms: list[float] = []
    losses: list[float] = []

    def step() -> None:
        wall, busy = time.perf_counter(), time.process_time()
        loss = train(x=x, y=y, learning_rate=rate)["loss"]
        cpu_ms.append((time.process_time() - busy) * 1e3)
        ms.append((time.perf_counter() - wall) * 1e3)
        losses.append(float(loss))

    for _ in range(args.warmup):
        step()
    first_losses = list(losses)
    for kept in (ms, cpu_ms, losses):
        kept.clear()
    if args.interactive:
        say({"ready": True})
        for line in sys.stdin:
            for _ in range(int(line)):
                step()
            count = int(line)
            say({"ms": ms[-count:], "cpu_ms": cpu_ms[-count:], "losses": losses[-count:]})
    else:
        for _ in range(args.steps):
            step()
    after, peak = _status("VmRSS"), _status("VmHWM")
    return {
        "runtime": f"tensorflow {tf.__version__}",
        "file_bytes": file.stat().st_size,
        "ops": _operators(file.read_bytes()),
        "threads": 1,
        "cpu": args.cpu,
        "warmup": args.warmup,
        "warmup_losses": first_losses,
        "steps": len(ms),
        "losses": losses,
        "ms": _spread(ms),
        "cpu_ms": _spread(cpu_ms),
        "memory": {
            "before": before,
            "loaded": loaded,
            "after": after,
            "peak": peak,
            "growth": after - before,
            "peak_growth": peak - before,
        },
    }


def _spread(samples: list[float]) -> dict[str, Any]:
    if not samples:
        return {"median": None, "p10": None, "p90": None, "all": []}
    p10, median, p90 = np.percentile(samples, [10, 50, 90])
    return {"median": round(median, 2), "p10": round(p10, 2), "p90": round(p90, 2), "all": [round(s, 2) for s in samples]}


def _status(field: str) -> int:
    """A memory figure of this process in bytes, from /proc."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}: memory can only be measured on Linux")
    return int(found[1]) * 1024


def _forget_peak() -> None:
    """Start VmHWM anew, so that importing TensorFlow does not count as the peak of training."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _operators(content: bytes) -> dict[str, Any]:
    """How many operators the program has, and how many of each Flex operator."""
    from tensorflow.lite.python import schema_py_generated as schema

    names = {value: key for key, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    model = schema.Model.GetRootAs(content, 0)
    counts: Counter[str] = Counter()
    for graph in (model.Subgraphs(i) for i in range(model.SubgraphsLength())):
        for node in (graph.Operators(i) for i in range(graph.OperatorsLength())):
            code = model.OperatorCodes(node.OpcodeIndex())
            custom = code.CustomCode()
            builtin = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            counts[custom.decode() if custom else names[builtin]] += 1
    flex = sum(n for name, n in counts.items() if name.startswith("Flex"))
    return {"total": sum(counts.values()), "flex": flex, "by_name": dict(counts.most_common())}


if __name__ == "__main__":
    main()
