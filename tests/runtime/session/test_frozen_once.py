"""Programs whose frozen first layers are in one signature: a session gives what it gives of the model's inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import converter
import jax_frontend
from converter.program.file import read_program
from converter.runtime import ReplayMemory, TrainingSession
from converter.runtime.session.evaluation import figures
from converter.support.errors import UsageError
from converter.tools.certify.certify import examine
from converter.tools.certify.reference import calls
from tests.models.zoo import CASES
from tests.tools.certify.stock import Stock

WHOLE = ("train", "evaluate", "infer")
ONCE = ("features", "train_features", "evaluate_features", "infer_features")
BATCH = 4


def build(name: str, signatures: tuple[str, ...], **options: Any) -> converter.Program:
    return converter.build(CASES[name].model(), **{"batch": BATCH, "signatures": signatures, **options})


def trained(program: converter.Program, x: Any, y: Any, **options: Any) -> dict[str, Any]:
    """Return all that a session says of a training, and the weights after it."""
    with TrainingSession(program.data) as session:
        found: dict[str, Any] = {"before": session.evaluate(x, y)}
        found["step"] = session.train(x[:BATCH], y[:BATCH], learning_rate=0.02)
        history = session.fit(x, y, epochs=2, learning_rate=0.05, seed=1, progress=False, **options)
        found |= {name: values for name, values in history.items() if name != "seconds"}
        # Batches of a stream are not kept: their rows go through `features` when they come.
        streamed = session.fit([(x[:3], y[:3]), (x[3:], y[3:])], epochs=2, learning_rate=0.05, progress=False)
        return found | {
            "streamed": streamed["loss"],
            "after": session.evaluate(x, y, metrics="accuracy"),
            "scores": session.infer(x[:7]),
            "weights": session.parameters(),
        }


def close(one: Any, other: Any) -> None:
    """What both say is the same, but for how numbers are added up."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            close(one[name], other[name])
    else:
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"update": "head", "optimizer": "adam"}),
        ("lenet", {"update": {"conv2/w": 0.5, "fc*": 1}}),
        ("lenet", {"update": "head", "state": "stateless"}),
        ("lenet", {"update": {"conv2/w": 0.5, "fc*": 1}, "state": "split", "micro_batch": 2}),
        ("mlp", {"update": "head", "micro_batch": 2, "optimizer": "adam"}),
        ("mlp", {"update": "head", "micro_batch": 2, "state": "stateless"}),
        ("lenet", {"update": "skip-lora-2"}),
        ("lenet", {"update": "skip-lora-2", "frozen": "int8"}),
        ("mlp", {"update": "head", "train_as": "int8", "optimizer": "sgd"}),
        ("encoder", {"update": {"layers/1/*": "bias", "classifier/*": 1}}),
        ("encoder", {"update": {"layers/1/*": converter.LoRA(2), "classifier/*": 1}}),
    ],
)
def test_a_session_gives_what_it_gives_of_a_program_that_takes_the_inputs(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    x, y = CASES[name].batch(10, 0)
    calibrated = {"calibration": x} if options.get("frozen") == "int8" else {}
    judged = {"validation": CASES[name].batch(9, 1), "metrics": "accuracy"}
    found, exported = [], []
    for signatures in (ONCE, WHOLE):
        program = build(name, signatures, **options, **calibrated)
        assert ("train" in program.signatures) is (signatures is WHOLE and "apply" not in program.signatures)
        found.append(trained(program, x, y, **judged))
        path = tmp_path / f"{len(exported)}.tflite"
        program.export_inference(path)
        exported.append(path.read_bytes())
    close(*found)
    assert exported[0] == exported[1], "the plain model is not that of a program with infer"


def test_the_frozen_layers_are_in_one_signature() -> None:
    program = build("lenet", ONCE, update="head")
    kinds = {name: {node.op.code for node in graph.nodes} for name, graph in program.signatures.items()}
    assert [name for name, found in kinds.items() if "CONV_2D" in found] == ["features"]
    assert next(iter(program.signatures)) == "train_features"
    whole = build("lenet", (*WHOLE, "features"), update="head")
    assert program.costs["packed_bytes"] < whole.costs["packed_bytes"] / 2
    assert len(program.data) < len(whole.data)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"update": "head", "optimizer": "adam"}),
        ("mlp", {"update": "head", "micro_batch": 2}),
        ("lenet", {"update": "head", "frozen": "int8"}),
        ("lenet", {"update": "skip-lora-2", "frozen": "int8"}),
        ("mlp", {"update": "head", "frozen": "int4"}),
    ],
)
def test_states_are_those_of_a_program_that_takes_the_inputs(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    x, y = CASES[name].batch(10, 0)
    given = options | ({"calibration": x} if options.get("frozen") == "int8" else {})
    once, whole = (build(name, signatures, **given) for signatures in (ONCE, WHOLE))
    assert once.manifest.identity == whole.manifest.identity
    for first, second in ((once, whole), (whole, once)):
        with TrainingSession(first.data) as session:
            session.fit(x, y, epochs=2, learning_rate=0.05, progress=False)
            session.save(tmp_path / "mine.state")
            after = session.evaluate(x, y)
        with TrainingSession(second.data) as session:
            session.restore(tmp_path / "mine.state")
            close(session.evaluate(x, y), after)
        (tmp_path / "mine.state").unlink()


def test_held_out_rows_go_through_the_frozen_layers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = CASES["lenet"].batch(12, 0)
    asked = list[str]()

    def seen(manifest: Any, ready: Any, examples: Any, signature: str) -> Any:
        asked.append(signature)
        return figures(manifest, ready, examples, signature)

    monkeypatch.setattr("converter.runtime.session.session.figures", seen)
    for signatures, expected in ((ONCE, "evaluate_features"), ((*WHOLE, "features"), "evaluate")):
        with TrainingSession(build("lenet", signatures, update="head").data) as session:
            calls_of = _counted(session, monkeypatch)
            session.fit(x[:8], y[:8], epochs=5, validation=(x[8:], y[8:]), learning_rate=0.01, progress=False)
        assert set(asked) == {expected}
        assert calls_of["features"] == (3 if signatures is ONCE else 2)
        asked.clear()


def _counted(session: TrainingSession, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how often the signatures of the file are called from now on."""
    counted = dict[str, int]()
    running: Any = session._running
    for name in session.manifest.signatures:
        entry = running._engine.entry(name)

        def run(entry: Any = entry, inner: Any = entry.run) -> None:
            counted[entry.name] = counted.get(entry.name, 0) + 1
            inner()

        monkeypatch.setattr(entry, "run", run)
    return counted


@pytest.mark.quick
def test_one_of_them_may_be_there_in_both_ways() -> None:
    x, y = CASES["mlp"].batch(10, 0)
    signatures = ("train", "infer", "features", "evaluate_features", "infer_features")
    with TrainingSession(build("mlp", signatures, update="head").data) as session:
        assert list(session.manifest.behind_features) == ["evaluate"]
        both, (other,) = session.infer(x), [session.call("infer_features", {"features": session.features(x[:BATCH])})]
        np.testing.assert_allclose(both[:BATCH], other["output"], rtol=1e-5, atol=1e-6)
        assert np.isfinite(session.evaluate(x, y)["loss"])


def test_single_rows_have_a_signature_of_their_own() -> None:
    x, _ = CASES["mlp"].batch(10, 0)
    with TrainingSession(build("mlp", (*ONCE, "infer_1"), update="head").data) as session:
        assert list(session.manifest.infers.values()) == ["infer_1", "infer"]
        np.testing.assert_allclose(session.infer(x[:1]), session.infer(x)[:1], rtol=1e-5, atol=1e-6)


def test_dropout_falls_behind_the_features() -> None:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) / 3 for shape in ((6, 8), (8, 3))]

    def apply(params: list[Any], x: jax.Array) -> jax.Array:
        return jax_frontend.dropout(jax.nn.relu(x @ params[0]), 0.4) @ params[1]

    model = jax_frontend.Model(apply, weights, [jax.ShapeDtypeStruct((1, 6), "float32")])
    x, y = rng.normal(size=(8, 6)).astype(np.float32), np.arange(8) % 3
    found = []
    for signatures in (ONCE, (*WHOLE, "features")):
        program = converter.build(model, update={"1": 1}, dropout="train", batch=4, signatures=signatures)
        with TrainingSession(program.data) as session:
            history = session.fit(x, y, epochs=2, learning_rate=0.05, seed=0, progress=False)
            found.append({"loss": history["loss"], "after": session.evaluate(x, y), "scores": session.infer(x)})
    close(*found)


def test_rows_of_a_memory_are_kept_and_judged(tmp_path: Path) -> None:
    x, y = CASES["mlp"].batch(40, 0)
    found = []
    for number, signatures in enumerate((ONCE, (*WHOLE, "features"))):
        program = build("mlp", signatures, update="head")
        with TrainingSession(program.data) as session:
            memory = ReplayMemory(tmp_path / f"{number}.memory", session.manifest, held_out=0.25, keeps="features")
            for start in (0, 20):
                history = session.fit(
                    x[start : start + 20], y[start : start + 20], epochs=2, memory=memory, seed=1, progress=False
                )
            found.append({name: values for name, values in history.items() if name != "seconds"})
    close(*found)
    assert "drift" in found[0]


@pytest.mark.parametrize("state", ["variables", "stateless"])
def test_each_signature_is_certified(state: str) -> None:
    program = read_program(build("lenet", ONCE, update="head", state=state, micro_batch=2).data)
    asked = {call.signature for call in calls(program, steps=2)}
    expected = {"accumulate_features", "features", "evaluate_features", "infer_features"}
    assert asked == expected | ({"apply"} if state == "stateless" else set())
    assert examine(program, Stock(), steps=2).ok
    wrong = examine(program, Stock("features", "features"), steps=1)
    assert not wrong.ok
    assert "features" in {failure.what.partition(":")[0] for failure in wrong.failures}


def test_what_is_refused() -> None:
    for signatures, said in (
        (("train", "evaluate_features"), "'evaluate_features' takes what the frozen first layers give"),
        (("features", "evaluate_features"), "'train' is missing"),
        (("features", "train_feature"), "Did you mean"),
        (("features", "train_features", "fisher_features"), "unknown signature"),
    ):
        with pytest.raises(UsageError, match=said):
            build("mlp", signatures, update="head")
    with pytest.raises(UsageError, match="first layer trains"):
        build("mlp", ONCE, update="full")
    with pytest.raises(UsageError, match="lie in flash once"):
        build("mlp", ONCE, update="head", target="tflm", batch=1)
    program = build("mlp", ONCE[:2], update="head")
    with TrainingSession(program.data) as session, pytest.raises(UsageError, match="no signature 'evaluate'"):
        session.evaluate(*CASES["mlp"].batch(4, 0))


def test_classes_come_at_run_time_as_in_a_program_that_takes_the_inputs(tmp_path: Path) -> None:
    x, y = CASES["mlp"].batch(40, 0)
    found = []
    own = len(np.unique(y))
    for number, signatures in enumerate((ONCE, (*WHOLE, "features"))):
        head = {"update": "head", "head": "class_means", "classes": f"{own}+2", "optimizer": "adam"}
        path = build("mlp", signatures, **head).write(tmp_path / f"{number}.tflite")
        with TrainingSession(path, weight_cache=tmp_path / "cache") as session:
            session.set_class_means(x, y, shrinkage="auto")
            label = session.add_class("mine")
            session.train(x[:BATCH], [label] * BATCH, learning_rate=0.01)
            found.append({"after": session.evaluate(x, y), "scores": session.infer(x), "names": len(session.classes())})
    close(*found)


def test_a_file_that_an_app_ships_is_exported_as_it_is(tmp_path: Path) -> None:
    x, y = CASES["mlp"].batch(10, 0)
    build("mlp", WHOLE, update="full").export_inference(tmp_path / "app.tflite")
    found, exported = [], []
    for number, signatures in enumerate((ONCE, WHOLE)):
        options = {"update": "head", "batch": BATCH, "loss": "sparse_categorical_crossentropy"}
        program = converter.build(tmp_path / "app.tflite", signatures=signatures, **options)
        found.append(trained(program, x, y))
        program.export_inference(tmp_path / f"{number}.tflite")
        exported.append((tmp_path / f"{number}.tflite").read_bytes())
    close(*found)
    assert exported[0] == exported[1]
