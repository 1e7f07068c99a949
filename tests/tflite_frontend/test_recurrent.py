"""Recurrent layers, loops and branches of files: the stock interpreter is the oracle, from a state of zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import pocketune
from converter.frontends import tflite as tflite_frontend
from converter.frontends.tflite.reading.file import read_file
from converter.ir import evaluate
from converter.ir.builder import Builder
from converter.passes.autodiff.reverse import pull_back
from converter.support.errors import UnsupportedError
from tests.steps import stepped
from tests.tflite_frontend.quantised_nets import quantised_nets
from tests.tflite_frontend.test_operators import differences, floats, imported
from tests.tflite_frontend.test_quantised import edited, original
from tests.tflite_frontend.written import Operator, file_of

STEPS, INPUT, CELLS = 5, 3, 4
LSTM = ("UnidirectionalSequenceLSTMOptions", {"fusedActivationFunction": 4})


def interpreted(data: bytes) -> Any:
    """The file as a function of x: its variables are zeros before each call."""
    runtime = Interpreter(
        model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    runtime.allocate_tensors()
    (given,) = runtime.get_input_details()

    def call(x: np.ndarray) -> list[np.ndarray]:
        runtime.reset_all_variables()
        runtime.set_tensor(given["index"], x)
        runtime.invoke()
        return [runtime.get_tensor(details["index"]) for details in runtime.get_output_details()]

    return call


def lstm(without: tuple[str, ...] = (), steps: int = STEPS, more: dict[str, Any] | None = None, **said: Any) -> bytes:
    """One LSTM; `without` some of its operands, `more` of these, options by name."""
    more, gates = more or {}, ("i", "f", "c", "o")
    output = more["projection"].shape[0] if "projection" in more else CELLS
    weights = {f"w{g}": floats(CELLS, INPUT, seed=i) for i, g in enumerate(gates)}
    weights |= {f"r{g}": floats(CELLS, output, seed=4 + i) for i, g in enumerate(gates)}
    biases = {f"b{g}": floats(CELLS, seed=8 + i) for i, g in enumerate(gates)}
    everything = {k: v for k, v in {**weights, **biases, **more}.items() if k not in without}
    tensors = {
        "x": ((1, steps, INPUT), "float32"),
        **everything,
        "h": ((1, output), "float32"),
        "cell": ((1, CELLS), "float32"),
        "y": ((1, steps, output), "float32"),
    }
    places = [*weights, "pi", "pf", "po", *biases, "projection", "projected", "h", "cell"]
    places += ["ni", "nf", "nc", "no"] if "nc" in more else []
    operands = ["x", *(n if n in everything or n in ("h", "cell") else "" for n in places)]
    operator: Operator = ("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, ("y",), (LSTM[0], {**LSTM[1], **said}))
    return file_of(tensors, [operator], variables=("h", "cell"))


def rnn(both: bool = False) -> bytes:
    ways = ("f", "b") if both else ("f",)
    tensors: dict[str, Any] = {"x": ((1, STEPS, INPUT), "float32")}
    operands = ["x"]
    for i, way in enumerate(ways):
        tensors |= {f"w{way}": floats(CELLS, INPUT, seed=i), f"r{way}": floats(CELLS, CELLS, seed=2 + i)}
        tensors |= {f"a{way}": floats(CELLS, seed=4 + i), f"h{way}": ((1, CELLS), "float32")}
        operands += [f"{part}{way}" for part in "wrah"]
    tensors["y"] = ((1, STEPS, CELLS * len(ways)), "float32")
    options = ("BidirectionalSequenceRNNOptions" if both else "SequenceRNNOptions", {"fusedActivationFunction": 4})
    if both:
        options[1]["mergeOutputs"], operands = True, [*operands, "", "", ""]
    kind = f"{'BI' if both else 'UNI'}DIRECTIONAL_SEQUENCE_RNN"
    return file_of(tensors, [(kind, operands, ("y",), options)], variables=[f"h{way}" for way in ways])


def both_ways() -> bytes:
    """A bidirectional LSTM."""
    tensors: dict[str, Any] = {"x": ((1, STEPS, INPUT), "float32")}
    operands, states = ["x"], list[str]()
    for i, way in enumerate("fb"):
        for part, shape in (("w", (CELLS, INPUT)), ("r", (CELLS, CELLS)), ("p", ()), ("a", (CELLS,))):
            for j, gate in enumerate("fco" if part == "p" else "ifco"):
                if part != "p":
                    tensors[f"{part}{gate}{way}"] = floats(*shape, seed=20 * i + j + 4 * len(part + gate) + ord(part))
                operands.append("" if part == "p" else f"{part}{gate}{way}")
        operands += ["", ""]
        states += [f"h{way}", f"c{way}"]
    tensors |= dict.fromkeys(states, ((1, CELLS), "float32"))
    tensors["y"] = ((1, STEPS, 2 * CELLS), "float32")
    options = {"fusedActivationFunction": 4, "mergeOutputs": True, "timeMajor": False}
    operator: Operator = (
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        [*operands, *states, *[""] * 9],
        ("y",),
        ("BidirectionalSequenceLSTMOptions", options),
    )
    return file_of(tensors, [operator], variables=states)


PEEPHOLES = {f"p{g}": floats(CELLS, seed=30 + i) for i, g in enumerate("ifo")}
NORMS = {f"n{g}": floats(CELLS, seed=40 + i, low=0.5, high=1.5) for i, g in enumerate("ifco")}
CASES = {
    "lstm": lstm(),
    "long lstm": lstm(steps=30),
    "coupled gates": lstm(without=("wi", "ri", "bi")),
    "peepholes": lstm(more=PEEPHOLES),
    "projection": lstm(more={"projection": floats(2, CELLS, seed=50), "projected": floats(2, seed=51)}),
    "layer norm": lstm(more=NORMS),
    "clipped": lstm(cellClip=0.3),
    "rnn": rnn(),
    "both ways": rnn(both=True),
    "lstm both ways": both_ways(),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_what_the_interpreter_makes_of_it_and_so_are_derivatives(name: str, tmp_path: Path) -> None:
    data = CASES[name]
    graph, call = imported(data, tmp_path), interpreted(data)
    x = floats(1, *graph.inputs[0].shape[1:], seed=5)
    expected = call(x)[0].copy()
    np.testing.assert_allclose(evaluate(graph, [x])[0]["y"], expected, rtol=1e-5, atol=1e-6)
    if x.shape[1] > STEPS:
        return
    weight = floats(*expected.shape, seed=9)
    b = Builder(graph.copy())
    backward, gradients = pull_back(b.graph, {graph.outputs["y"]: b.constant(weight)}, graph.inputs)
    backward.outputs = {"g": gradients[graph.inputs[0]]}
    found = evaluate(backward, [x])[0]["g"]
    np.testing.assert_allclose(found, differences(call, x, [weight]), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["lstm", "long lstm"])
def test_several_rows_each_begin_with_zeros_and_all_weights_train(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(CASES[name])
    call, rows = interpreted(CASES[name]), 3
    program = pocketune.build(path, loss="mse", update="full", optimizer="sgd", batch=rows, check=False)
    assert any(note.status == "begins with a state" for note in program.notes)
    x = floats(rows, *program.manifest.signatures["infer"].inputs[0].shape[1:], seed=5)
    expected = np.concatenate([call(row[None])[0] for row in x])
    with pocketune.TrainingSession(program.data) as session:
        for _ in range(2):  # nothing is left of the first call
            np.testing.assert_allclose(session.infer(x), expected, rtol=1e-5, atol=1e-6)
        names = set(session.parameters())
        losses = [session.train(x, np.zeros_like(expected), learning_rate=0.5) for _ in range(20)]
    parts = ("kernel", "recurrent", "bias")
    assert {name.split("/")[-1] for name in names} == {
        f"{p}_{g}" for p in parts for g in ("input", "forget", "cell", "output")
    }
    assert losses[-1] < 0.7 * losses[0]


def hybrid(data: bytes) -> bytes:
    """The same with kernels of int8: activations are float32, which the runtime rounds on its way."""

    def to_int8(model: Any) -> None:
        for tensor in model.subgraphs[0].tensors:
            stored = model.buffers[tensor.buffer]
            if stored.data is None or len(tensor.shape) != 2:
                continue
            numbers = np.array(stored.data, np.uint8).view(np.float32)
            scale = np.abs(numbers).max() / 127
            stored.data = np.rint(numbers / scale).astype(np.int8).view(np.uint8)
            tensor.type, tensor.quantization = schema.TensorType.INT8, schema.QuantizationParametersT()
            tensor.quantization.scale = np.array([scale], np.float32)
            tensor.quantization.zeroPoint = np.array([0], np.int64)

    return edited(data, to_int8)


@pytest.mark.parametrize("name", ["lstm", "rnn"])
def test_integer_kernels_are_the_numbers_that_they_stand_for(name: str, tmp_path: Path) -> None:
    path, data = tmp_path / "net.tflite", hybrid(CASES[name])
    path.write_bytes(data)
    x = floats(3, STEPS, INPUT, seed=5)
    expected = np.concatenate([interpreted(data)(row[None])[0] for row in x])
    program = pocketune.build(path, loss="mse", update={"*bias*": 1}, optimizer="sgd", batch=3, check=False)
    (said,) = (note.why for note in program.notes if note.status == "begins with a state")
    assert "not their bits" in said
    with pocketune.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(x), expected, atol=0.02)


def test_one_step_a_call_is_a_net_that_streams(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(lstm(steps=1))
    with pytest.raises(
        UnsupportedError, match=r"(?s)UNIDIRECTIONAL_SEQUENCE_LSTM, which keeps a state.*the file streams"
    ):
        tflite_frontend.Model(path).graph(2)


def test_svdf_is_a_net_that_streams(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    tensors = {"x": ((1, 3), "float32"), "f": floats(2, 3), "t": floats(2, 4), "s": ((1, 8), "float32")}
    operator: Operator = ("SVDF", ("x", "f", "t", "", "s"), ("y",), ("SVDFOptions", {"rank": 1}))
    path.write_bytes(file_of({**tensors, "y": ((1, 2), "float32")}, [operator], variables=("s",)))
    with pytest.raises(UnsupportedError, match=r"(?s)SVDF, which keeps a state.*the file streams"):
        tflite_frontend.Model(path).graph(2)


def branching() -> bytes:
    """y = 2 x where the sum of x is above 0, else x - 1: an IF on what is computed."""
    tensors = {
        "x": ((1, 3), "float32"),
        "axis": np.array([1], np.int32),
        "sum": ((1,), "float32"),
        "zero": np.zeros((), np.float32),
        "above": ((1,), "bool"),
        "y": ((1, 3), "float32"),
    }
    operators: list[Operator] = [
        ("SUM", ("x", "axis"), ("sum",), ("ReducerOptions", {})),
        ("GREATER", ("sum", "zero"), ("above",), ("GreaterOptions", {})),
        ("IF", ("above", "x"), ("y",), ("IfOptions", {"thenSubgraphIndex": 1, "elseSubgraphIndex": 2})),
    ]
    of_one = {"x": ((1, 3), "float32"), "y": ((1, 3), "float32")}
    doubled = ({**of_one, "c": np.float32(2)}, [("MUL", ("x", "c"), ("y",), ("MulOptions", {}))], ("x",), ("y",))
    lower = ({**of_one, "c": np.float32(1)}, [("SUB", ("x", "c"), ("y",), ("SubOptions", {}))], ("x",), ("y",))
    return file_of(tensors, operators, bodies=[doubled, lower])


def test_each_row_takes_its_own_branch(tmp_path: Path) -> None:
    path, data = tmp_path / "net.tflite", branching()
    path.write_bytes(data)
    x = floats(6, 3, seed=3)
    expected = np.concatenate([interpreted(data)(row[None])[0] for row in x])
    graph, _ = tflite_frontend.Model(path).graph(len(x))
    np.testing.assert_array_equal(evaluate(graph, [x])[0]["output"], expected)
    assert 0 < (x.sum(1) > 0).sum() < len(x)


def infinite() -> bytes:
    """A file whose loop runs itself."""
    tensors = {"x": ((1, 3), "float32"), "y": ((1, 3), "float32")}
    loop: list[Operator] = [
        ("WHILE", ("x",), ("y",), ("WhileOptions", {"condSubgraphIndex": 1, "bodySubgraphIndex": 1}))
    ]
    return file_of(tensors, loop, bodies=[(tensors, loop, ("x",), ("y",))])


def test_a_loop_that_runs_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(infinite())
    with pytest.raises(UnsupportedError, match="WHILE as it stands there"):
        tflite_frontend.Model(path).graph(1)


@pytest.fixture(params=["loop", "loop_dynamic"])
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A Keras LSTM, which TensorFlow's converter writes as a WHILE; its weights in float32 or int8."""
    path = tmp_path / "net.tflite"
    path.write_bytes(quantised_nets()[request.param])
    return path


def test_loops_of_frozen_layers_are_the_files_and_those_of_trained_ones_learn(loop: Path) -> None:
    model = tflite_frontend.Model(loop, classes=3)
    x, y = floats(4, 6, 40, seed=2), np.arange(4) % 3
    border = original(loop, model.place(read_file(loop)).features, x)
    head = pocketune.build(
        model, update="head", batch=1, optimizer="sgd", check=False, signatures=("train", "infer", "features")
    )
    runner = Interpreter(model_content=head.data).get_signature_runner("features")
    found = np.concatenate([next(iter(runner(x=row[None]).values())) for row in x])
    if _is_hybrid(loop):
        np.testing.assert_array_equal(found, border)
    else:
        np.testing.assert_allclose(found, border, rtol=1e-5, atol=1e-6)
    full = pocketune.build(model, update="full", batch=4, micro_batch=1, optimizer="sgd", check=False)
    losses = stepped(full, [(x, y)] * 20, 0.3).losses
    assert losses[-1] < losses[0] / 2


def _is_hybrid(path: Path) -> bool:
    return any(t.is_quantized for t in read_file(path).body(2).tensors)


def capturing() -> tuple[bytes, dict[str, np.ndarray]]:
    """A layer, and where it gives more than 0 one of a branch, whose kernel, bias and scale the IF is given."""
    rng = np.random.default_rng(5)
    w = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in {"first": (1, 3), "kernel": (4, 3),
         "bias": (4,), "scale": (4,), "last": (1, 4), "end": (1,)}.items()}  # fmt: skip
    given = ("above", "x", "kernel", "bias", "scale", "last", "end", "h")
    tensors = {"x": ((1, 3), "float32"), "h": ((1, 1), "float32"), "zero": np.zeros((), np.float32),
               "y": ((1, 1), "float32"), "wide": ((1, 1), "bool"),
               "flat": np.zeros(0, np.int32), "above": ((), "bool"), **w}  # fmt: skip
    dense = ("FullyConnectedOptions", {})
    operators: list[Operator] = [
        ("FULLY_CONNECTED", ("x", "first", ""), ("h",), dense),
        ("GREATER", ("h", "zero"), ("wide",), ("GreaterOptions", {})),
        ("RESHAPE", ("wide", "flat"), ("above",), ("ReshapeOptions", {})),
        ("IF", given, ("y",), ("IfOptions", {"thenSubgraphIndex": 1, "elseSubgraphIndex": 2})),
    ]
    inner = {name: (tensors[name] if name in ("x", "h") else (w[name].shape, "float32")) for name in given[1:]}
    rows = dict.fromkeys(("a", "b", "c"), ((1, 4), "float32")) | {"d": ((1, 1), "float32"), "y": ((1, 1), "float32")}
    then: list[Operator] = [
        ("FULLY_CONNECTED", ("x", "kernel", ""), ("a",), dense),
        ("ADD", ("a", "bias"), ("b",), ("AddOptions", {})),
        ("MUL", ("b", "scale"), ("c",), ("MulOptions", {})),
        ("FULLY_CONNECTED", ("c", "last", ""), ("d",), dense),
        ("ADD", ("d", "end"), ("y",), ("AddOptions", {})),
    ]
    bodies = [({**inner, **rows}, then, given[1:], ("y",)), (inner, [], given[1:], ("h",))]
    return file_of(tensors, operators, bodies=bodies), w


@pytest.mark.quick
def test_weights_that_enter_a_branch_train(tmp_path: Path) -> None:
    data, weights = capturing()
    path = tmp_path / "net.tflite"
    path.write_bytes(data)

    def forward(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        h = x @ w["first"].T
        return jnp.where(h > 0, ((x @ w["kernel"].T + w["bias"]) * w["scale"]) @ w["last"].T + w["end"], h)

    x, y = floats(6, 3, seed=3), floats(6, 1, seed=4)
    program = pocketune.build(path, update="full", batch=6, loss="mse", optimizer="sgd", check=False)
    assert program.costs["trained_parameters"] == sum(array.size for array in weights.values())
    head = pocketune.build(path, update="head", batch=6, loss="mse", optimizer="sgd", check=False)
    # Either layer is the last one before the output, by which branch is taken.
    assert [p.name for p in head.manifest.parameters] == ["first/kernel", "last/kernel", "last/bias"]
    loss = jax.value_and_grad(lambda w: jnp.mean((forward(w, x) - y) ** 2))
    with pocketune.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(x), forward(weights, x), rtol=1e-5, atol=1e-6)
        for _ in range(5):
            value, slopes = loss(weights)
            assert session.train(x, y, learning_rate=0.02) == pytest.approx(float(value), rel=1e-5)
            weights = {name: w - 0.02 * slopes[name] for name, w in weights.items()}
        program.export_inference(tmp_path / "new.tflite", session.state())
    exported = (tmp_path / "new.tflite").read_bytes()
    found = np.concatenate([interpreted(exported)(row[None])[0] for row in x])
    np.testing.assert_allclose(found.reshape(-1), forward(weights, x)[:, 0], rtol=1e-4, atol=1e-5)
