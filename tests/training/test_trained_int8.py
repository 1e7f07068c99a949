"""`train_as="int8"` beside its definition in JAX (`int8_by_definition`), 20 steps of random nets; and its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.driver.program import Program
from converter.federated import identity as federated_identity
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.runtime.export.export import export_weights
from converter.support.errors import NumericError, UsageError
from converter.support.litert import Interpreter
from tests.training.int8_by_definition import stored_as, trained

BATCH, STEPS = 6, 20
RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(max(np.prod(shape[:-1]), 1))).astype(np.float32)


def dense(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["hidden"] + params["bias"])
    return hidden @ params["head"]


def pictures(params: Any, x: Any) -> Any:
    for name, stride in (("first", 2), ("second", 1)):
        x = jax.lax.conv_general_dilated(
            x, params[name], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
    return x.mean((1, 2)) @ params["head"]


def depthwise(params: Any, x: Any) -> Any:
    x = jax.lax.conv_general_dilated(
        x, params["deep"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=x.shape[-1]
    )
    return jax.nn.relu(x).reshape(x.shape[0], -1) @ params["head"] + params["bias"]


def embedding(params: Any, x: Any) -> Any:
    return jnp.tanh(params["table"][x].mean(1)) @ params["head"]


def recurrent(params: Any, x: Any) -> Any:
    """No layer of the graph reads the weights of the loop: their scales are those of the last axis."""

    def step(hidden: Any, row: Any) -> tuple[Any, None]:
        return jnp.tanh(row @ params["given"] + hidden @ params["kept"]), None

    hidden, _ = jax.lax.scan(step, jnp.zeros((x.shape[0], 8)), jnp.swapaxes(x, 0, 1))
    return hidden @ params["head"]


#: What a net computes, its weights, the shape of an input, and the rate.
NETS: dict[str, tuple[Any, dict[str, np.ndarray], tuple[int, ...], float]] = {
    "dense": (dense, {"hidden": weight(9, 16), "bias": weight(16), "head": weight(16, 5)}, (9,), 0.1),
    "pictures": (
        pictures,
        {"first": weight(3, 3, 2, 8), "second": weight(3, 3, 8, 6), "head": weight(6, 5)},
        (8, 8, 2),
        0.2,
    ),
    "depthwise": (
        depthwise,
        {"deep": weight(3, 3, 1, 8), "head": weight(4 * 4 * 8, 5), "bias": weight(5)},
        (4, 4, 4),
        0.05,
    ),
    "recurrent": (recurrent, {"given": weight(5, 8), "kept": weight(8, 8), "head": weight(8, 5)}, (40, 5), 0.1),
    "embedding": (embedding, {"table": weight(40, 8), "head": weight(8, 5)}, (7,), 0.5),
}


def batches(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    rng, shape = np.random.default_rng(1), (BATCH, *NETS[name][2])
    draw = (lambda: rng.integers(0, 40, shape)) if name == "embedding" else (lambda: rng.normal(size=shape))
    kind = np.int32 if name == "embedding" else np.float32
    return [(draw().astype(kind), rng.integers(0, 5, BATCH).astype(np.int32)) for _ in range(STEPS)]


def loss(apply: Any) -> Any:
    def mean(params: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y).mean()

    return mean


def built(name: str, **options: Any) -> Program:
    apply, params, shape, _ = NETS[name]
    kind = np.int32 if name == "embedding" else np.float32
    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((None, *shape), kind)])
    return converter.build(model, **{"batch": BATCH, "optimizer": "sgd", "train_as": "int8", "check": False, **options})


#: A net, and what else is asked of its program.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in NETS},
    "micro-batches": ("dense", {"micro_batch": 2}),
    "part of a weight": ("dense", {"update": {"hidden": 0.5, "bias": 1, "head": 1}}),
    "an older runtime": ("pictures", {"target": "tflite-2.16"}),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_definition(case: str) -> None:
    name, options = CASES[case]
    apply, params, _, rate = NETS[name]
    rows, program = batches(name), built(name, **options)
    how = stored_as(program.manifest.to_json())
    assert set(how) == {one for one, array in params.items() if array.ndim > 1}
    losses, wanted, integers = trained(loss(apply), params, how, rows, rate)
    with TrainingSession(program.data) as session:
        begun = session.state()
        found = [session.train(x, y, rate) for x, y in rows]
        state, after = session.state(), session.parameters()
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for one in how:
        np.testing.assert_array_equal(state[one], integers[one])
        assert (state[one] != begun[one]).mean() > 0.3
    for one, array in wanted.items():
        np.testing.assert_allclose(after[one], array, rtol=0, atol=1e-5, err_msg=one)


def test_a_quarter_of_the_state_in_any_target_of_a_cpu() -> None:
    program, whole = built("pictures"), built("pictures", train_as="float32")
    weights = sum(array.size for array in NETS["pictures"][1].values() if array.ndim > 1)
    scales = 4 * (8 + 6 + 5)  # of the output channels
    assert whole.manifest.state_bytes - program.manifest.state_bytes == 3 * weights - scales - 4
    assert program.costs["state_bytes"] == program.manifest.state_bytes


def test_steps_on_features_are_the_same_steps() -> None:
    program = built("pictures", update={"*": 1, "first": 0}, signatures=("train", "infer", "features"))
    rows = batches("pictures")[:8]
    x, y = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
    with TrainingSession(program.data) as session:
        session.fit(x, y, epochs=1, learning_rate=0.2, shuffle=False)
        found = session.state()
        session.reset()
        for one, label in rows:
            session.train(one, label, 0.2)
        for name, array in session.state().items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("rows", [1, BATCH])
def test_the_exported_model_has_the_numbers_that_integers_stand_for(tmp_path: Path, rows: int) -> None:
    """To the bit what the session infers, by a plain model of float32; the weights alone are the same numbers."""
    program, given = built("depthwise", batch=rows), batches("depthwise")
    with TrainingSession(program.data) as session:
        for x, y in given[:4]:
            session.train(x[:rows], y[:rows], 0.1)
        session.save(tmp_path / "own.state")
        wanted, weights, state = session.infer(given[0][0]), session.parameters(), session.state()
    program.export_inference(tmp_path / "plain.tflite", tmp_path / "own.state")
    runtime = Interpreter(str(tmp_path / "plain.tflite"))
    assert not [d["name"] for d in runtime.get_tensor_details() if d["dtype"] == np.int8]
    run = runtime.get_signature_runner()
    (found,) = run(**{next(iter(run.get_input_details())): given[0][0]}).values()
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(NETS["depthwise"][0](weights, given[0][0]), wanted, rtol=1e-5, atol=1e-6)
    export_weights(read_program(program.data), tmp_path / "own.npz", state)
    with np.load(tmp_path / "own.npz") as file:
        assert {name: file[name].tolist() for name in file.files} == {n: a.tolist() for n, a in weights.items()}


def test_a_file_is_exported_with_the_numbers_that_integers_stand_for(tmp_path: Path) -> None:
    built("pictures", train_as="float32").export_inference(tmp_path / "own.tflite")
    options = {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy", "batch": BATCH}
    program, given = converter.build(tmp_path / "own.tflite", train_as="int8", **options), batches("pictures")
    assert [t.tensor for t in program.manifest.state_tensors if t.dtype == "int8"]
    with TrainingSession(program.data) as session:
        for x, y in given[:4]:
            session.train(x, y, 0.2)
        wanted, state = session.infer(given[0][0]), session.state()
    program.export_inference(tmp_path / "trained.tflite", state)
    run = Interpreter(str(tmp_path / "trained.tflite")).get_signature_runner()
    (found,) = run(**{next(iter(run.get_input_details())): given[0][0]}).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_states_go_on_in_another_build_and_not_in_float32(tmp_path: Path) -> None:
    first, other = built("dense"), built("dense", batch=2)
    with TrainingSession(first.data) as session:
        for x, y in batches("dense")[:4]:
            session.train(x, y, 0.1)
        session.save(tmp_path / "own.state")
        wanted = session.parameters()
    with TrainingSession(other.data) as session:
        session.restore(tmp_path / "own.state")
        for name, array in session.parameters().items():
            np.testing.assert_array_equal(array, wanted[name])
    with TrainingSession(built("dense", train_as="float32").data) as session:
        with pytest.raises(UsageError, match="head is int8 there, float32 here"):
            session.restore(tmp_path / "own.state")
        restored = session.restore(tmp_path / "own.state", adopt="matching")
        assert restored.adopted == ("bias",)


def test_integers_are_not_taken_over_without_their_scales(tmp_path: Path) -> None:
    """The scales of a weight that trains in part are of the shape of those of the whole one."""
    with TrainingSession(built("dense", update={"hidden": 0.5, "bias": 1, "head": 1}).data) as session:
        session.train(*batches("dense")[0], 0.1)
        session.save(tmp_path / "own.state")
    with TrainingSession(built("dense").data) as session:
        restored = session.restore(tmp_path / "own.state", adopt="matching")
        assert restored.adopted == ("bias", "head", "head/scales", "random/update")
        assert restored.left == ("hidden", "hidden/scales")


def test_what_is_no_number_is_told() -> None:
    """The update leaves float32's range: the weights are none then, as they would be in float32."""
    x, y = batches("dense")[0]
    with TrainingSession(built("dense").data) as session:
        begun = session.state()
        with pytest.raises(NumericError, match="makes weights or slots NaN or infinite"):
            session.train(x, y, 3e38)
        assert all(np.array_equal(array, begun[name]) for name, array in session.state().items())


def test_zeros_have_no_range_and_stay_float32() -> None:
    """A channel of zeros has the largest of the other scales."""
    apply, params, shape, _ = NETS["dense"]
    hidden = params["hidden"].copy()
    hidden[:, 3] = 0
    zeros = {**params, "hidden": hidden, "head": np.zeros((16, 5), np.float32)}
    model = jax_frontend.Model(apply, zeros, inputs=[jax.ShapeDtypeStruct((None, *shape), np.float32)])
    program = converter.build(model, batch=BATCH, optimizer="sgd", train_as="int8")
    types = {tensor.tensor: tensor.dtype for tensor in program.manifest.state_tensors}
    assert (types["hidden"], types["head"]) == ("int8", "float32")
    with TrainingSession(program.data) as session:
        scales = session.state()["hidden/scales"].reshape(-1)
    largest = np.abs(hidden).max(0)
    largest[3] = largest.max()
    np.testing.assert_allclose(scales, largest / 96)


def test_a_channel_that_decay_left_near_zero_trains_as_one_of_zeros() -> None:
    """By its own scale it would stay there; what is small beside the others and not nothing keeps its own."""
    apply, params, shape, _ = NETS["dense"]
    found = {}
    for factor in (0.0, 1e-20, 1e-6):
        hidden = params["hidden"].copy()
        hidden[:, 3] *= factor
        model = jax_frontend.Model(
            apply, {**params, "hidden": hidden}, inputs=[jax.ShapeDtypeStruct((None, *shape), np.float32)]
        )
        program = converter.build(model, batch=BATCH, optimizer="sgd", train_as="int8", check=False)
        with TrainingSession(program.data) as session:
            begun = session.parameters()["hidden"]
            for x, y in batches("dense"):
                session.train(x, y, 0.3)
            found[factor] = begun, session.parameters()["hidden"]
    for before, after in zip(found[0.0], found[1e-20], strict=True):
        np.testing.assert_array_equal(after, before)
    assert np.abs(found[1e-20][1][:, 3]).max() > 0.02
    np.testing.assert_allclose(found[1e-6][0][:, 3], params["hidden"][:, 3] * 1e-6, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("said", "options"),
    {
        "optimizer keeps slots for each number": {"optimizer": "adam"},
        "no proximal": {"proximal": 0.1},
        "has an adapter": {"update": "lora-2"},
        "has state='stateless'": {"state": "stateless"},
        "has state='split'": {"state": "split"},
        "and gpu has state": {"target": "gpu"},
        "and tflm has state": {"target": "tflm"},
        "head='class_means'": {"head": "class_means", "update": "head"},
        "classes='5\\+2'": {"classes": "5+2"},
        "no weight is a matrix or filter": {"update": {"*": 0, "bias": 1}},
        "unknown train_as 'int4'": {"train_as": "int4"},
    }.items(),
)
def test_what_does_not_go_together_is_refused(said: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=said):
        built("dense", **options)


@pytest.mark.parametrize("name", ["hidden/scales", "random/update"])
def test_a_parameter_with_the_name_of_what_is_kept_is_refused(name: str) -> None:
    _, params, shape, _ = NETS["dense"]
    model = jax_frontend.Model(
        lambda p, x: (x @ p["hidden"] * p[name]) @ p["head"],
        {**params, name: weight(16)},
        inputs=[jax.ShapeDtypeStruct((None, *shape), np.float32)],
    )
    with pytest.raises(UsageError, match=f"under the name '{name}'"):
        converter.build(model, batch=BATCH, optimizer="sgd", train_as="int8")


def test_means_of_several_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="keeps weights in int8"):
        federated_identity(built("dense").data)
