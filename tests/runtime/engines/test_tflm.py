"""Programs in TensorFlow Lite Micro: their steps are those of LiteRT, or they are refused by a sentence."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend import legalize as avoid
from converter.backend.emit.emit import Subgraph, emit
from converter.backend.lowering.state import with_own_results
from converter.backend.schedule.micro_arena import micro_arena
from converter.backend.targets import target
from converter.ir import INT32, Builder, Graph, TensorType, evaluate
from converter.program.file import read_program
from converter.program.layers import Layers
from converter.runtime.engines import engine
from converter.runtime.engines.engine import Refusal
from converter.runtime.engines.work import Task
from converter.support.errors import UnsupportedError, UsageError
from tests.backend.builtins.cases import all_cases
from tests.backend.stock import file, interpreter, one_op
from tests.runtime.engines.micro_nets import NETS, Net, keyword_net
from tests.runtime.engines.tflm_steps import steps_in_tflm

TFLM = target("tflm")

MISSING = engine("tflm").missing()
with_wheel = pytest.mark.skipif(MISSING is not None, reason=f"tflm: {MISSING}")
STEPS, BATCH = 20, 4
#: How far a result may be from LiteRT's, of the largest number or of 1.
CLOSE = 1e-6
RULES: dict[str, Any] = {
    "sgd": optax.sgd(0.05),
    "momentum": optax.sgd(0.02, momentum=0.9),
    "adam": optax.adam(1e-3),
    "adamw": optax.adamw(1e-3),
    "rmsprop": optax.rmsprop(1e-3),
    "adagrad": optax.adagrad(0.01),
    "lion": optax.lion(1e-3),
}
SCHEMES: dict[str, Any] = {
    "head": "head",
    "full": "full",
    "half": {"head/*": 1, "*": 0.5},
    "biases": {"head/*": 1, "*/b": 1},
}


@dataclass(frozen=True)
class Case:
    """A program."""

    net: str
    scheme: str
    rule: str
    loss: str

    def __str__(self) -> str:
        return "-".join((self.net, self.scheme, self.rule, self.loss))


def cases() -> Iterator[Case]:
    """Every net with every rule, each time by another scheme and loss."""
    for place, net in enumerate(NETS):
        losses = NETS[net]().losses
        for number, rule in enumerate(RULES):
            scheme = list(SCHEMES)[(place + number) % len(SCHEMES)]
            yield Case(net, scheme, rule, losses[(place + 2 * number) % len(losses)])


def targets_of(net: Net, loss: str, rows: int, rng: np.random.Generator) -> np.ndarray:
    """What the rows are to come to."""
    labels = rng.integers(0, 4, rows)
    if loss == "sparse_categorical_crossentropy":
        return labels.astype(np.int32)
    if loss.endswith("crossentropy"):
        return np.eye(4, dtype=np.float32)[labels]
    width = net.shape[-1] if net.losses != NETS["mlp-relu"]().losses else 4
    return rng.standard_normal((rows, width)).astype(np.float32)


def compared(case: Case, folder: Path) -> float:
    """How far the steps of a program in TensorFlow Lite Micro are from LiteRT's, at most."""
    settings = {"optimizer": RULES[case.rule], "update": SCHEMES[case.scheme], "batch": BATCH}
    return distance(NETS[case.net](), case.loss, folder, **settings)


def distance(net: Net, loss: str, folder: Path, **settings: Any) -> float:
    """How far 20 steps there are from LiteRT's, at most."""
    rng, path = np.random.default_rng(11), folder / "p.tflite"
    converter.build(net.model(), loss=loss, target="tflm", check=False, **settings).write(path)
    program = read_program(path)
    batch = program.manifest.batch
    state = {tensor.tensor: program.initial(tensor) for tensor in program.manifest.state_tensors}
    runner = interpreter(path.read_bytes(), xnnpack=True).get_signature_runner("train")
    given = {
        "learning_rate": np.full(1, program.manifest.learning_rate, np.float32),
        "weight": np.ones(batch, np.float32),
    }
    (name,) = runner.get_input_details().keys() - {*state, *given, "y"}
    rows = [{**given, name: net.rows(batch, rng), "y": targets_of(net, loss, batch, rng)} for _ in range(STEPS)]
    wanted, held = [], dict(state)
    for row in rows:
        made = runner(**{n: array for n, array in (row | held).items() if n in runner.get_input_details()})
        held = {n: made[n] for n in held}
        wanted.append(made)
    found = steps_in_tflm(path, rows, state)
    return max(
        float(np.abs(got[n].astype(np.float64) - want[n]).max() / max(1.0, np.abs(want[n]).max()))
        for got, want in zip(found, wanted, strict=True)
        for n in want
    )


#: Of every rule and most nets one; the others take minutes.
QUICK = {
    "mlp-gelu-biases-adam-categorical_crossentropy",
    "keyword-half-adamw-categorical_crossentropy",
    "autoencoder-half-momentum-mae",
    "attention-full-sgd-categorical_crossentropy",
    "cnn-half-rmsprop-binary_crossentropy",
    "mlp-elu-half-lion-sparse_categorical_crossentropy",
    "mlp-silu-head-adagrad-categorical_crossentropy",
}
SAMPLE = [pytest.param(c, id=str(c), marks=() if str(c) in QUICK else pytest.mark.slow) for c in cases()]


@pytest.mark.quick
@with_wheel
@pytest.mark.parametrize("case", SAMPLE)
def test_steps_are_those_of_litert(case: Case, tmp_path: Path) -> None:
    assert compared(case, tmp_path) <= CLOSE


@with_wheel
@pytest.mark.parametrize("batch", [1, 2])
def test_values_some_channels_at_a_time_are_those_of_litert(batch: int, tmp_path: Path) -> None:
    settings = {"update": {"point3/*": 1, "head/*": 1}, "optimizer": "sgd", "batch": batch}
    assert distance(keyword_net(), "sparse_categorical_crossentropy", tmp_path, **settings) <= CLOSE
    kinds = [place.operator.kind for place in Layers(read_program(tmp_path / "p.tflite")).entry("train").places]
    assert kinds.count("SLICE") > 4  # parts of a filter


def test_the_quick_sample_is_of_cases_with_every_rule() -> None:
    found = [case for case in cases() if str(case) in QUICK]
    assert len(found) == len(QUICK)
    assert {case.rule for case in found} == RULES.keys()


@with_wheel
def test_every_builtin_within_the_limits_runs_there() -> None:
    kinds, tasks, wanted = set(), [], []
    for case in reversed(list(all_cases())):  # the largest ranks first
        graph, feed = one_op(case.op, *case.arrays, constants=case.constants)
        types = [v.type for v in (*graph.nodes[0].inputs, *graph.nodes[0].outputs)]
        kind = (case.op.code, *sorted({t.dtype.name for t in types}), len({t.shape for t in types}) > 1)
        refused = list(avoid.left(graph, TFLM.avoids)) or not TFLM.takes(case.op.code, *split(graph))
        if kind in kinds or refused:
            continue
        kinds.add(kind)
        tasks.append(Task(file(with_own_results(graph)), [("main", feed)]))
        wanted.append((str(case), evaluate(graph, feed)[0]))
    assert len({code for code, *_ in kinds}) > 60
    for (name, outputs), outcome in zip(wanted, engine("tflm").run(tasks), strict=True):
        assert not outcome.error, f"{name}: {outcome.error}"
        for key, want in outputs.items():
            scale = np.abs(want[np.isfinite(want)]).max(initial=1e-3) if want.dtype.kind == "f" else 0
            np.testing.assert_allclose(outcome.results[0][key], want, rtol=1e-5, atol=2e-6 * scale, err_msg=name)


def split(graph: Graph) -> tuple[list[TensorType], list[TensorType]]:
    """The types of what a graph's only operator takes and makes."""
    (node,) = graph.nodes
    return [v.type for v in node.inputs], [v.type for v in node.outputs]


@with_wheel
def test_a_program_is_certified_there_with_int8_too(tmp_path: Path) -> None:
    net, path = NETS["keyword"](), tmp_path / "p.tflite"
    rows = net.rows(32, np.random.default_rng(0))
    for frozen in ({}, {"frozen": "int8", "calibration": {"x": rows}}):
        converter.build(net.model(), optimizer="sgd", update="head", batch=1, target="tflm", **frozen).write(path)
        certificate = converter.certify(path, on="tflm", steps=2)
        assert certificate.ok, certificate.failures
        assert (certificate.engine, certificate.precision) == ("TensorFlow Lite Micro", "float32")
        assert read_program(path).manifest.is_certified("tflm", "TensorFlow Lite Micro", certificate.version)


@with_wheel
def test_a_program_of_another_target_is_refused_by_operator(tmp_path: Path) -> None:
    path = tmp_path / "p.tflite"
    converter.build(NETS["mlp-gelu"]().model(), optimizer="adam", batch=2, state="stateless").write(path)
    certificate = converter.certify(path, on="tflm", steps=1)
    assert not certificate.ok
    told = {failure.operator: failure for failure in certificate.failures}
    assert told.keys() == {"GELU", "POW"}
    assert told["GELU"].what == "refused: it has no GELU"
    assert "--target" in told["GELU"].advice


def test_what_has_no_form_is_refused_with_layer_and_advice() -> None:
    def apply(params: Any, x: jax.Array) -> jax.Array:
        with jax.named_scope("largest"):
            x = jax.lax.top_k(x @ params["w"], 2)[0]
        return x @ params["head"]

    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((4, 6), np.float32), "head": rng.standard_normal((2, 3), np.float32)}
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 4), np.float32)])
    with pytest.raises(UnsupportedError, match=r"largest: tflm has no TOPK_V2") as caught:
        converter.build(model, batch=2, update="head", target="tflm")
    assert caught.value.sites[0].advice == "Compute it by other operators, or build for a newer runtime or the CPU."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"state": "variables"}, "tflm is given the state with each call"),
        ({"frozen": "int4"}, "tflm is not known to read"),
        ({"frozen": "float16"}, "frozen='float16': tflm"),
    ],
)
def test_what_the_target_does_not_take_is_said(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        converter.build(NETS["mlp-relu"]().model(), batch=2, target="tflm", **options)


def test_what_it_writes_is_read() -> None:
    log = """\
Didn't find op for builtin opcode 'POW'
Failed to get registration from op code POW

Type INT32 (2) not supported.
Node NEG (number 3f) failed to invoke with status 1
"""
    assert engine("tflm").refusals("all is well") == []
    assert engine("tflm").refusals(log) == [
        Refusal("", "it has no POW"),
        Refusal("", "NEG: Type INT32 (2) not supported."),
    ]


def with_a_sum_that_nobody_runs() -> bytes:
    """The smallest file that ends the interpreter's process: it plans no scratch memory where no operator leads."""
    first, second = Builder(), Builder()
    first.graph.outputs = {"y": first(tfl.Neg(), first.input("x", TensorType((2,))))}
    second.graph.outputs = {"y": second(tfl.Sum((0,), True), second.input("x", TensorType((2,))))}
    return emit([Subgraph("main", first.graph), Subgraph("other", second.graph, signature=False)], {}, "test")


@with_wheel
def test_reductions_that_the_first_subgraph_does_not_run_end_the_process(tmp_path: Path) -> None:
    """Mended upstream once this fails: then several signatures may stand in one file."""
    path = tmp_path / "p.tflite"
    path.write_bytes(with_a_sum_that_nobody_runs())
    code = "import sys; from tflite_micro.python.tflite_micro.runtime import Interpreter as I; I.from_file(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGSEGV


@with_wheel
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (with_a_sum_that_nobody_runs(), "1 subgraphs of the file are not run by the first"),
        (b"no file at all", ""),
    ],
)
def test_a_file_that_would_end_the_process_is_told(data: bytes, said: str) -> None:
    (outcome,) = engine("tflm").run([Task(data, [("main", {"x": np.ones(2, np.float32)})])])
    assert outcome.error
    assert said in outcome.error
    assert not outcome.results


@with_wheel
def test_reductions_in_loops_are_right() -> None:
    """A subgraph that the first runs is planned for."""
    goes_on, body, b = Builder(), Builder(), Builder()
    for graph in (goes_on, body, b):
        x, k = graph.input("x", TensorType((2, 3))), graph.input("k", TensorType((1,)))
        if graph is goes_on:
            graph.graph.outputs = {"goes_on": graph(tfl.Less(), k, np.float32([5]))}
        elif graph is body:
            total = graph(tfl.Add(), graph(tfl.Sum((0,), True), x), graph(tfl.ReduceMax((1,), True), x))
            graph.graph.outputs = {
                "x": graph(tfl.Mul(), total, np.float32([0.3])),
                "k": graph(tfl.Add(), k, np.float32([1])),
            }
        else:
            y, _ = graph(tfl.While(goes_on.graph, body.graph), x, k)
            graph.graph.outputs = {"y": y}
    feed = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "k": np.zeros(1, np.float32)}
    (outcome,) = engine("tflm").run([Task(file(with_own_results(b.graph)), [("main", feed)])])
    assert not outcome.error
    np.testing.assert_allclose(outcome.results[0]["y"], evaluate(b.graph, feed)[0]["y"], rtol=1e-6)


@with_wheel
def test_an_index_that_a_table_has_not_gives_nan_and_ends_nothing() -> None:
    b = Builder()
    b.graph.outputs = {"y": b(tfl.Gather(), b.input("x", TensorType((3, 2))), b.input("i", TensorType((4,), INT32)))}
    x, i = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([2, 3, -1, 10**6], np.int32)
    after = with_own_results(avoid.without(b.graph, TFLM.avoids))
    (outcome,) = engine("tflm").run([Task(file(after), [("main", {"x": x, "i": i})])])
    assert not outcome.error
    np.testing.assert_array_equal(outcome.results[0]["y"], [[4, 5], [np.nan] * 2, [np.nan] * 2, [np.nan] * 2])


@with_wheel
@pytest.mark.parametrize(
    ("net", "options"),
    [
        ("keyword", {"update": "head", "batch": 1}),
        ("keyword", {"update": "full", "batch": 1, "optimizer": "adam"}),
        ("mlp-gelu", {"update": "full", "batch": 4, "optimizer": optax.sgd(0.1, momentum=0.9)}),
        ("recurrent", {"update": {"head/*": 1, "*": 0.5}, "batch": 2}),
        ("attention", {"update": "full", "batch": 2, "optimizer": "lion"}),
        ("autoencoder", {"update": "full", "batch": 1, "loss": "mse", "state": "split"}),
    ],
)
def test_the_arena_is_as_large_as_predicted(net: str, options: Any, tmp_path: Path) -> None:
    path, settings = tmp_path / "p.tflite", {"optimizer": "sgd", "signatures": ["train"], **options}
    program = converter.build(NETS[net]().model(), target="tflm", check=False, **settings)
    program.write(path)
    entries = Layers(read_program(path)).entries
    tasks = [Task(entry.part(range(len(entry.places)), list(entry.outputs))) for entry in entries]
    used = [outcome.said["arena"] for outcome in engine("tflm").run(tasks)]
    predicted = [micro_arena(bytes(task.program), TFLM.records["wheel"]).used for task in tasks]
    assert predicted == pytest.approx(used, rel=0.02)
    # On a board pointers are shorter.
    assert 0.4 * max(used) < program.costs["arena_bytes"] < max(used)
    assert program.costs["resident_bytes"] == program.costs["arena_bytes"] + program.costs["state_bytes"]


def test_a_budget_chooses_the_rows_that_fit_into_ram() -> None:
    options = {"target": "tflm", "optimizer": "sgd", "batch": 8, "signatures": ["train"], "check": False}
    whole = converter.build(NETS["keyword"]().model(), **options)
    fits = converter.build(NETS["keyword"]().model(), **options, memory_budget=whole.costs["resident_bytes"] - 1)
    assert fits.costs["resident_bytes"] < whole.costs["resident_bytes"]
    assert fits.manifest.micro_batch < 8
    with pytest.raises(UsageError, match="at the least"):
        converter.build(NETS["keyword"]().model(), **options, memory_budget=8000)
