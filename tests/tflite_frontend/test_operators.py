"""Operators of files, one by one: results against the stock interpreter's, derivatives against differences of its."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from converter.frontends.tflite.importer import Importer
from converter.frontends.tflite.reading.file import read_file
from converter.ir import evaluate
from converter.ir.builder import Builder
from converter.passes.autodiff.reverse import pull_back
from tests.tflite_frontend.written import Operator, file_of


def ints(*numbers: Any) -> np.ndarray:
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.int32)


def floats(*shape: int, seed: int = 1, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


class Case:
    """One operator behind a float32 input x.

    Args:
        kind: the builtin.
        shape: of x.
        others: constant operands by name; x is the first operand, unless `operands` says otherwise.
        result: shape and type of the result y, or of several.
        options: the options table and its fields.
        operands: names in order.
        low, high: of the numbers that x is given.
        differentiable: whether derivatives are compared.
    """

    def __init__(
        self,
        kind: str,
        shape: tuple[int, ...],
        result: Any,
        others: dict[str, np.ndarray] | None = None,
        options: tuple[str, dict[str, Any]] | None = None,
        operands: tuple[str, ...] | None = None,
        low: float = -1.0,
        high: float = 1.0,
        differentiable: bool = True,
    ) -> None:
        self.kind, self.shape, self.low, self.high, self.differentiable = kind, shape, low, high, differentiable
        results = result if isinstance(result, list) else [result]
        typed = [(r, "float32") if not r or isinstance(r[0], int) else r for r in results]
        names = [f"y{i}" if i else "y" for i in range(len(typed))]
        others = others or {}
        tensors = {"x": (shape, "float32"), **others, **dict(zip(names, typed, strict=True))}
        operator: Operator = (kind, operands or ("x", *others), names, options)
        self.data = file_of(tensors, [operator], outputs=names)


PAD = {"p": ints([[0, 0], [1, 2], [2, 1], [0, 0]])}
CASES = {
    "unpack": Case("UNPACK", (1, 3, 2), [(1, 2)] * 3, options=("UnpackOptions", {"num": 3, "axis": 1})),
    "pack": Case("PACK", (1, 3), (1, 2, 3), {"c": floats(1, 3)}, ("PackOptions", {"valuesCount": 2, "axis": 1})),
    "split": Case("SPLIT", (1, 6, 2), [(1, 2, 2)] * 3, {"a": ints(1)}, ("SplitOptions", {"numSplits": 3}), ("a", "x")),
    "split-v": Case(
        "SPLIT_V", (1, 6), [(1, 1), (1, 5)], {"s": ints(1, -1), "a": ints(1)}, ("SplitVOptions", {"numSplits": 2})
    ),
    "mirror-reflect": Case("MIRROR_PAD", (1, 4, 4, 1), (1, 7, 7, 1), PAD, ("MirrorPadOptions", {"mode": 0})),
    "mirror-symmetric": Case("MIRROR_PAD", (1, 4, 4, 1), (1, 7, 7, 1), PAD, ("MirrorPadOptions", {"mode": 1})),
    "reverse": Case("REVERSE_V2", (1, 3, 2), (1, 3, 2), {"a": ints([1])}, ("ReverseV2Options", {})),
    "cumsum": Case("CUMSUM", (1, 4), (1, 4), {"a": ints(1)}, ("CumsumOptions", {})),
    "cumsum-exclusive-reverse": Case(
        "CUMSUM", (1, 4), (1, 4), {"a": ints(1)}, ("CumsumOptions", {"exclusive": True, "reverse": True})
    ),
    "space-to-batch": Case(
        "SPACE_TO_BATCH_ND",
        (1, 3, 4, 2),
        (4, 2, 3, 2),
        {"b": ints(2, 2), "p": ints([[0, 1], [1, 1]])},
        ("SpaceToBatchNDOptions", {}),
    ),
    "batch-to-space": Case(
        "BATCH_TO_SPACE_ND",
        (4, 2, 2, 1),
        (1, 3, 3, 1),
        {"b": ints(2, 2), "p": ints([[1, 0], [0, 1]])},
        ("BatchToSpaceNDOptions", {}),
    ),
    "depth-to-space": Case(
        "DEPTH_TO_SPACE", (1, 2, 2, 8), (1, 4, 4, 2), None, ("DepthToSpaceOptions", {"blockSize": 2})
    ),
    "space-to-depth": Case(
        "SPACE_TO_DEPTH", (1, 4, 4, 1), (1, 2, 2, 4), None, ("SpaceToDepthOptions", {"blockSize": 2})
    ),
    "lrn": Case(
        "LOCAL_RESPONSE_NORMALIZATION",
        (1, 2, 2, 5),
        (1, 2, 2, 5),
        None,
        ("LocalResponseNormalizationOptions", {"radius": 1, "bias": 1.5, "alpha": 0.7, "beta": 0.6}),
    ),
    **{
        f"fake-quant-{bits}-{low}": Case(
            "FAKE_QUANT",
            (1, 40),
            (1, 40),
            None,
            ("FakeQuantOptions", {"min": low, "max": high, "numBits": bits}),
            low=-3,
            high=3,
            differentiable=False,
        )
        for bits, low, high in ((8, -1.1, 2.3), (4, 0.0, 2.0), (16, -2.5, 0.0))
    },
    "gather": Case("GATHER", (1, 4, 3), (1, 2, 3), {"i": ints(3, 1)}, ("GatherOptions", {"axis": 1})),
    "gather-batch": Case(
        "GATHER",
        (2, 4, 3),
        (2, 3, 3),
        {"i": ints([[0, 3, 3], [1, 1, 2]])},
        ("GatherOptions", {"axis": 1, "batchDims": 1}),
    ),
    "gather-behind-batch": Case(
        "GATHER", (2, 3, 4), (2, 3, 2), {"i": ints([[0, 3], [1, 2]])}, ("GatherOptions", {"axis": 2, "batchDims": 1})
    ),
    "gather-nd": Case("GATHER_ND", (2, 3, 2), (2, 2), {"i": ints([[0, 2], [1, 1]])}, ("GatherNdOptions", {})),
    "scatter-nd": Case(
        "SCATTER_ND",
        (3, 2),
        (4, 2),
        {"i": ints([[1], [3], [1]]), "s": ints(4, 2)},
        ("ScatterNdOptions", {}),
        ("i", "x", "s"),
    ),
    "one-hot": Case(
        "ONE_HOT",
        (1,),
        (2, 3),
        {"i": ints(2, 0), "d": ints(3), "on": np.array(0.5, np.float32), "off": np.array(-1, np.float32)},
        ("OneHotOptions", {"axis": -1}),
        ("i", "d", "on", "off"),
        differentiable=False,
    ),
    "top-k": Case("TOPK_V2", (1, 5), [(1, 2), ((1, 2), "int32")], {"k": ints(2)}, ("TopKV2Options", {})),
    "embedding": Case("EMBEDDING_LOOKUP", (4, 3), (2, 3), {"i": ints(3, 0)}, None, ("i", "x")),
    "update-slice": Case(
        "DYNAMIC_UPDATE_SLICE",
        (1, 4),
        (1, 4),
        {"u": floats(1, 2), "s": ints(0, 3)},
        ("DynamicUpdateSliceOptions", {}),
    ),
    "select-rows": Case(
        "SELECT",
        (2, 3),
        (2, 3),
        {"c": np.array([True, False]), "o": floats(2, 3)},
        ("SelectOptions", {}),
        ("c", "x", "o"),
    ),
    "select-v2": Case(
        "SELECT_V2",
        (2, 3),
        (2, 3),
        {"c": np.array([[True], [False]]), "o": floats(3)},
        ("SelectV2Options", {}),
        ("c", "o", "x"),
    ),
    "tile": Case("TILE", (1, 2), (2, 6), {"m": ints(2, 3)}, ("TileOptions", {})),
    "broadcast-to": Case("BROADCAST_TO", (1, 2), (3, 2), {"s": ints(3, 2)}, ("BroadcastToOptions", {})),
    "reduce-prod": Case("REDUCE_PROD", (1, 3, 2), (1, 2), {"a": ints([1])}, ("ReducerOptions", {"keepDims": False})),
    "arg-min": Case(
        "ARG_MIN", (1, 4), ((1,), "int32"), {"a": ints(1)}, ("ArgMinOptions", {"outputType": 2}), differentiable=False
    ),
    "floor-div": Case(
        "FLOOR_DIV",
        (1, 4),
        (1, 4),
        {"c": np.full((1, 4), 0.3, np.float32)},
        ("FloorDivOptions", {}),
        differentiable=False,
    ),
    "floor-mod": Case("FLOOR_MOD", (1, 4), (1, 4), {"c": np.full((1, 4), 0.3, np.float32)}, ("FloorModOptions", {})),
    "ceil": Case("CEIL", (1, 4), (1, 4), differentiable=False),
    "atan2": Case("ATAN2", (1, 4), (1, 4), {"c": floats(1, 4, seed=3)}, ("ATan2Options", {})),
    "l2-pool": Case(
        "L2_POOL_2D",
        (1, 4, 4, 1),
        (1, 2, 2, 1),
        None,
        ("Pool2DOptions", {"padding": 1, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2}),
    ),
    "l2-norm": Case("L2_NORMALIZATION", (1, 4), (1, 4), None, ("L2NormOptions", {})),
    "grouped-conv": Case(
        "CONV_2D",
        (1, 3, 3, 4),
        (1, 3, 3, 6),
        {"w": floats(6, 2, 2, 2), "b": floats(6, seed=2)},
        ("Conv2DOptions", {"padding": 0, "strideH": 1, "strideW": 1}),
    ),
    "transpose-conv": Case(
        "TRANSPOSE_CONV",
        (1, 2, 2, 2),
        (1, 4, 4, 3),
        {"s": ints(1, 4, 4, 3), "w": floats(3, 3, 3, 2), "b": floats(3, seed=2)},
        ("TransposeConvOptions", {"padding": 0, "strideH": 2, "strideW": 2}),
        ("s", "w", "x", "b"),
    ),
    "matmul-adj": Case(
        "BATCH_MATMUL", (1, 2, 3), (1, 2, 4), {"w": floats(4, 3)[None]}, ("BatchMatMulOptions", {"adjY": True})
    ),
    "matmul-broadcast": Case("BATCH_MATMUL", (2, 2, 3), (2, 2, 4), {"w": floats(3, 4)}, ("BatchMatMulOptions", {})),
    "matmul-left": Case(
        "BATCH_MATMUL", (1, 3, 2), (1, 4, 2), {"w": floats(1, 3, 4)}, ("BatchMatMulOptions", {"adjX": True}), ("w", "x")
    ),
    "dense-3d": Case(
        "FULLY_CONNECTED",
        (1, 2, 3),
        (1, 2, 4),
        {"w": floats(4, 3), "b": floats(4)},
        ("FullyConnectedOptions", {"keepNumDims": True}),
    ),
    "relu-0-1": Case("RELU_0_TO_1", (1, 6), (1, 6), low=-2, high=2),
    "prelu": Case("PRELU", (1, 2, 2, 3), (1, 2, 2, 3), {"a": floats(1, 1, 3)}),
    "strided-new-axis": Case(
        "STRIDED_SLICE",
        (1, 3, 4),
        (1, 3, 1, 2),
        {"b": ints(0, 0, 0, 1), "e": ints(1, 3, 0, 4), "s": ints(1, 1, 1, 2)},
        ("StridedSliceOptions", {"newAxisMask": 4}),
    ),
    "strided-ellipsis": Case(
        "STRIDED_SLICE",
        (1, 3, 4),
        (1, 3, 2),
        {"b": ints(0, 1), "e": ints(0, 3), "s": ints(1, 1)},
        ("StridedSliceOptions", {"ellipsisMask": 1}),
    ),
}


def interpreted(data: bytes) -> Any:
    """Return the file as a function of x, in the stock interpreter's plain kernels."""
    runtime = Interpreter(
        model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    runtime.allocate_tensors()
    (given,) = runtime.get_input_details()

    def call(x: np.ndarray) -> list[np.ndarray]:
        runtime.set_tensor(given["index"], x)
        runtime.invoke()
        return [runtime.get_tensor(details["index"]) for details in runtime.get_output_details()]

    return call


def imported(data: bytes, tmp_path: Path) -> Any:
    """Return the graph of a file for its own rows."""
    path = tmp_path / "net.tflite"
    path.write_bytes(data)
    file = read_file(path)
    importer = Importer(file, 1, {})
    graph = importer.run(list(file.outputs.values()))
    graph.outputs = {name: importer.value(number) for name, number in file.outputs.items()}
    return graph


def differences(call: Any, x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """Return the derivative of the weighed sum of float results, by central differences."""
    found, width = np.zeros(x.size), 4e-3
    for i in range(x.size):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved.reshape(-1)[i] += sign * width
            ends.append(sum(float((y.astype(np.float64) * w).sum()) for y, w in zip(call(moved), weights, strict=True)))
        found[i] = (ends[0] - ends[1]) / (2 * width)
    return found.reshape(x.shape)


def test_gradients_of_fake_quantization_are_those_of_tensorflow(tmp_path: Path) -> None:
    """1 between the ends, which are moved so that zero is among the numbers, and 0 beyond them."""
    tf = pytest.importorskip("tensorflow")
    for bits, low, high in ((8, -1.1, 2.3), (4, 0.0, 2.0), (4, -1.0, 0.33)):
        options = ("FakeQuantOptions", {"min": low, "max": high, "numBits": bits})
        graph = imported(Case("FAKE_QUANT", (1, 400), (1, 400), None, options).data, tmp_path)
        x, dy = floats(1, 400, low=-3, high=3), floats(1, 400, seed=2)
        b = Builder(graph.copy())
        backward, gradients = pull_back(b.graph, {next(iter(graph.outputs.values())): b.constant(dy)}, graph.inputs)
        backward.outputs = {"g": gradients[graph.inputs[0]]}
        expected = tf.quantization.fake_quant_with_min_max_args_gradient(dy, x, low, high, bits).numpy()
        found = evaluate(backward, [x])[0]["g"]
        np.testing.assert_array_equal(found, expected)
        assert 0 < np.count_nonzero(found) < found.size


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_the_interpreter_makes_of_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    graph = imported(case.data, tmp_path)
    x = floats(*case.shape, seed=5, low=case.low, high=case.high)
    call = interpreted(case.data)
    expected = [y.copy() for y in call(x)]
    fed = [x] if graph.inputs else []
    found = list(evaluate(graph, fed)[0].values())
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.reshape(b.shape), b, rtol=1e-5, atol=1e-6)
    if case.differentiable:
        weights = [
            floats(*y.shape, seed=9 + i) if y.dtype == np.float32 else np.zeros(y.shape) for i, y in enumerate(expected)
        ]
        b = Builder(graph.copy())
        results = [v for v in graph.outputs.values() if v.dtype == np.float32]
        seeds = {v: b.constant(w) for v, w in zip(results, weights, strict=False)}
        backward, gradients = pull_back(b.graph, seeds, graph.inputs)
        backward.outputs = {"g": gradients[graph.inputs[0]]}
        np.testing.assert_allclose(evaluate(backward, fed)[0]["g"], differences(call, x, weights), rtol=2e-3, atol=2e-3)
