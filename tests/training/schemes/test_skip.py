"""Skip-LoRA against its definition in JAX and optax, with what it reads written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter import SkipLoRA
from converter.cli.recipe import read_recipe
from converter.cli.resolve import resolve_update
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.training.schemes import update_scheme
from tests.models.oracle import flat, jax_model
from tests.training.schemes.by_hand import ADAM, ZEROS, drawn
from tests.training.schemes.test_lora import infer

BATCH, STEPS, RATE = 4, 20, 0.02
OFFERED = ("train", "evaluate", "infer", "features")

#: Logits of the frozen model, and what each way reads, by the weight that reads it too: [rows, channels].
Reads = Callable[[Any, Any], tuple[Any, dict[str, Any]]]


def token_net(params: Any, x: Any, position: int | None) -> tuple[Any, dict[str, Any]]:
    """Two blocks of attention; the head reads one position, or the mean of those that are not padding."""
    reads, mask = {}, (x[..., :1] > -1).astype(x.dtype)

    def pooled(tokens: Any) -> Any:
        if position is not None:
            return tokens[:, position]
        return (tokens * mask).sum(1) / jnp.maximum(mask.sum(1), 1e-9)

    hidden = x @ params["embed"]["w"]
    for name in ("layer0", "layer1"):
        p = params[name]
        reads[f"{name}/query"] = pooled(hidden)
        scores = (hidden @ p["query"]) @ (hidden @ p["key"]).swapaxes(1, 2) / 3
        hidden = hidden + jax.nn.softmax(scores) @ hidden @ p["value"]
    reads["out/w"] = pooled(hidden)
    return pooled(hidden) @ params["out"]["w"] + params["out"]["b"], reads


def every_position(params: Any, x: Any) -> tuple[Any, dict[str, Any]]:
    """As a tagger: the head gives something for each position."""
    reads, hidden = {}, x
    for name in ("layer0", "layer1"):
        reads[f"{name}/up"] = hidden
        hidden = hidden + jnp.tanh(hidden @ params[name]["up"]) @ params[name]["down"]
    reads["out"] = hidden
    return hidden @ params["out"], reads


def of_shapes(reads: Reads, row: tuple[int, ...], **shapes: Any) -> jax_frontend.Model:
    rng = np.random.default_rng(3)
    params = jax.tree_util.tree_map(
        lambda shape: (rng.normal(size=shape) / 3).astype("f"), shapes, is_leaf=lambda shape: isinstance(shape, tuple)
    )
    return jax_frontend.Model(
        lambda params, x: reads(params, x)[0], params, [jax.ShapeDtypeStruct((1, *row), "float32")]
    )


_ATTENTION = {"query": (6, 9), "key": (6, 9), "value": (6, 6)}
_TOKENS = {"embed": {"w": (5, 6)}, "layer0": _ATTENTION, "layer1": _ATTENTION, "out": {"w": (6, 3), "b": (3,)}}
_FEED = {"up": (6, 8), "down": (8, 6)}


@cache
def pictures() -> keras.Model:
    """Inverted bottlenecks, of which the first has no expansion."""
    x = inputs = keras.Input((6, 6, 3), name="x")
    x = keras.layers.Conv2D(4, 3, padding="same", name="stem", **ZEROS)(x)
    for number in range(3):
        y = keras.layers.Conv2D(8, 1, activation="relu6", name=f"block{number}_expand", **ZEROS)(x) if number else x
        y = keras.layers.DepthwiseConv2D(
            3, strides=1 + number % 2, padding="same", name=f"block{number}_depthwise", depthwise_initializer="zeros"
        )(y)
        x = keras.layers.Conv2D(4, 1, name=f"block{number}_project", **ZEROS)(y)
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    made = keras.Model(inputs, keras.layers.Dense(3, activation="softmax", name="head", **ZEROS)(pooled))
    rng = np.random.default_rng(0)
    for layer in made.layers:
        layer.set_weights([drawn(rng, w) for w in layer.get_weights()])
    return made


def mean(x: Any) -> Any:
    return x.mean((1, 2))


def quarters(x: Any) -> Any:
    """Means of 2 x 2 parts, row by row; of 3 pixels the middle one is in both."""
    begin, length = {6: ((0, 3), 3), 3: ((0, 1), 2)}[x.shape[1]]
    return jnp.concatenate([mean(x[:, i : i + length, j : j + length]) for i in begin for j in begin], 1)


def of_quarters(params: Any, x: Any) -> tuple[Any, dict[str, Any]]:
    return of_pictures(params, x, quarters)


def of_pictures(params: Any, x: Any, pooled: Callable[[Any], Any] = mean) -> tuple[Any, dict[str, Any]]:
    """What Keras' own layers give; it has no parameters that would be traced."""
    first = {"block0_depthwise/kernel": "stem", "block1_expand/kernel": "block0_project"}
    first |= {"block2_expand/kernel": "block1_project", "head/kernel": "pool"}
    of = keras.Model(pictures().input, [pictures().get_layer(name).output for name in (*first.values(), "head")])
    *read, probabilities = map(jnp.asarray, of(x))
    return jnp.log(probabilities), {
        name: pooled(value) if value.ndim == 4 else value for name, value in zip(first, read, strict=True)
    }


def series_net(params: Any, x: Any) -> tuple[Any, dict[str, Any]]:
    """Two layers over a series of 5 steps; of halves the middle step is in both."""
    reads, hidden = {}, x
    for name in ("first", "second"):
        reads[name] = jnp.concatenate([hidden[:, :3].mean(1), hidden[:, 2:].mean(1)], 1)
        hidden = jnp.tanh(hidden @ params[name])
    reads["out"] = hidden.mean(1)
    return reads["out"] @ params["out"], reads


@dataclass(frozen=True)
class Case:
    """A model, what is read of it, and how: a part of what the table says."""

    model: Callable[[], Any]
    reads: Reads
    row: tuple[int, ...]
    said: str
    update: Any = "skip-lora-2"


def one(params: Any, x: Any) -> tuple[Any, dict[str, Any]]:
    return token_net(params, x, 0)


def masked(params: Any, x: Any) -> tuple[Any, dict[str, Any]]:
    return token_net(params, x, None)


CASES = {
    "pictures": Case(pictures, of_pictures, (6, 6, 3), "in the mean of 36 positions"),
    "last-block": Case(pictures, of_pictures, (6, 6, 3), "in the mean of 9 positions", "skip-lora-2:1"),
    "token": Case(lambda: of_shapes(one, (7, 5), **_TOKENS), one, (7, 5), "of position 0 of 7"),
    "mask": Case(lambda: of_shapes(masked, (7, 5), **_TOKENS), masked, (7, 5), "weighted as before the head"),
    "positions": Case(
        lambda: of_shapes(every_position, (4, 6), layer0=_FEED, layer1=_FEED, out=(6, 3)),
        every_position,
        (4, 6),
        "at each of 4 positions",
    ),
    "parts": Case(pictures, of_quarters, (6, 6, 3), "in means of 2 parts along each axis", "skip-lora-2/2"),
    "parts of the last": Case(pictures, of_quarters, (6, 6, 3), "in means of 2 parts", "skip-lora-2:1/2"),
    "series": Case(
        lambda: of_shapes(series_net, (5, 3), first=(3, 4), second=(4, 4), out=(4, 3)),
        series_net,
        (5, 3),
        "in means of 2 parts",
        "skip-lora-2/2",
    ),
    "rules": Case(pictures, of_pictures, (6, 6, 3), "in the mean of 36 positions", {"block1_expand/*": SkipLoRA(1)}),
}


@cache
def program(name: str, **options: Any) -> converter.Program:
    case = CASES[name]
    given = {"optimizer": ADAM, "update": case.update, "signatures": OFFERED, **options}
    return converter.build(case.model(), batch=BATCH, check=False, **given)


def data(name: str, seed: int, rows: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    targets = (rows, 4) if name == "positions" else (rows,)
    return rng.normal(size=(rows, *CASES[name].row)).astype("f"), rng.integers(0, 3, targets).astype(np.int32)


@pytest.mark.parametrize("kept", [False, True], ids=["inputs", "features"])
@pytest.mark.parametrize("name", CASES)
def test_a_training_is_that_of_its_definition(name: str, kept: bool) -> None:
    """y = frozen(x) + sum_k p(x_k) A_k B_k; the model itself is computed by JAX alone, its weights constants."""
    case = CASES[name]
    params = flat(jax_model(case.model()).params)
    frozen = params[1](params[0])
    with TrainingSession(program(name).data) as session:
        trained = {n: jnp.asarray(array) for n, array in session.parameters().items()}
        assert trained
        assert all(n.endswith(("/skip_a", "/skip_b")) for n in trained)

        def loss(trained: Any, logits: Any, reads: dict[str, Any], y: Any) -> Any:
            ways = [n.removesuffix("/skip_a") for n in trained if n.endswith("/skip_a")]
            logits = logits + sum(reads[n] @ trained[f"{n}/skip_a"] @ trained[f"{n}/skip_b"] for n in ways)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        slots = ADAM.init(trained)
        for step in range(STEPS):
            x, y = data(name, step)
            on_features = kept and session.fit(x, y, 1, RATE, shuffle=False, progress=False)
            ours = on_features["loss"][0] if on_features else session.train(x, y, RATE)
            theirs, gradients = jax.value_and_grad(loss)(trained, *case.reads(frozen, x), y)
            updates, slots = ADAM.update(gradients, slots, trained)
            trained = {n: p + RATE * updates[n] for n, p in trained.items()}
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        for n, array in session.parameters().items():
            np.testing.assert_allclose(array, trained[n], rtol=0, atol=1e-5, err_msg=n)
    assert any(case.said in row.why for row in program(name).table)


@pytest.mark.parametrize("name", ["pictures", "parts", "token"])
def test_what_is_kept_is_pooled_and_no_frozen_layer_is_in_the_step_on_it(name: str) -> None:
    made = program(name)
    x, _ = data(name, 0)
    with TrainingSession(made.data) as session:
        kept = session.features(x)
        logits, reads = CASES[name].reads(jax_model(CASES[name].model()).params, x)
    shapes = sorted(array.shape for array in kept)
    assert shapes == sorted([logits.shape, *(value.shape for value in reads.values())])
    step = made.manifest.signatures["train_features"]
    assert [spec.shape for spec in step.inputs if spec.role == "input"] == [array.shape for array in kept]


@pytest.mark.parametrize("name", ["pictures", "parts", "mask"])
def test_the_exported_model_has_the_ways_in_it(name: str, tmp_path: Path) -> None:
    x, y = data(name, 0, rows=BATCH)
    with TrainingSession(program(name).data) as session:
        before = session.infer(x)
        session.fit(x, y, epochs=5, learning_rate=0.1, progress=False)
        plain = program(name).export_inference(tmp_path / "plain.tflite", session.state())
        trained = session.infer(x)
    assert np.abs(trained - before).max() > 0.05
    np.testing.assert_array_equal(infer(plain, x), trained)


def test_from_a_tflite_file_the_program_s_own_model_is_exported(tmp_path: Path) -> None:
    """The file has no operators for the ways."""
    x, y = data("pictures", 0, rows=BATCH)
    file = program("pictures").export_inference(tmp_path / "file.tflite")
    made = converter.build(file, update="skip-lora-2", batch=BATCH, signatures=OFFERED)
    assert any("the file has no place for ways" in note.why for note in made.notes)
    assert sum(row.fraction for row in made.table) == 8
    with TrainingSession(made.data) as session:
        session.fit(x, y, epochs=5, learning_rate=0.1, progress=False)
        plain = made.export_inference(tmp_path / "plain.tflite", session.state())
        np.testing.assert_array_equal(infer(plain, x), session.infer(x))


def test_a_keras_file_has_no_place_for_them(tmp_path: Path) -> None:
    from converter.frontends.keras.export import with_weights

    pictures().save(tmp_path / "model.keras")
    with (
        TrainingSession(program("pictures").data) as session,
        pytest.raises(UsageError, match="no place for Skip-LoRA"),
    ):
        with_weights(tmp_path / "model.keras", session.parameters(), tmp_path / "out.keras")
    assert not (tmp_path / "out.keras").exists()


def test_int8_layers_keep_integers() -> None:
    x, y = data("pictures", 0, rows=16)
    options = {"frozen": "int8", "calibration": x, "signatures": OFFERED}
    made = converter.build(pictures(), batch=BATCH, check=False, update="skip-lora-2", **options)
    with TrainingSession(made.data) as session, TrainingSession(program("pictures").data) as exact:
        assert {array.dtype for array in session.features(x)} <= {np.dtype("int8"), np.dtype("float32")}
        np.testing.assert_allclose(session.infer(x), exact.infer(x), atol=0.05)
        losses = session.fit(x, y, epochs=20, learning_rate=0.1, progress=False)["loss"]
    assert losses[-1] < losses[0]


def test_names() -> None:
    assert update_scheme("skip-lora").adapter == SkipLoRA(8)
    assert update_scheme("skip-lora-3:2").adapter == SkipLoRA(3)
    assert update_scheme("skip-lora-3/2").adapter == update_scheme("skip-lora-3:4/2").adapter == SkipLoRA(3, parts=2)
    for name in (
        "skip-lora-0",
        "skip-lora-8/",
        "skip-lora-8/0",
        "skip-lora-8/x",
        "skip-lora-8/2:4",
        "skip-lora-8:",
        "skip-lora-8:0",
        "skip-lora-8:x",
        "skip-8",
    ):
        with pytest.raises(UsageError, match="unknown update scheme"):
            update_scheme(name)
    with pytest.raises(UsageError, match="rank must be"):
        SkipLoRA(0)
    with pytest.raises(UsageError, match="parts must be"):
        SkipLoRA(8, parts=0)


def test_a_name_with_parts_is_no_path(tmp_path: Path) -> None:
    assert resolve_update("skip-lora-8:4/2") == "skip-lora-8:4/2"
    for said, wanted in (("'skip-lora-8/2'", "skip-lora-8/2"), ("'rules/8.toml'", str(tmp_path / "rules/8.toml"))):
        (tmp_path / "recipe.toml").write_text(f"update = {said}")
        assert read_recipe(tmp_path / "recipe.toml").get("update") == wanted
    rules = resolve_update({"a/*": {"skip_lora": 4, "parts": 2}, "b/*": {"skip_lora": 4}}).rules
    assert rules == {"a/*": SkipLoRA(4, parts=2), "b/*": SkipLoRA(4)}


@pytest.mark.parametrize("name", ["token", "mask"])
def test_parts_of_a_text_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"no Skip-LoRA in parts from .*'skip-lora-8' reads no parts"):
        program(name, update="skip-lora-2/2")


def _two_outputs() -> keras.Model:
    x = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="relu")(x)
    return keras.Model(x, {"a": keras.layers.Dense(2, name="a")(hidden), "b": keras.layers.Dense(2, name="b")(hidden)})


def _only_a_head() -> keras.Model:
    return keras.Sequential([keras.Input((4, 2)), keras.layers.Flatten(), keras.layers.Dense(3)])


def _time_first() -> jax_frontend.Model:
    """As many steps as rows, so that shapes tell nothing."""

    def net(params: Any, x: Any) -> Any:
        steps = jnp.tanh(x[:, :, ::-1].swapaxes(0, 1)[::-1])  # time is the first axis, and the rows are the second
        return jnp.tanh(steps @ params["first"]).mean(0) @ params["head"]

    rng = np.random.default_rng(0)
    params = {"first": rng.normal(size=(3, 4)).astype("f"), "head": rng.normal(size=(4, 2)).astype("f")}
    return jax_frontend.Model(net, params, [jax.ShapeDtypeStruct((1, BATCH, 3), "float32")])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (_only_a_head, "no block or layer .* stands before the head"),
        (_two_outputs, "the model has a, b"),
        (_time_first, "along the first axis, and that is not so here"),
    ],
    ids=["no-blocks", "two-outputs", "time-first"],
)
def test_refused(model: Callable[[], Any], said: str) -> None:
    given = {"loss": dict.fromkeys("ab", "sparse_categorical_crossentropy")} if model is _two_outputs else {}
    with pytest.raises(UsageError, match=said):
        converter.build(model(), batch=BATCH, update="skip-lora-2", **given)


def test_statistics_of_the_batch_are_refused() -> None:
    x = keras.Input((4,))
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dense(5)(x))
    model = keras.Model(x, keras.layers.Dense(2, name="head")(keras.layers.Dense(5)(hidden)))
    with pytest.raises(UsageError, match="SkipLoRA"):
        converter.build(model, batch=BATCH, update="skip-lora-2", batch_norm="train")


def test_the_file_names_no_adapter_to_merge(tmp_path: Path) -> None:
    program("pictures").write(tmp_path / "p.tflite")
    manifest = read_program(tmp_path / "p.tflite").manifest
    assert manifest.update.scheme == "skip-lora-2"
    assert {p.name for p in manifest.parameters} == set(TrainingSession(tmp_path / "p.tflite").parameters())
