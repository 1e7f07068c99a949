"""Certificates of an engine whose mistakes are known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.program.file import read_program
from converter.program.flatbuffer.operators import OperatorFile
from converter.program.layers import Layers
from converter.program.manifest import Certificate, manifest_of_json
from converter.runtime.engines.engine import Engine
from converter.support.errors import UsageError
from converter.tools.certify.certify import examine
from converter.tools.certify.conformance import Judge
from converter.tools.certify.reference import calls
from converter.tools.certify.signing import sign
from tests.tools.certify.fake import Fake
from tests.tools.certify.stock import Stock


@cache
def built(optimizer: str = "sgd", state: str = "stateless", **options: Any) -> bytes:
    rng = np.random.default_rng(0)
    params = {
        name: {"w": rng.standard_normal(shape, np.float32) / 3, "b": np.zeros(shape[1], np.float32)}
        for name, shape in (("first", (6, 8)), ("second", (8, 8)), ("last", (8, 3)))
    }

    def apply(params: Any, x: Any) -> Any:
        first, second, last = params["first"], params["second"], params["last"]
        with jax.named_scope("first"):
            x = jax.nn.relu(x @ first["w"] + first["b"])
        with jax.named_scope("second"):
            x = jnp.tanh(x @ second["w"] + second["b"])
        with jax.named_scope("last"):
            return x @ last["w"] + last["b"]

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, 6), np.float32)])
    settings = {"signatures": ["train"], "batch": 4, "state": state, "check": False, **options}
    return converter.build(model, optimizer={"sgd": optax.sgd(1.0), "adam": "adam"}[optimizer], **settings).data


def examined(data: bytes | None = None, steps: int = 1, **faults: Any) -> Certificate:
    return examine(read_program(built() if data is None else data), Fake(**faults), steps)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_right_engine_is_certified(optimizer: str) -> None:
    certificate = examined(built(optimizer, signatures=("train", "evaluate", "infer")), steps=2)
    assert certificate.ok
    assert certificate.whole
    assert not certificate.failures
    for error in (certificate.loss_error, certificate.update_error, certificate.output_error):
        assert error is not None
        assert error < 1e-6
    assert certificate.holds("a fake", "1")
    assert not certificate.holds("a fake", "2")
    assert not replace(certificate, ok=False).holds("a fake", "1")


@pytest.mark.quick
def test_the_calls_of_micro_batches_are_compared() -> None:
    data = built("adam", micro_batch=2, signatures=("train",))
    assert examined(data).ok
    assert not examined(data, wrong="SQRT").ok  # in `apply` alone


def test_channels_are_chosen_as_a_session_may() -> None:
    scheme = converter.UpdateScheme("channels", {"second/w": converter.Channels(0.5)})
    program = read_program(built.__wrapped__(update=scheme))
    (choice,) = program.manifest.choices
    tensor = next(t for t in program.manifest.state_tensors if t.tensor == choice.indices)
    first, second = (call.feed[choice.indices] for call in calls(program, 2))
    assert choice.is_good(first)
    assert not np.array_equal(first, program.initial(tensor))
    np.testing.assert_array_equal(first, second)


def test_the_update_of_a_split_program_is_no_work_of_the_engine() -> None:
    split = built("adam", state="split", signatures=("train", "infer"))
    assert examined(split, refuses="SQRT").ok  # in `apply` alone
    assert not examined(split, refuses="TANH").ok


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_the_state_in_variables_is_compared(micro_batch: int | None) -> None:
    data = built("adam", "variables", micro_batch=micro_batch, signatures=("train", "evaluate", "infer"))
    program = read_program(data)
    certificate = examine(program, Stock(), 2)
    assert certificate.ok, certificate.failures
    assert certificate.update_error == certificate.loss_error == 0, "the stock interpreter is itself"
    certificate = examine(program, Stock("save", "second/w"), 2)
    assert certificate.whole
    assert not certificate.ok
    assert certificate.update_error is not None
    assert certificate.update_error > 1e-3
    assert "what a step changes in it (second/w)" in certificate.failures[0].what
    assert "stateless" in certificate.failures[0].advice
    assert not examine(program, Stock("infer", "output"), 1).ok
    assert not examine(program, Fake(), 1).whole, "what has no variables refuses them"


def test_state_in_int8_is_compared_as_integers() -> None:
    """An error of 5% of the scales is one of the state, and -1 is no 255."""
    data = built(state="variables", train_as="int8", signatures=("train", "evaluate", "infer"))
    program = read_program(data)
    certificate = examine(program, Stock(), 2)
    assert certificate.ok, certificate.failures
    assert certificate.update_error == certificate.loss_error == 0, "the stock interpreter is itself"
    certificate = examine(program, Stock("save", "second/w/scales"), 2)
    assert certificate.whole
    assert not certificate.ok


def test_a_refused_operator_is_named_with_its_layer() -> None:
    certificate = examined(refuses="TANH")
    assert not certificate.ok
    assert not certificate.whole
    assert [(f.layer, f.operator) for f in certificate.failures] == [("second", "TANH")]
    assert "it said no" in certificate.failures[0].what
    assert certificate.failures[0].advice


def test_a_wrong_operator_is_named_with_its_layer_although_all_was_taken() -> None:
    certificate = examined(wrong="TANH")
    assert certificate.whole
    assert not certificate.ok
    assert certificate.update_error is not None
    assert certificate.update_error > 1e-3
    assert {(f.layer, f.operator) for f in certificate.failures} == {("second", "TANH")}


def test_what_is_wrong_behind_another_operator_is_found_past_the_garbage() -> None:
    """An engine that fuses an activation with the product behind it, and so keeps nothing for others to see."""
    certificate = examined(fused=("TANH", "BATCH_MATMUL"))
    assert not certificate.ok
    assert {(f.layer, f.operator) for f in certificate.failures} == {("last", "BATCH_MATMUL")}
    assert not any(f.operator == "TANH" for f in certificate.failures)
    assert any("behind TANH" in f.what for f in certificate.failures)


def test_an_engine_that_ends_its_process_is_a_failure_with_its_last_words() -> None:
    certificate = examined(aborts="TANH")
    assert not certificate.ok
    assert [(f.layer, f.operator) for f in certificate.failures] == [("", ""), ("second", "TANH")]
    assert certificate.failures[0].what.startswith("the library crashed (SIGABRT)")
    assert "the engine's" in certificate.failures[0].advice
    assert all("dreadfully wrong" in failure.what for failure in certificate.failures)


def test_a_crash_is_not_put_down_to_the_operators_of_variables() -> None:
    """Alone in a file they mean nothing to an engine that has variables."""

    class Crashing(Fake):
        has_variables = True

    data = built("adam", "variables", signatures=("train",))
    certificate = examine(read_program(data), Crashing(aborts="TANH"), 1)
    assert certificate.failures[0].what.startswith("the library crashed (SIGABRT) in train")
    assert [(f.layer, f.operator) for f in certificate.failures[1:]] == [("second", "TANH")]


def test_what_takes_no_truth_values_is_not_blamed_for_them() -> None:
    data = built("adam")
    assert {"LESS", "SELECT_V2"} <= {operator.kind for operator in OperatorFile(data).operators(0)}
    certificate = examined(data, numbers=True, aborts="TANH")  # without a word, so that each operator is tried
    assert [(f.layer, f.operator) for f in certificate.failures] == [("", ""), ("second", "TANH")]


def test_an_engine_that_hangs_is_ended() -> None:
    certificate = examined(hangs="TANH", limit=3)
    assert [(f.layer, f.operator) for f in certificate.failures] == [("second", "TANH")]
    assert "did not come back" in certificate.failures[0].what


def test_float16_is_held_against_rounded_inputs() -> None:
    certificate = examined(built(loss="mse"), precision="float16", half=True)
    assert certificate.floor is not None
    assert 1e-5 < certificate.floor < 1e-1
    assert not certificate.ok  # the update of a weight drowns in the rounding of the weight
    assert "split" in certificate.failures[0].advice
    split = built("adam", state="split", signatures=("train", "infer"), loss="mse")
    certificate = examined(split, precision="float16", half=True, apart=True, steps=2)
    assert certificate.ok, certificate.failures
    assert certificate.update_error is not None
    assert certificate.floor is not None
    assert certificate.update_error > certificate.floor / 3


def masked() -> bytes:
    """An attention over some of the rows, whose others get a score that float16 does not have."""
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal((6, 6), np.float32) / 3 for name in ("query", "value")}

    def apply(params: Any, x: Any) -> Any:
        with jax.named_scope("scores"):
            scores = (x @ params["query"]) @ jnp.swapaxes(x, -1, -2) + jnp.where(jnp.tri(5, dtype=bool), 0.0, -1e9)
        with jax.named_scope("values"):
            return jnp.tanh(jax.nn.softmax(scores) @ (x @ params["value"])).mean(1)

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 5, 6), np.float32)])
    settings: dict[str, Any] = {"signatures": ["train"], "batch": 2, "state": "split", "check": False}
    return converter.build(model, optimizer=optax.sgd(1.0), **settings).data


def test_what_float16_has_no_number_for_is_no_witness() -> None:
    half = {"precision": "float16", "half": True, "apart": True}
    assert examined(masked(), **half).ok
    certificate = examined(masked(), wrong="TANH", **half)
    assert {(f.layer, f.operator) for f in certificate.failures} == {("values", "TANH")}


class Labelled(Fake):
    label = "the other"


class Both(Fake):
    """An engine of two parts; what is told are the mistakes of the second."""

    @property
    def parts(self) -> tuple[Engine, ...]:
        return Fake(), Labelled(**self._faults)


def test_each_part_of_an_engine_must_be_right() -> None:
    program = read_program(built())
    right = examine(program, Both(), 1)
    assert right.ok
    assert right.driver == "nothing"
    wrong = examine(program, Both(wrong="TANH"), 1)
    assert wrong.whole
    assert not wrong.ok
    assert wrong.update_error is not None
    assert wrong.update_error > 1e-3
    assert {(f.layer, f.operator) for f in wrong.failures} == {("second", "TANH")}
    assert all(f.what.startswith("the other: ") for f in wrong.failures)
    refused = examine(program, Both(refuses="TANH"), 1)
    assert not refused.whole
    assert not examine(program, Both(aborts="TANH"), 1).ok


def test_variables_run_on_no_delegate() -> None:
    certificate = examined(built(state="variables"))
    assert not certificate.ok
    assert "stateless" in certificate.failures[0].advice


@pytest.mark.quick
def test_a_certificate_travels_in_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.tflite"
    path.write_bytes(built())
    monkeypatch.setattr("converter.tools.certify.certify.engine", lambda on: Fake(wrong="TANH"))
    bad = converter.certify(path, on="gpu", steps=1)
    assert read_program(path).manifest.certificates == (bad,)
    monkeypatch.setattr("converter.tools.certify.certify.engine", lambda on: Fake())
    good = converter.certify(path, on="gpu", steps=1)
    manifest = read_program(path).manifest  # the checksum is checked
    assert manifest.certificates == (good,)
    assert manifest.is_certified("gpu", "a fake", "1")
    assert not manifest.is_certified("gpu", "a fake", "1.1")
    assert not manifest.is_certified("web", "a fake", "1")
    assert manifest.graph_hash == read_program(built()).manifest.graph_hash
    size = path.stat().st_size
    sign(path, good)
    assert path.stat().st_size == size  # the old one was taken out
    sign(path, replace(good, on="hexagon:SM8650"))
    assert [c.on for c in read_program(path).manifest.certificates] == ["gpu", "hexagon:SM8650"]
    before, after = (converter.runtime.TrainingSession(p) for p in (built(), path.read_bytes()))
    x, y = np.ones((4, 6), np.float32), np.zeros(4, np.int32)
    assert before.train(x, y, 0.1) == after.train(x, y, 0.1)


@pytest.mark.parametrize(
    "lie",
    [
        {"on": "toaster"},
        {"date": "yesterday"},
        {"steps": 0},
        {"loss_error": -1.0},
        {"whole": False},
        {"update_error": None},
        {"failures": [{"layer": "", "operator": "", "what": "no"}]},
    ],
)
def test_certificates_that_contradict_themselves_are_refused(lie: dict[str, Any]) -> None:
    manifest = read_program(built()).manifest.to_json()
    good = {"on": "gpu", "engine": "e", "version": "1", "driver": "", "date": "2026-01-01T00:00:00Z", "steps": 1}
    good |= {"ok": True, "whole": True, "precision": "float32", "loss_error": 0.0, "update_error": 0.0}
    assert manifest_of_json(manifest | {"certificates": [good]}).certificates
    with pytest.raises(UsageError, match=r"manifest: certificates"):
        manifest_of_json(manifest | {"certificates": [good | lie]})
    with pytest.raises(UsageError, match="twice"):
        manifest_of_json(manifest | {"certificates": [good, good]})


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.tflite"
    path.write_bytes(built())
    with pytest.raises(UsageError, match="no engine 'gpus'"):
        converter.certify(path, on="gpus")
    with pytest.raises(UsageError, match="stands alone"):
        converter.certify(path, on="gpu:SM8650")
    with pytest.raises(UsageError, match="steps"):
        converter.certify(path, on="gpu", steps=0)
    monkeypatch.setenv("POCKETUNE_ENGINES", str(tmp_path))
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    with pytest.raises(UsageError, match="engines gpu"):
        converter.certify(path, on="gpu")


def test_what_other_kernels_of_the_cpu_make_of_a_step_is_no_error() -> None:
    """As of Adam, which divides a gradient next to zero by itself; with variables no operator can be asked."""
    program = read_program(built("adam", "variables", signatures=("train",)))
    (call,) = (call for call in calls(program, 1) if call.signature == "train")
    name = next(name for name in call.expected if name == "second/w")
    moved = {**call.expected, name: call.expected[name] + np.float32(3e-4) * np.abs(call.expected[name]).max()}
    differing = replace(call, other_kernels=moved)
    for one, is_right in ((call, False), (differing, True)):
        found = Judge(program.manifest, Layers(program), [one], "float32").deviations(one, moved)
        assert [d.is_right for d in found if d.name == name] == [is_right]
        assert all(d.is_right for d in found if d.name != name)
