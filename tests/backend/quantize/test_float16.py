"""Programs with frozen weights in float16, against JAX with the numbers that these are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ai_edge_litert.interpreter import Interpreter

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.quantize.store_as_float16 import LEAST, stored_as_float16
from converter.backend.schedule import how
from converter.ir import FLOAT16, FLOAT32, Builder, Graph, Node, TensorType, evaluate, nested
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from examples import llama
from tests.backend.stock import file, run

ROWS, CLASSES = 4, 5
IMAGES = [jax.ShapeDtypeStruct((ROWS, 8, 8, 3), np.float32)]


def is_delegated(graph: Graph, node: Node) -> bool:
    return how(graph.constants, node, 8) is not None


def half(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float16).astype(np.float32)


def net(params: Any, x: Any) -> Any:
    for name in ("first", "second"):
        x = jax.lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x * params["scale"] + params["shift"])
    return x.mean((1, 2)) @ params["middle"] @ params["head"]


def parameters(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"first": (3, 3, 3, 32), "second": (3, 3, 32, 32), "middle": (32, 96), "head": (96, CLASSES)}
    made = {name: (rng.normal(0, 0.2, shape)).astype(np.float32) for name, shape in shapes.items()}
    return made | {"scale": rng.uniform(0.5, 1.5, 32).astype(np.float32), "shift": np.full(32, 0.1, np.float32)}


def samples(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((ROWS, 8, 8, 3), np.float32), rng.integers(0, CLASSES, ROWS).astype(np.int32)


def folded(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With what is rounded: filters times the scale that folds into them, the matrix of more than LEAST numbers."""
    weights = {"second": params["second"] * params["scale"], "middle": params["middle"]}
    return params | {"second": half(weights["second"]) / params["scale"], "middle": half(weights["middle"])}


def constants(program: Any, name: str) -> Iterator[np.ndarray]:
    return (array for graph in nested(program.signatures[name]) for array in graph.constants.values())


@pytest.mark.parametrize("target", ["litert-2", "hexagon"])
def test_a_step_is_that_of_the_rounded_weights(target: str) -> None:
    """Before the head, which trains; a scale that folds into a filter is rounded with it."""
    params = parameters()
    model = jax_frontend.Model(net, params, IMAGES)
    options: dict[str, Any] = {"update": {"head": 1}, "optimizer": optax.sgd(0.1), "batch": ROWS, "target": target}
    program = converter.build(model, frozen="float16", **options)
    said = {(layer.operator, layer.form, layer.why) for layer in program.quantization.layers}
    assert said == {
        ("CONV_2D", "float32", "small"),
        ("CONV_2D", "float16", "weights"),
        ("FULLY_CONNECTED", "float16", "weights"),
    }
    for name in (program.manifest.step, "evaluate", "infer"):
        assert sum(a.size for a in constants(program, name) if a.dtype == FLOAT16) == 9 * 32 * 32 + 32 * 96
        assert max(a.size for a in constants(program, name) if a.dtype == FLOAT32) < LEAST
    expected: Any = {name: jnp.asarray(w) for name, w in folded(params).items()}

    def loss(head: Any, x: Any, y: Any) -> Any:
        logits = net(expected | {"head": head}, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    x, y = samples()
    head = jnp.asarray(params["head"])
    with TrainingSession(program.data) as session:
        for _ in range(3):
            value, gradient = jax.value_and_grad(loss)(head, x, y)
            assert session.train(x, y) == pytest.approx(float(value), rel=1e-5)
            head = head - 0.1 * gradient
        np.testing.assert_allclose(session.parameters()["head"], head, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(session.infer(x), net(expected | {"head": head}, x), rtol=1e-4, atol=1e-5)
    exact = converter.build(model, **options)
    assert len(exact.data) - len(program.data) > 2 * 9 * 32 * 32


def test_exported_saved_and_measured(tmp_path: Path) -> None:
    model = jax_frontend.Model(net, parameters(), IMAGES)
    options: dict[str, Any] = {"update": {"head": 1}, "optimizer": "sgd", "batch": ROWS, "check": False}
    x, y = samples()
    program = converter.build(model, frozen="float16", calibration=(x, y), **options)
    report = program.quantization
    assert 0 < report.output_error < 1e-3
    for figures, params in ((report.before, parameters()), (report.after, folded(parameters()))):
        expected = -jnp.take_along_axis(jax.nn.log_softmax(net(params, x)), y[:, None], 1).mean()
        assert figures["loss"] == pytest.approx(float(expected), abs=1e-6)
    with TrainingSession(program.data) as session:
        session.train(x, y, learning_rate=0.1)
        session.save(tmp_path / "mine.state")
        expected = session.infer(x)
    sizes = {}
    for quantize in (None, "dynamic"):
        path = tmp_path / "mine.tflite"
        program.export_inference(path, tmp_path / "mine.state", quantize=quantize)
        found = Interpreter(str(path)).get_signature_runner("infer")(x=x)["output"]
        np.testing.assert_allclose(found, expected, atol=0 if quantize is None else 0.03 * np.abs(expected).max())
        sizes[quantize] = path.stat().st_size
    weights = 9 * 32 * 32 + 32 * 96
    assert sizes["dynamic"] + 0.8 * weights < sizes[None] < 2 * weights + 12000
    other = TrainingSession(converter.build(model, **options).data)
    with other, pytest.raises(UsageError, match="the frozen layers are rounded there, float32 here"):
        other.restore(tmp_path / "mine.state")


@pytest.mark.parametrize("blocks", ["off", "on"])
def test_language_models_read_rows_and_matrices_of_float16(blocks: str) -> None:
    length, vocabulary = 8, 131
    shape: dict[str, Any] = {"width": 64, "heads": 4, "key_heads": 2, "length": length, "vocabulary": vocabulary}
    decoder = llama.build(layers=1, **shape)
    options: dict[str, Any] = {"update": "lora-4", "batch": 2, "blocks": blocks, "optimizer": "sgd"}
    program = converter.build(decoder, frozen="float16", check=False, **options)
    x, y = llama.sample_batch(2, 0, length, vocabulary)
    params = jax.tree_util.tree_map(lambda w: half(w) if w.size >= LEAST else np.asarray(w), decoder.params)
    logits = decoder.apply(params, x)
    expected = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()
    with TrainingSession(program.data) as session:
        assert session.train(x, y) == pytest.approx(float(expected), abs=1e-5)
        assert session.infer(x).shape == logits.shape
    contracted = [array.dtype for array in constants(program, "train") if array.shape == (vocabulary, 64)]
    assert contracted == [FLOAT16, FLOAT16], "the table, and the head as it is stored once"
    shapes = llama.build(layers=1, seed=None, **shape)
    asked = {name: options[name] for name in ("batch", "blocks", "optimizer")}
    (planned,) = converter.compare_schemes(shapes, ["lora-4"], frozen="float16", **asked)
    assert planned.items() - {("scheme", planned["scheme"])} <= program.costs.items()


def lowered(*readers: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """A constant that these operators read."""
    b, rng = Builder(Graph()), np.random.default_rng(0)
    x = b.input("x", TensorType((64, 64)))
    w, bias = b.constant(half(rng.normal(size=(64, 64)))), b.constant(np.zeros(64, np.float32))
    ids = b.constant(np.arange(64, dtype=np.int32)[::-1].copy())
    for reader in readers:
        match reader:
            case "dense":
                x = b(tfl.FullyConnected(), x, w, bias)
            case "rows":
                x = b(tfl.Add(), x, b(tfl.Gather(), w, ids))
            case "turn":
                x = b(tfl.Gather(), x, ids)
            case "sum":
                x = b(tfl.Add(), x, w)
    b.graph.outputs = {"y": b(tfl.Relu(), x)}
    return b.graph, {"x": rng.normal(size=(64, 64)).astype(np.float32)}


@pytest.mark.parametrize(
    ("readers", "stored"),
    [
        (("dense",), True),
        (("dense", "dense"), True),
        (("rows",), True),
        (("rows", "dense"), True),
        (("dense", "turn", "dense"), False),  # the runtime would keep what two partitions read
        (("sum",), False),  # and what no kernel packs
        (("dense", "sum"), False),
    ],
)
def test_stored_where_the_runtime_keeps_no_float32(readers: tuple[str, ...], stored: bool) -> None:
    graph, feed = lowered(*readers)
    after = stored_as_float16([graph], is_delegated)(graph)
    assert any(array.dtype == FLOAT16 for array in after.constants.values()) == stored
    expected, _ = evaluate(graph, feed)
    for xnnpack in (True, False):
        np.testing.assert_array_equal(
            run(file(after), feed, xnnpack)["y"], run(file(graph), feed, xnnpack)["y"], strict=True
        )
    np.testing.assert_array_equal(evaluate(after, feed)[0]["y"], expected["y"])


def test_what_another_graph_needs_in_float32_is_not_held_twice() -> None:
    graph, other = lowered("dense")[0], lowered("sum")[0]
    for graphs in ([graph, other], [other, graph]):
        assert not any(a.dtype == FLOAT16 for a in stored_as_float16(graphs, is_delegated)(graph).constants.values())
    kept = next(a for a in graph.constants.values() if a.size >= LEAST)
    assert not any(
        a.dtype == FLOAT16 for a in stored_as_float16([graph], is_delegated, [kept])(graph).constants.values()
    )


def test_numbers_that_float16_does_not_have_stay() -> None:
    """Each bit counts: also a zero with a sign, and the least numbers."""
    graph, feed = lowered("dense")
    (w,) = [v for v, a in graph.constants.items() if a.size >= LEAST]
    for number, exact in (
        (2.0**-24, True),
        (2.0**-25, False),
        (-0.0, True),
        (65504, True),
        (65520, False),
        (0.1, False),
    ):
        graph.constants[w] = array = graph.constants[w].copy()
        array.flat[7] = number
        after = stored_as_float16([graph], is_delegated)(graph)
        assert any(a.dtype == FLOAT16 for a in after.constants.values()) == exact
        np.testing.assert_array_equal(run(file(after), feed, True)["y"], run(file(graph), feed, True)["y"])


def test_what_cannot_be() -> None:
    model = jax_frontend.Model(net, parameters(), IMAGES)
    for target in ("tflite-2.16", "gpu", "web"):
        with pytest.raises(UsageError, match=f"frozen='float16': {target} .*Build for litert-2"):
            converter.build(model, frozen="float16", target=target)
    with pytest.raises(UsageError, match="no frozen layer becomes float16"):
        converter.build(model, frozen="float16", update="full")
    large = parameters()
    large["second"][0, 0, 0, 0] = 1e6
    model = jax_frontend.Model(net, large, IMAGES)
    layers = converter.build(model, frozen="float16", update={"head": 1}, check=False).quantization.layers
    assert ("CONV_2D", "float32", "float16 ends at 65504") in {(one.operator, one.form, one.why) for one in layers}
