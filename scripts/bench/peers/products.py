"""How quick TensorFlow is at the products of our full step: matrix products and depthwise convolutions.

    .venv/bin/python scripts/bench/peers/products.py --json scripts/bench/results/products.json

Each operator of the step runs alone, on one core; CPU time, the least of several runs. The products that take most are
then run by TensorFlow, in the same process and turn about: a step that is nothing but these products, at the rate of
the quicker of the two, is as quick as any step can be. `scripts/setup test` brings TensorFlow along.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import measured
import numpy as np
from facts import machine, write
from ours import built
from tables import show_rows
from workloads import SMALL, WORKLOADS, workload

from scripts.arguments import writable

TARGET = "litert-2/x86-64"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=("W1", "W3", "W4"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--most", type=int, default=9, help="products that are looked at one by one, the longest first")
    parser.add_argument("--small", action="store_true", help="small nets, to try the measurement itself")
    parser.add_argument("--json", type=writable, help="write all figures to this file")
    args = parser.parse_args()
    measured.pin(1)
    result: dict[str, Any] = {"kind": "products", "machine": machine(), "threads": 1, "target": TARGET}
    result |= {"small": args.small, "rows": []}
    for name in args.workloads:
        net = workload(name, **(SMALL[name] if args.small else {}))
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "program.tflite"
            built(net, "full", file, TARGET)
            result["rows"] += [{"net": f"{name} b{net.batch}"} | row for row in _measured(file, args.runs, args.most)]
        if args.json:
            write(args.json, result)
    show_rows(result["rows"])


def _measured(file: Path, runs: int, most: int) -> list[dict[str, Any]]:
    """Return the products of a program's step that take most."""
    from converter.program.file import read_program
    from converter.program.flatbuffer.operators import OperatorFile
    from converter.program.origins import read_origins

    program = read_program(file)
    origins = read_origins(program)
    kinds: dict[tuple, Any] = {}
    often: Counter[tuple] = Counter()
    for name, operators in OperatorFile(program.data).subgraphs():
        for operator in operators if name in origins else ():
            if operator.kind in ("BATCH_MATMUL", "DEPTHWISE_CONV_2D"):
                kinds.setdefault(operator.key, operator)
                often[operator.key] += 1
    seconds = {key: _least(_alone(operator.program()), runs) for key, operator in kinds.items()}
    rows = []
    for key in sorted(kinds, key=lambda key: -often[key] * seconds[key])[:most]:
        product = _product(kinds[key].program())
        # Turn about, so that what else the machine does falls on both.
        ours = min(seconds[key], _least(_alone(kinds[key].program()), runs))
        theirs = _least(product.by_tensorflow(), runs)
        rates = {"GFLOP/s": round(product.flops / ours / 1e9, 1), "TensorFlow": round(product.flops / theirs / 1e9, 1)}
        rows.append({"product": product.said, "times": often[key], "ms": round(1e3 * often[key] * ours, 1)} | rates)
    return rows


def _least(run: Callable[[], Any], runs: int) -> float:
    """CPU seconds, the least of some runs, after one to warm up."""
    run()
    times = []
    for _ in range(runs):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def _alone(program: bytes) -> Callable[[], Any]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=program, num_threads=1)
    interpreter.allocate_tensors()
    rng = np.random.default_rng(0)
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], rng.uniform(0.5, 1.5, detail["shape"]).astype(detail["dtype"]))
    return interpreter.invoke


class _Product(NamedTuple):
    """What an operator multiplies, in words; how much that is; the same as a function of TensorFlow."""

    said: str
    flops: int
    by_tensorflow: Callable[[], Callable[[], Any]]


def _product(program: bytes) -> _Product:
    """Return the one of a file that has no other operator."""
    from ai_edge_litert import schema_py_generated as schema

    graph = schema.ModelT.InitFromPackedBuf(program, 0).subgraphs[0]
    (operator,) = graph.operators
    x, y, *_ = (list(map(int, graph.tensors[i].shape)) for i in operator.inputs)
    result = list(map(int, graph.tensors[operator.outputs[0]].shape))
    options = operator.builtinOptions
    if isinstance(options, schema.BatchMatMulOptionsT):
        adjoint = bool(options.adjX), bool(options.adjY)
        sides = (
            "x".join(map(str, shape)) + "'" * transposed for shape, transposed in zip((x, y), adjoint, strict=True)
        )
        depth = x[-2 if adjoint[0] else -1]
        return _Product(" x ".join(sides), 2 * depth * prod(result), partial(_matrices, x, y, adjoint))
    strides = options.strideH, options.strideW
    dilations = options.dilationHFactor, options.dilationWFactor
    padding = "SAME" if options.padding == schema.Padding.SAME else "VALID"
    by = "".join(f" {word} {n}x{m}" for word, (n, m) in (("/", strides), ("dilated", dilations)) if (n, m) != (1, 1))
    said = f"{'x'.join(map(str, x))} * {y[1]}x{y[2]} by channel{by}"
    flops = 2 * y[1] * y[2] * prod(result)
    return _Product(said, flops, partial(_channels, x, y, strides, dilations, padding))


def _matrices(x: list[int], y: list[int], adjoint: tuple[bool, bool]) -> Callable[[], Any]:
    import tensorflow as tf

    if len(y) == 2 and len(x) > 2 and not adjoint[0]:  # as it computes a dense layer: all rows at once
        x = [prod(x[:-1]), x[-1]]
    a, b = (tf.Variable(tf.random.uniform(shape)) for shape in (x, y))
    return tf.function(lambda: tf.linalg.matmul(a, b, transpose_a=adjoint[0], transpose_b=adjoint[1]))


def _channels(
    x: list[int], w: list[int], strides: tuple[int, int], dilations: tuple[int, int], padding: str
) -> Callable[[], Any]:
    import tensorflow as tf

    a, b = tf.Variable(tf.random.uniform(x)), tf.Variable(tf.random.uniform([*w[1:], 1]))
    return tf.function(lambda: tf.nn.depthwise_conv2d(a, b, [1, *strides, 1], padding, dilations=dilations))


if __name__ == "__main__":
    main()
