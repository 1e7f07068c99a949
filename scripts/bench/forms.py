"""What each form of an operator costs: the figures of `converter/targets/*.toml`, measured again.

    .venv/bin/python scripts/bench/forms.py                             # nanoseconds, on this machine
    .venv/bin/python scripts/bench/forms.py --arm64 DIR                 # instructions; scripts/arm64/prepare makes DIR
    .venv/bin/python scripts/bench/forms.py --arm64 DIR --library android   # after scripts/arm64/prepare_android
    .venv/bin/python scripts/bench/forms.py --builtin                   # without XNNPACK
    .venv/bin/python scripts/bench/forms.py --table mine.toml           # for `build --target mine.toml`

A form is measured on several shapes, small enough to stay in the caches unless its name says `beyond`; the table gives
the median cost of one multiply-accumulate or of one byte read or written, and each shape's own. Products are of whole
tiles, as a target counts them. Costs of different forms are comparable within one run only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from emulated import LIBRARIES, Emulator
from facts import machine
from fitted import fitted
from rich.console import Console
from rich.table import Table

from converter.ir import INT8, Graph, TensorType, Value
from converter.quantize.scales import of_bias, of_range, of_weight
from converter.step_cost import step_cost
from converter.targets import Target, tables
from converter.targets import target as find_target
from converter.tflite import builtins as tfl
from converter.tflite.emit import Subgraph, emit
from converter.tflite.lower import Lowering

#: Lowering asks for costs only where it chooses; here every form is emitted by hand.
NO_TARGET = Target("none", "", {}, {}, {}, 0, 1, 1, 0, 0, 0, 0)


@dataclass(frozen=True)
class Case:
    """One graph of a form.

    Attributes:
        form: name in the tables.
        shape: what is measured, for the report.
        work: multiply-accumulates, or bytes read and written.
        emit: adds the operators to a graph and returns what they compute.
    """

    form: str
    shape: str
    work: int
    emit: Callable[[Lowering], Value]


def weight(c: Lowering, form: str, *shape: int) -> Value:
    """A weight that is constant or arrives at run time, as the form's name says."""
    if form.endswith(".constant"):
        return c.constant(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    return c.input("w", TensorType(shape))


def bias(c: Lowering, channels: int) -> Value:
    """The zero bias that convolutions need."""
    return c.constant(np.zeros(channels, np.float32))


def products() -> list[Case]:
    """Matrix products [m, k] x [k, n]."""
    cases = []
    for m, k, n in ((256, 256, 256), (128, 64, 512), (392, 96, 64)):

        def dense(c: Lowering, form: str, m: int = m, k: int = k, n: int = n) -> Value:
            return c(tfl.FullyConnected(), c.input("x", TensorType((m, k))), weight(c, form, n, k))

        def batch(c: Lowering, adjoint: tuple[bool, bool], m: int = m, k: int = k, n: int = n) -> Value:
            x = c.input("x", TensorType((k, m) if adjoint[0] else (m, k)))
            return c(tfl.BatchMatmul(*adjoint), x, c.input("w", TensorType((n, k) if adjoint[1] else (k, n))))

        shape = f"{m}x{k}x{n}"
        for form in ("fully_connected.constant", "fully_connected.runtime"):
            cases.append(Case(form, shape, m * k * n, lambda c, f=form, e=dense: e(c, f)))
        for note, adjoint in (("", (False, False)), (" x'", (True, False)), (" w'", (False, True))):
            cases.append(Case("batch_matmul", shape + note, m * k * n, lambda c, a=adjoint, e=batch: e(c, a)))
    return cases


def gemm() -> Case:
    """The large constant product whose rate whole steps are compared with."""
    m, k, n = 1024, 768, 768
    kind = "fully_connected.constant"
    return Case(
        kind, "", m * k * n, lambda c: c(tfl.FullyConnected(), c.input("x", TensorType((m, k))), weight(c, kind, n, k))
    )


def convolutions() -> list[Case]:
    """Convolutions n x size^2 x i -> o with k x k filters, and the transposed ones."""
    cases = []
    for n, size, k, i, o in ((1, 32, 3, 32, 32), (2, 14, 3, 64, 64), (1, 28, 1, 96, 32), (2, 7, 1, 160, 320)):

        def conv(c: Lowering, form: str, n: int = n, size: int = size, k: int = k, i: int = i, o: int = o) -> Value:
            x = c.input("x", TensorType((n, size, size, i)))
            return c(tfl.Conv2D((1, 1), "SAME"), x, weight(c, form, o, k, k, i), bias(c, o))

        def back(c: Lowering, form: str, n: int = n, size: int = size, k: int = k, i: int = i, o: int = o) -> Value:
            dy = c.input("dy", TensorType((n, size, size, o)))
            return c(tfl.TransposeConv((n, size, size, i), (1, 1), "SAME"), weight(c, form, i, k, k, o), dy)

        macs, shape = n * size * size * k * k * i * o, f"{n}x{size}x{size}x{i}->{o} {k}x{k}"
        for kind in ("constant", "runtime"):
            cases.append(Case(f"conv.{kind}", shape, macs, lambda c, f=f"conv.{kind}", e=conv: e(c, f)))
            cases.append(
                Case(f"transpose_conv.{kind}", shape, macs, lambda c, f=f"transpose_conv.{kind}", e=back: e(c, f))
            )
    for n, size, channels, stride in ((2, 28, 192, 1), (2, 14, 384, 2)):

        def depthwise(
            c: Lowering, form: str, n: int = n, size: int = size, channels: int = channels, stride: int = stride
        ) -> Value:
            x = c.input("x", TensorType((n, size, size, channels)))
            op = tfl.DepthwiseConv2D((stride, stride), "SAME")
            return c(op, x, weight(c, form, 1, 3, 3, channels), bias(c, channels))

        macs, shape = n * (size // stride) ** 2 * 9 * channels, f"{n}x{size}x{size}x{channels} 3x3/{stride}"
        for form in ("depthwise.constant", "depthwise.runtime"):
            cases.append(Case(form, shape, macs, lambda c, f=form, e=depthwise: e(c, f)))
    return cases


def integers() -> list[Case]:
    """The same layers with int8 weights, between int8 activations (`int8`) and float32 ones (`dynamic`)."""
    rng, of_x, of_y = np.random.default_rng(0), of_range(-4, 4), of_range(-40, 40)
    layers: list[tuple[str, str, tfl.Builtin, tuple[int, ...], tuple[int, ...]]] = []
    for m, k, n in ((256, 256, 256), (128, 64, 512), (392, 96, 64)):
        layers.append(("fully_connected", f"{m}x{k}x{n}", tfl.FullyConnected(), (m, k), (n, k)))
    for n, size, k, i, o in ((1, 32, 3, 32, 32), (2, 14, 3, 64, 64), (1, 28, 1, 96, 32), (2, 7, 1, 160, 320)):
        shape = f"{n}x{size}x{size}x{i}->{o} {k}x{k}"
        layers.append(("conv", shape, tfl.Conv2D(), (n, size, size, i), (o, k, k, i)))
    for n, size, channels, stride in ((2, 28, 192, 1), (2, 14, 384, 2)):
        shape, x = f"{n}x{size}x{size}x{channels} 3x3/{stride}", (n, size, size, channels)
        layers.append(("depthwise", shape, tfl.DepthwiseConv2D((stride, stride)), x, (1, 3, 3, channels)))
    cases = []
    for kind, shape, op, x, w in layers:
        axis = 3 if kind == "depthwise" else 0
        of_w, stored = of_weight(rng.standard_normal(w), axis)
        of_b, zeros = of_bias(np.zeros(w[axis]), of_x, of_w)

        def int8(c: Lowering, op=op, x=x, of_w=of_w, stored=stored, of_b=of_b, zeros=zeros) -> Value:  # type: ignore[no-untyped-def]
            operands = c.input("x", TensorType(x, INT8, of_x)), c.quantized(stored, of_w), c.quantized(zeros, of_b)
            return c(tfl.Int8((of_x, of_w, of_b), op, of_y), *operands)

        def dynamic(c: Lowering, op=op, x=x, of_w=of_w, stored=stored) -> Value:  # type: ignore[no-untyped-def]
            operands = c.input("x", TensorType(x)), c.quantized(stored, of_w), bias(c, len(of_w.scales))
            return c(tfl.DynamicRange((None, of_w, None), op), *operands)

        types = TensorType(x), TensorType(w), TensorType((w[axis],))
        work = op.cost(types, (op.infer(*types),)).flops // 2  # type: ignore[arg-type]
        cases.append(Case(f"{kind}.int8", shape, work, int8))
        if kind != "depthwise":
            cases.append(Case(f"{kind}.dynamic", shape, work, dynamic))
    return cases


def movements() -> list[Case]:
    """What moves [images, side, side, 64]: small enough for the cache, and `beyond` it."""
    cases = []
    for images, place in ((1, ""), (32, " beyond")):
        side, channels = 28, 64
        kind = TensorType((images, side, side, channels))
        n = kind.nbytes

        def delegated(c: Lowering, kind: TensorType = kind) -> Value:
            x, y = c.input("x", kind), c.input("y", kind)
            for _ in range(8):
                x = c(tfl.Mul(), x, y)
            return x

        def window(c: Lowering, kind: TensorType = kind) -> Value:
            size = (kind.shape[0], kind.shape[1] - 2, kind.shape[2] - 2, kind.shape[3])
            return c(tfl.Slice((0, 1, 1, 0), size), c.input("x", kind))

        def planes(c: Lowering, kind: TensorType = kind) -> Value:
            images, rows, columns, channels = kind.shape
            x = c.reshape(c.input("x", kind), (images * rows // 2, 2, columns // 2, 2, channels))
            return c(tfl.Transpose((3, 1, 0, 2, 4)), x)

        def transpose(c: Lowering, kind: TensorType = kind) -> Value:
            return c(tfl.Transpose((1, 0)), c.reshape(c.input("x", kind), (kind.size // kind.shape[3], kind.shape[3])))

        def packed(c: Lowering, kind: TensorType = kind) -> Value:
            matrix = c.reshape(c.input("x", kind), (kind.size // 512, 512))
            return c(tfl.BatchMatmul(), c.input("row", TensorType((1, matrix.shape[0]))), matrix)

        def compare(c: Lowering, kind: TensorType = kind) -> Value:
            return c(tfl.Greater(), c.input("x", kind), 0.0)

        def select(c: Lowering, kind: TensorType = kind) -> Value:
            x, y = c.input("x", kind), c.input("y", kind)
            return c(tfl.SelectV2(), c(tfl.Greater(), y, 0.0), x, 0.0)

        shape = f"{images}x{side}x{side}x{channels}"
        cases.append(Case(f"delegated{place}", f"{shape} MUL", 8 * 3 * n, delegated))
        cases.append(Case(f"delegated{place}", f"{shape} SLICE", 2 * n * (side - 2) ** 2 // side**2, window))
        cases.append(Case(f"shuffled{place}", f"{shape} planes", 2 * n, planes))
        cases.append(Case(f"transpose{place}", shape, 2 * n, transpose))
        cases.append(Case(f"packed{place}", f"{shape} as [k, 512]", n, packed))
        cases.append(Case(f"compare{place}", shape, n + n // 4, compare))
        cases.append(Case(f"compare + select{place}", shape, 3 * n + n // 2, select))
    return cases


def graph_of(case: Case) -> Graph:
    """The operators of a case."""
    c = Lowering(NO_TARGET)
    c.graph.outputs = {"y": case.emit(c)}
    return c.graph


def built(case: Case) -> bytes:
    """The `.tflite` of a case, with one signature `main`."""
    return emit([Subgraph("main", graph_of(case))], {}, case.form)


def priced(case: Case, like: Target) -> float:
    """The work of a case as a target counts it: of a figure of the table so many make the cost."""
    figure = like.per_mac.get(case.form)
    return case.work if figure is None else step_cost(graph_of(case), like) / figure


def nanoseconds(data: bytes, xnnpack: bool) -> float:
    """Best time of one run on this machine, one thread."""
    kind = OpResolverType.AUTO if xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, num_threads=1, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    rng = np.random.default_rng(1)
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], rng.standard_normal(detail["shape"]).astype(detail["dtype"]))
    times, end = [], time.perf_counter() + 0.3
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        interpreter.invoke()
        times.append(time.perf_counter() - start)
    return min(times) * 1e9


def instructions(cases: list[Case], emulator: Emulator) -> list[float]:
    """Instructions of one run of each on arm64, under emulation."""
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / f"{i}.tflite" for i in range(len(cases))]
        for file, case in zip(files, cases, strict=True):
            file.write_bytes(built(case))
        return [float(count) for count in emulator.instructions(*map(str, files))]


def main() -> None:
    """Measures all cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm64", type=Path, help="count instructions with the emulated Python of this folder")
    parser.add_argument("--library", choices=LIBRARIES, default="litert", help="of that folder")
    parser.add_argument("--cpu", default="cortex-a76", help="which arm64 core's kernels run")
    parser.add_argument("--builtin", action="store_true", help="without XNNPACK")
    parser.add_argument("--only", nargs="+", default=[""], help="forms whose name contains one of these")
    parser.add_argument("--table", type=Path, help="write a target's table with the figures measured")
    parser.add_argument(
        "--like",
        choices=[name for name, text in tables().items() if "like" not in tomllib.loads(text)],
        help="the target whose table gives what was not measured",
    )
    options = parser.parse_args()
    unit = "instructions" if options.arm64 else "ns"
    table = Table("form", f"{unit} per MAC or byte", "by shape")
    cases = [*products(), *convolutions(), *integers(), *movements()]
    cases = [case for case in cases if any(part in case.form for part in options.only)]
    if options.arm64:
        measured = instructions(cases, Emulator(options.arm64, options.library, options.cpu, not options.builtin))
    else:
        measured = [nanoseconds(built(case), not options.builtin) for case in cases]
    known = tables()
    like = options.like or ("litert-2" if options.arm64 else "litert-2/x86-64")
    costs: dict[str, list[tuple[str, float]]] = {}
    for case, cost in zip(cases, measured, strict=True):
        costs.setdefault(case.form, []).append((case.shape, cost / priced(case, find_target(like))))
    medians = {form: statistics.median(cost for _, cost in by_shape) for form, by_shape in costs.items()}
    for form, by_shape in costs.items():
        table.add_row(form, f"{medians[form]:.4f}", ", ".join(f"{shape}: {cost:.4f}" for shape, cost in by_shape))
    Console().print(table)
    if options.table:
        where = options.cpu if options.arm64 else machine()["cpu"]
        options.table.write_text(fitted(known[like], medians, options.table, unit, where))


if __name__ == "__main__":
    main()
