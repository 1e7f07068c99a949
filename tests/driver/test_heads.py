"""Several heads on one backbone in one file: each is, to the last bit, the program that it is in a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import converter
from converter.driver.heads import SIGNATURES, Heads
from converter.driver.quantization import QuantizationWarning
from converter.program.file import read_program
from converter.program.heads import HEADS, metadata_of
from converter.runtime import ReplayMemory, TrainingSession
from converter.runtime.export import export_inference
from converter.support.errors import UsageError
from jax_frontend import Model

BATCH, CLASSES = 4, {"birds": 6, "frogs": 3}
OPTIMIZERS = {"birds": "adam", "frogs": "sgd"}


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
    for name in ("first", "second"):
        with jax.named_scope(name):
            x = jax.nn.relu(x @ params[name])
    return x @ params["head"]["w"] + params["head"]["b"]


def models(width: int = 8, **other: Any) -> dict[str, Model]:
    """Return models of one backbone by head; `other` is what `frogs` has in its place."""
    rng = _rng()
    backbone = {
        name: rng.normal(size=(n, width)).astype(np.float32) / 2 for name, n in (("first", 8), ("second", width))
    }
    made = {}
    for head, classes in CLASSES.items():
        weights = {"w": rng.normal(size=(width, classes)).astype(np.float32), "b": np.zeros(classes, np.float32)}
        params = {**backbone, **(other if head == "frogs" else {}), "head": weights}
        made[head] = Model(_apply, params, [jax.ShapeDtypeStruct((1, 8), "float32")])
    return made


def build(**options: Any) -> Heads:
    return converter.build_heads(models(), **{"update": "head", "batch": BATCH, "optimizer": OPTIMIZERS, **options})


def alone(one: str, **options: Any) -> converter.Program:
    """Return the program of one head in a file of its own."""
    given = {"update": "head", "batch": BATCH, "optimizer": OPTIMIZERS[one], "signatures": SIGNATURES, **options}
    return converter.build(models()[one], **given)


def rows(head: str) -> tuple[np.ndarray, np.ndarray]:
    return _rng().normal(size=(10, 8)).astype(np.float32), (np.arange(10) % CLASSES[head]).astype(np.int32)


def learned(session: TrainingSession, head: str) -> list[Any]:
    """Return all that a session says of a training, and the state after it."""
    x, y = rows(head)
    history = session.fit(x, y, epochs=2, validation=(x, y), learning_rate=0.05, seed=1, progress=False)
    kept = {name: values for name, values in history.items() if name != "seconds"}
    after = session.evaluate(x, y), session.infer(x).tolist(), {n: a.tolist() for n, a in session.state().items()}
    session.reset()
    return [kept, *after, session.evaluate(x, y)]


@pytest.mark.quick
@pytest.mark.parametrize("options", [{}, {"micro_batch": 2}])
def test_a_head_trains_as_in_a_file_of_its_own(options: dict[str, Any], tmp_path: Path) -> None:
    path = build(**options).write(tmp_path / "heads.tflite")
    for head in CLASSES:
        separate = alone(head, **options)
        with TrainingSession(path, head=head) as session, TrainingSession(separate.data) as other:
            assert learned(session, head) == learned(other, head)
        export_inference(read_program(path, head), tmp_path / "one.tflite")
        export_inference(read_program(separate.data), tmp_path / "other.tflite")
        assert (tmp_path / "one.tflite").read_bytes() == (tmp_path / "other.tflite").read_bytes()


def test_classes_come_to_one_head_and_options_are_of_one_head_each() -> None:
    """Whatever the option: what may be one of some words too."""
    own: dict[str, dict[str, Any]] = {
        "birds": {"head": "class_means", "classes": "6+2", "row_losses": "off", "labels": list("abcdef")},
        "frogs": {"head": None, "classes": None, "row_losses": "on", "labels": list("xyz")},
    }
    data = build(**{option: {head: own[head][option] for head in CLASSES} for option in own["birds"]}).data
    with TrainingSession(data, head="frogs") as session, TrainingSession(alone("frogs", **own["frogs"]).data) as other:
        assert learned(session, "frogs") == learned(other, "frogs")
        with pytest.raises(UsageError, match="build with head='class_means'"):
            session.classes()
    x, y = rows("birds")
    y, after = np.minimum(y, 5), []
    for file, head in ((data, "birds"), (alone("birds", **own["birds"]).data, None)):
        with TrainingSession(file, head=head) as session:
            session.set_class_means(x, y)
            session.add_class("new", x[:3])
            session.fit(x, y, epochs=2, seed=1, progress=False)
            after.append({name: array.tolist() for name, array in session.state().items()})
            assert session.classes() == [*"abcdef", "new", None]
    assert after[0] == after[1]
    for head in ("class_means", {"birds": "class_means", "frogs": "class_means"}):
        with TrainingSession(build(head=head).data, head="frogs") as session:
            x, y = rows("frogs")
            session.set_class_means(x, y, "auto")
            wanted = LinearDiscriminantAnalysis("lsqr", "auto").fit(session.features(x), y)
            np.testing.assert_array_equal(session.infer(x).argmax(1), wanted.predict(session.features(x)))


def test_packed_weights_in_a_file_are_those_of_all_heads(tmp_path: Path) -> None:
    path = build().write(tmp_path / "heads.tflite")
    for head in CLASSES:
        cached = TrainingSession(path, head=head, weight_cache=tmp_path / "cache")
        with cached, TrainingSession(path, head=head) as session:
            for mine, other in zip(learned(cached, head), learned(session, head), strict=True):
                np.testing.assert_equal(mine, other)


def test_the_frozen_layers_are_in_the_file_once(tmp_path: Path) -> None:
    heads = build()
    files = [alone(head).data for head in CLASSES]
    metadata = {name for name in read_program(heads.data, "birds").metadata if name.startswith("pocketune.initial/")}
    assert metadata == {f"pocketune.initial/{t.tensor}" for t in heads.programs["birds"].manifest.state_tensors}
    assert len(heads.data) < sum(map(len, files))
    for head, program in heads.programs.items():
        program.export_inference(tmp_path / "one.tflite", batch=2)
        alone(head).export_inference(tmp_path / "other.tflite", batch=2)
        assert (tmp_path / "one.tflite").read_bytes() == (tmp_path / "other.tflite").read_bytes()
        assert f"head        {head}\n" in repr(program)


def test_what_rounding_frozen_layers_costs_is_said_of_each_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converter.driver.quantization.report.LARGEST_LOSS", -1.0)
    options = {"update": "head", "batch": BATCH, "frozen": "int4", "calibration": rows("birds")[0]}
    with pytest.warns(QuantizationWarning, match="on the calibration samples") as warned:
        converter.build_heads(models(width=128), **options)
    assert len(warned) == len(CLASSES)


def test_a_state_of_another_head_is_refused_by_both_names(tmp_path: Path) -> None:
    same = models()["birds"]
    heads = converter.build_heads({"mine": same, "yours": same}, update="head", batch=BATCH)
    x, y = rows("birds")
    with TrainingSession(heads.data, head="mine") as session:
        session.fit(x, y, epochs=1, learning_rate=0.05, progress=False)
        session.save(tmp_path / "mine.state")
        after = session.evaluate(x, y)
    with TrainingSession(heads.data, head="mine") as session:
        session.restore(tmp_path / "mine.state")
        assert session.evaluate(x, y) == after
    with TrainingSession(heads.data, head="yours") as session, pytest.raises(UsageError) as refused:
        session.restore(tmp_path / "mine.state")
    assert "of the head mine" in str(refused.value)
    assert "of the head yours" in str(refused.value)
    with TrainingSession(heads.data, head="yours") as session:
        assert session.restore(tmp_path / "mine.state", adopt="matching").adopted
        close_to = session.evaluate(x, y)
    assert close_to == after


def test_rows_of_another_head_are_never_replayed(tmp_path: Path) -> None:
    same = models()["birds"]
    heads = converter.build_heads({"mine": same, "yours": same}, update="head", batch=BATCH)
    manifests = {head: program.manifest for head, program in heads.programs.items()}
    with TrainingSession(heads.data, head="mine") as session:
        session.remember(ReplayMemory(tmp_path / "mine.memory", manifests["mine"]), *rows("birds"))
    assert ReplayMemory(tmp_path / "mine.memory", manifests["mine"]).seen == len(rows("birds")[0])
    with pytest.raises(UsageError, match=r"another program: .*the head of a file of several"):
        ReplayMemory(tmp_path / "mine.memory", manifests["yours"])


def test_another_backbone_is_refused_by_its_first_layer() -> None:
    other = _rng().normal(size=(8, 8)).astype(np.float32)
    with pytest.raises(UsageError, match="no backbone in common: their frozen first layers differ at second"):
        converter.build_heads(models(second=other), update="head", batch=BATCH)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"head_reads": {"birds": "blocks", "frogs": None}}, "head_reads='blocks' is of birds and head_reads=None of"),
        (
            {"update": {"birds": "skip-lora-2", "frogs": "head"}},
            "update='skip-lora-2' is of birds and update='head' of",
        ),
        ({"batch": {"birds": 4, "frogs": 8}}, "batch=4 is of birds and batch=8 of frogs"),
        (
            {"update": "skip-lora-2"},
            "update='skip-lora-2' keeps the last layer frozen and its outputs among the features",
        ),
    ],
)
def test_options_that_leave_no_backbone_in_common_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"the heads birds and frogs have no backbone in common: .* {said}"):
        build(**options)


def test_what_is_refused() -> None:
    for options, said in (
        ({"signatures": ("train", "infer")}, "leave them out"),
        ({"state": "stateless"}, "keep their state in variables"),
        ({"memory_budget": "1MB"}, "memory_budget is of one program"),
        ({"update": "full"}, "first layer trains"),
    ):
        with pytest.raises(UsageError, match=said):
            build(**options)
    for names in (["one"], ["a/b", "c"]):
        with pytest.raises(UsageError, match="two heads or more by name"):
            converter.build_heads(dict.fromkeys(names, models()["birds"]), update="head", batch=BATCH)
    with pytest.raises(UsageError, match="a head cannot be called 'features'"):
        converter.build_heads({"features": models()["birds"], "frogs": models()["frogs"]}, update="head", batch=BATCH)
    data = build().data
    for head, said in ((None, "several heads: birds, frogs"), ("frog", "no head 'frog'. Did you mean 'frogs'")):
        with pytest.raises(UsageError, match=said):
            TrainingSession(data, head=head)
    with pytest.raises(UsageError, match="no head 'birds'"):
        TrainingSession(alone("birds").data, head="birds")
    with pytest.raises(UsageError, match="runs on the CPU"):
        TrainingSession(data, head="birds", accelerator="web:wasm")


@pytest.mark.parametrize("names", ["[]", "null", '["birds", "frog/"]', '["birds", frogs"]', "[" * 100_000, "{}"])
def test_a_damaged_list_of_heads_is_refused(names: str) -> None:
    with pytest.raises(UsageError, match="its list of heads is damaged"):
        metadata_of({HEADS: memoryview(names.encode())}, "birds")
