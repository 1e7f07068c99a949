"""Time and memory of the official on-device training path, as JSON. Run by the python of `.venv-official`.

    scripts/bench/official/setup
    .venv-official/bin/python scripts/bench/official/measure.py --mode sparse             # one JSON object on stdout

The file is converted in a process of its own and kept under --cache, so that nothing of the converter is in the
measured process. What is measured, how, and --interactive: scripts/bench/measured.py. To that the result adds
side, runtime, mode, model {alpha, size, batch, classes, seed}, trained_parameters, file_bytes and
ops {total, flex, by_name}.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

# Another environment's python runs this file, so nothing of ours is installed there.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Whatever the caller's Keras runs on, the official path is TensorFlow's.
os.environ["KERAS_BACKEND"] = "tensorflow"

import measured
from official.program import MODES, Shape, convert, data

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    """Parse the arguments and print the JSON; a mode that fails is a result with an `error`, not a crash."""
    args = _arguments()
    shape = Shape(args.alpha, args.size, args.batch, args.classes, args.seed)
    if args.convert_to:
        _convert_here(shape, args)
        return
    with measured.report({"side": "official", "mode": args.mode, "model": asdict(shape)}) as (result, say):
        file = _converted(shape, args)
        result["trained_parameters"] = int(file.with_suffix(".trained").read_text())
        result["file_bytes"] = file.stat().st_size
        measured.pin(args.threads)
        import tensorflow as tf

        result["runtime"] = f"tensorflow {tf.__version__}"
        x, y = data(shape)
        result |= measured.measure(lambda: _load(file, x, y, args.threads), args, say)
        result["ops"] = _operators(file.read_bytes())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="full")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path, help=".npz by layer/weight to start from instead of the seed")
    parser.add_argument("--cache", type=Path, default=ROOT / "out" / "bench" / "official", help="kept programs")
    parser.add_argument("--convert-to", type=Path, help=argparse.SUPPRESS)
    measured.add_arguments(parser)
    return parser.parse_args()


def _load(file: Path, x: np.ndarray, y: np.ndarray, threads: int) -> Callable[[], float]:
    """The step of the loaded program."""
    import tensorflow as tf

    rate = np.float32(measured.LEARNING_RATE)
    interpreter = tf.lite.Interpreter(model_path=str(file), num_threads=threads)
    train = interpreter.get_signature_runner("train")
    return lambda: float(train(x=x, y=y, learning_rate=rate)["loss"])


# -- conversion, in a process of its own ---------------------------------------------------------------------------


def _converted(shape: Shape, args: argparse.Namespace) -> Path:
    """The program's file, converted now if it is not kept yet."""
    name = f"mobilenet_v2-{args.mode}-a{shape.alpha:g}-{shape.size}-b{shape.batch}-c{shape.classes}-s{shape.seed}"
    if args.weights is not None:
        name += f"-w{hashlib.sha256(args.weights.read_bytes()).hexdigest()[:8]}"
    file = args.cache / f"{name}.tflite"
    if file.exists() and file.with_suffix(".trained").exists():
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
