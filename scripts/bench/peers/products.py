"""Where the time of our full step goes on this machine, and how quick TensorFlow is at the products in it.

    .venv/bin/python scripts/bench/peers/products.py --workloads W3 W4 --json scripts/bench/results/products.json

Each operator of the step runs alone, on one core; CPU time, the least of several runs. The matrix products that take
most are then run by TensorFlow, in the same process and turn about: a step that is nothing but these products, at the
rate of the quicker of the two, is as quick as any step can be. `scripts/setup test` brings TensorFlow along.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import measured
import numpy as np
from facts import machine, write
from ours import built
from rich.console import Console
from rich.table import Table
from workloads import SMALL, WORKLOADS, workload

#: Products that are looked at one by one.
_MOST = 9
TARGET = "litert-2/x86-64"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=("W3", "W4"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="small nets, to try the measurement itself")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    measured.pin(1)
    result: dict[str, Any] = {"kind": "products", "machine": machine(), "threads": 1, "target": TARGET}
    result |= {"small": args.small, "rows": [], "parts": []}
    for name in args.workloads:
        net = workload(name, **(SMALL[name] if args.small else {}))
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "program.tflite"
            built(net, "full", file, TARGET)
            rows, parts = _measured(file, args.runs)
        cell = {"net": f"{name} b{net.batch}"}
        result["rows"] += [cell | row for row in rows]
        result["parts"].append(cell | parts)
        if args.json:
            write(args.json, result)
    for rows in (result["parts"], result["rows"]):
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console(width=None if sys.stdout.isatty() else 120).print(table)


def _measured(file: Path, runs: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The products of a program's step, and what it takes for products and for all else."""
    from converter.origins import read_origins
    from converter.profile import FREE
    from converter.program.file import read_program
    from converter.tflite.operators import OperatorFile

    program = read_program(file)
    origins = read_origins(program)
    kinds: dict[tuple, Any] = {}
    often: Counter[tuple] = Counter()
    for name, operators in OperatorFile(program.data).subgraphs():
        for operator in operators if name in origins else ():
            if operator.kind not in FREE:
                kinds.setdefault(operator.key, operator)
                often[operator.key] += 1
    seconds = {key: _least(_alone(operator.program()), runs) for key, operator in kinds.items()}
    total = {key: often[key] * seconds[key] for key in kinds}
    products = sorted((key for key in kinds if kinds[key].kind == "BATCH_MATMUL"), key=lambda key: -total[key])
    rows = []
    for key in products[:_MOST]:
        x, y, adjoint = _product(kinds[key].program())
        flops = 2 * x[-1 if not adjoint[0] else -2] * _size(x, y, adjoint)
        # Turn about, so that what else the machine does falls on both.
        ours = min(seconds[key], _least(_alone(kinds[key].program()), runs))
        theirs = _least(_by_tensorflow(x, y, adjoint), runs)
        said = " x ".join(
            "x".join(map(str, shape)) + "'" * turned for shape, turned in zip((x, y), adjoint, strict=True)
        )
        rates = {"GFLOP/s": round(flops / ours / 1e9), "TensorFlow": round(flops / theirs / 1e9)}
        rows.append({"product": said, "times": often[key], "ms": round(1e3 * total[key], 1)} | rates)
    spent = sum(total[key] for key in products)
    whole = sum(total.values())
    parts = {"operators ms": round(1e3 * whole), "products ms": round(1e3 * spent), "share": round(spent / whole, 2)}
    return rows, parts


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


def _product(program: bytes) -> tuple[list[int], list[int], tuple[bool, bool]]:
    """Shapes of both operands, and which of them is met the other way round."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(program, 0)
    graph = model.subgraphs[0]
    (operator,) = (o for o in graph.operators if isinstance(o.builtinOptions, schema.BatchMatMulOptionsT))
    x, y = (list(map(int, graph.tensors[i].shape)) for i in operator.inputs)
    return x, y, (bool(operator.builtinOptions.adjX), bool(operator.builtinOptions.adjY))


def _size(x: list[int], y: list[int], adjoint: tuple[bool, bool]) -> int:
    """Elements of the product."""
    rows, columns = x[-1 if adjoint[0] else -2], y[-2 if adjoint[1] else -1]
    return int(np.prod(np.broadcast_shapes(tuple(x[:-2]), tuple(y[:-2])))) * rows * columns


def _by_tensorflow(x: list[int], y: list[int], adjoint: tuple[bool, bool]) -> Callable[[], Any]:
    import tensorflow as tf

    if len(y) == 2 and len(x) > 2 and not adjoint[0]:  # as it computes a dense layer: all rows at once
        x = [int(np.prod(x[:-1])), x[-1]]
    a, b = (tf.Variable(tf.random.uniform(shape)) for shape in (x, y))
    return tf.function(lambda: tf.linalg.matmul(a, b, transpose_a=adjoint[0], transpose_b=adjoint[1]))


if __name__ == "__main__":
    main()
