"""Hostile files: they are refused with a sentence, and take neither time nor memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.frontends import tflite as tflite_frontend
from converter.frontends.tflite import importer, runtime_shapes, trial
from converter.support.errors import PocketuneError
from converter.support.litert import Interpreter
from tests.tflite_frontend import shared_tables
from tests.tflite_frontend.mutations import mutated
from tests.tflite_frontend.quantised_nets import quantised_nets
from tests.tflite_frontend.test_quantised import edited
from tests.tflite_frontend.test_recurrent import lstm
from tests.tflite_frontend.written import Operator, file_of

HUGE = 1 << 30
X = {"x": ((1, 4), "float32"), "y": ((1, 4), "float32")}


def of(kind: str, operands: tuple[str, ...], options: Any, shape: tuple[int, ...] = (1, 4), **constants: Any) -> bytes:
    """One operator, and the sum of what it makes and x."""
    tensors = {**X, **{k: np.asarray(v) for k, v in constants.items()}, "made": (shape, "float32")}
    operators: list[Operator] = [
        (kind, operands, ("made",), options),
        ("ADD", ("x", "made"), ("y",), ("AddOptions", {})),
    ]
    return file_of(tensors, operators)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def overlapping(tensors: int) -> bytes:
    """Many constants of one buffer: each a part of a sum."""

    def share(model: Any) -> None:
        graph = model.subgraphs[0]
        for tensor in graph.tensors[2 : 2 + tensors]:
            tensor.buffer = graph.tensors[2].buffer

    given: dict[str, Any] = {**X, **{f"c{i}": np.full((1, 4), i, np.float32) for i in range(tensors)}}
    given["c0"] = np.zeros((1, 1 << 18), np.float32)
    model = edited(file_of(given, [("ADD", ("x", "c1"), ("y",), ("AddOptions", {}))]), share)
    return edited(model, lambda model: [setattr(t, "shape", [1, 1 << 18]) for t in model.subgraphs[0].tensors[2:]])


def changed(field: str, value: Any) -> bytes:
    """The first operator's results, or its operands, are others."""
    return edited(
        quantised_nets()["int8"], lambda model: setattr(model.subgraphs[0].operators[0], field, np.array(value))
    )


FILES = {
    "constants that overlap": lambda: overlapping(200),
    "fill": lambda: of("FILL", ("d", "v"), ("FillOptions", {}), d=ints(1 << 15, 1 << 15), v=np.float32(1)),
    "pad": lambda: of("PAD", ("c", "w"), ("PadOptions", {}), c=np.zeros((1, 4), np.float32), w=[ints(HUGE, HUGE)] * 2),
    "range": lambda: of("RANGE", ("a", "b", "s"), ("RangeOptions", {}), a=ints(0), b=ints(HUGE), s=ints(1)),
    "tile": lambda: of("TILE", ("c", "m"), None, c=np.zeros((1, 4), np.float32), m=ints(HUGE, 1)),
    "mirror": lambda: of("MIRROR_PAD", ("x", "w"), ("MirrorPadOptions", {}), w=[ints(0, 0), ints(HUGE, HUGE)]),
    "one hot": lambda: of(
        "ONE_HOT",
        ("i", "n", "on", "off"),
        ("OneHotOptions", {"axis": -1}),
        i=ints(1),
        n=ints(HUGE)[0],
        on=np.float32(1),
        off=np.float32(0),
    ),
    "split": lambda: of("SPLIT", ("a", "x"), ("SplitOptions", {"numSplits": HUGE}), a=ints(1)[0]),
    "reads itself": lambda: file_of(X, [("ADD", ("y", "x"), ("y",), ("AddOptions", {}))]),
    "cycle": lambda: file_of(
        {**X, "z": ((1, 4), "float32")},
        [("ADD", ("x", "z"), ("y",), ("AddOptions", {})), ("ADD", ("x", "y"), ("z",), ("AddOptions", {}))],
    ),
    "no such operand": lambda: changed("inputs", [10**6, 1, 2]),
    "too few operands": lambda: changed("inputs", [0]),
    "no results": lambda: changed("outputs", np.zeros(0, np.int32)),
}


@pytest.mark.parametrize("kind", FILES)
def test_it_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(FILES[kind]())
    for rows in (1, 2):
        with pytest.raises(PocketuneError):
            tflite_frontend.Model(path).graph(rows)


@pytest.mark.parametrize("subgraph", [0, 1])
def test_a_variable_with_contents_is_refused_as_the_runtime_refuses_it(subgraph: int, tmp_path: Path) -> None:
    tensors: dict[str, Any] = {**X, "c": np.ones((1, 4), np.float32)}
    graph: Any = (tensors, [("ADD", ("x", "c"), ("y",), ("AddOptions", {}))], ("x",), ("y",))
    whole = file_of(*graph, bodies=[graph])
    data = edited(whole, lambda model: setattr(model.subgraphs[subgraph].tensors[2], "isVariable", True))
    Interpreter(model_content=whole)
    with pytest.raises(ValueError, match="is a variable tensor with buffer"):
        Interpreter(model_content=data)
    (tmp_path / "net.tflite").write_bytes(data)
    with pytest.raises(PocketuneError, match="the tensor c is a variable and has contents"):
        tflite_frontend.Model(tmp_path / "net.tflite").graph(1)


def test_what_goes_round_in_circles_behind_the_last_layer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(file_of(X, [("RESHAPE", ("y",), ("y",), ("ReshapeOptions", {}))]))
    with pytest.raises(PocketuneError, match=r"damaged.*: copy it again"):
        tflite_frontend.Model(path, classes=3).graph(1)


@pytest.mark.parametrize("kind", shared_tables.KINDS)
def test_few_bytes_that_stand_for_very_many_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(shared_tables.shared(kind))
    with pytest.raises(PocketuneError, match="more than"):
        tflite_frontend.Model(path).graph(1)


def test_a_file_of_the_same_tables_that_shares_none_is_read(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(shared_tables.shared("nothing"))
    tflite_frontend.Model(path).graph(1)


def test_branches_that_run_branches_are_no_more_than_a_net_has(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {"going": np.array([True]), "x": ((1, 4), "float32")}
    tensors |= {f"y{i}": ((1, 4), "float32") for i in range(4)}

    def branches(number: int) -> list[Operator]:
        options = ("IfOptions", {"thenSubgraphIndex": number, "elseSubgraphIndex": number})
        return [("IF", ("going", "x"), (f"y{i}",), options) for i in range(4)]

    last: list[Operator] = [("ADD", ("x", "x"), ("y0",), ("AddOptions", {}))]
    bodies: list[Any] = [(tensors, branches(k), ("x",), ("y0",)) for k in range(2, 8)]
    path = tmp_path / "net.tflite"
    path.write_bytes(file_of(tensors, branches(1), outputs=("y0",), bodies=[*bodies, (tensors, last, ("x",), ("y0",))]))
    with pytest.raises(PocketuneError, match="more than 16384 operators"):
        tflite_frontend.Model(path).graph(1)


def test_loops_of_loops_that_are_known_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a loop is a loop, of numbers that are all known: nothing of it is left to compute."""
    monkeypatch.setattr(importer, "_MOST_RUN", 1 << 12)  # in less time
    counted = {"i": ((), "int32"), "x": ((1, 4), "float32")}
    constants = {"one": np.int32(1), "most": np.int32(200), "zero": np.int32(0)}
    made = {"j": ((), "int32"), "k": ((), "int32"), "y": ((1, 4), "float32"), "going": ((), "bool")}
    tensors: dict[str, Any] = {**counted, **constants, **made}
    condition: list[Operator] = [("LESS", ("i", "most"), ("going",), None)]
    add: list[Operator] = [("ADD", ("i", "one"), ("k",), ("AddOptions", {}))]
    loop = ("WhileOptions", {"condSubgraphIndex": 1})

    def step(body: int) -> list[Operator]:
        options = (loop[0], {**loop[1], "bodySubgraphIndex": body})
        return [*add, ("WHILE", ("zero", "x"), ("j", "y"), options)]

    bodies: list[Any] = [(tensors, condition, ("i", "x"), ("going",))]
    bodies += [(tensors, step(k), ("i", "x"), ("k", "y")) for k in (3, 4)]
    bodies += [(tensors, add, ("i", "x"), ("k", "x"))]
    path = tmp_path / "net.tflite"
    path.write_bytes(file_of(tensors, step(2)[1:], bodies=bodies))
    with pytest.raises(PocketuneError, match="WHILE"):
        tflite_frontend.Model(path).graph(1)


def test_constants_that_grow_step_by_step_are_refused(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {**X, "c0": np.zeros((1 << 20, 1), np.float32)}
    operators: list[Operator] = []
    for i in range(3):
        tensors[f"c{i + 1}"] = ((1 << 22 + 2 * i, 1), "float32")
        operators.append(("CONCATENATION", (f"c{i}",) * 4, (f"c{i + 1}",), ("ConcatenationOptions", {"axis": 0})))
    operators.append(("ADD", ("x", "c3"), ("y",), ("AddOptions", {})))
    path = tmp_path / "net.tflite"
    path.write_bytes(file_of(tensors, operators))
    with pytest.raises(PocketuneError, match="Concat that makes 67108864 numbers"):
        tflite_frontend.Model(path).graph(1)


def test_the_runtime_is_asked_once_for_the_shapes_of_all_that_it_alone_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors: dict[str, Any] = {"x": ((1, 4), "float32"), **{f"y{i}": ((1, 4), "float32") for i in range(100)}}
    tensors["lengths"], turn = np.array([4], np.int32), ("ReverseSequenceOptions", {"seqDim": 1})
    operators = [("REVERSE_SEQUENCE", (f"y{i - 1}" if i else "x", "lengths"), (f"y{i}",), turn) for i in range(100)]
    path, asked = tmp_path / "net.tflite", list[int]()
    path.write_bytes(file_of(tensors, operators, outputs=("y99",)))

    def shapes_of(*given: Any) -> Any:
        asked.append(1)
        return trial.shapes_of(*given)

    monkeypatch.setattr(runtime_shapes, "shapes_of", shapes_of)
    tflite_frontend.Model(path).graph(1)
    assert len(asked) == 1


def test_operators_that_only_the_runtime_knows_have_no_more_memory_than_reading_may_take(tmp_path: Path) -> None:
    shape, turn = (1, 1 << 27), ("ReverseSequenceOptions", {"seqDim": 1})
    tensors: dict[str, Any] = {"x": (shape, "float32"), "y": (shape, "float32"), "n": np.array([4], np.int32)}
    path = tmp_path / "net.tflite"
    path.write_bytes(file_of(tensors, [("REVERSE_SEQUENCE", ("x", "n"), "y", turn)]))
    with pytest.raises(PocketuneError, match=r"the stock runtime .* 768 MiB"):
        tflite_frontend.Model(path).graph(1)


@pytest.mark.slow
def test_no_mutated_file_crashes_or_hangs_or_fills_the_memory(tmp_path: Path) -> None:
    """1500 cases in processes of their own, of which 15 are built and run a step."""
    paths = [tmp_path / f"{form}.tflite" for form in ("int8", "dynamic", "spectral", "loop", "loop_dynamic")]
    for path in paths:
        path.write_bytes(quantised_nets()[path.stem])
    command = [sys.executable, "-m", "tests.tflite_frontend.mutated", *map(str, paths), "--cases", "1500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout[-3000:]


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    """The first of many: `python -m tests.tflite_frontend.mutated` goes on."""
    path = tmp_path / "net.tflite"
    files = [quantised_nets()["int8"], quantised_nets()["loop"], lstm()]
    read = 0
    for number in range(90):
        path.write_bytes(mutated(files[number % len(files)], number))
        try:
            tflite_frontend.Model(path, classes=(None, 3)[number % 2]).graph(1 + number % 4 // 2)
            read += 1
        except PocketuneError:
            continue
    assert 0 < read < 60
