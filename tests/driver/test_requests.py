"""What a user asks of `build` that cannot be: a sentence that says what to do, before anything is computed."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import converter
import jax_frontend
from converter.support.errors import UsageError
from tests.runtime.programs import EXAMPLES

LABEL = jax.ShapeDtypeStruct((1,), "int32")


def squared(outputs: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((outputs - y) ** 2, -1)


def test_a_loss_of_labels_says_how_to_describe_them() -> None:
    def loss(logits: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    with pytest.raises((TypeError, ValueError), match=r".") as caught:
        converter.build(EXAMPLES["mlp"].model(), loss=loss)
    assert not isinstance(caught.value, UsageError)  # it is the user's own function that failed
    (note,) = [note for note in caught.value.__notes__ if note.startswith("Your loss")]
    assert "y of the type of the model's output, float32[8,4]" in note
    assert "y=jax.ShapeDtypeStruct((1,), 'int32')" in note
    converter.build(EXAMPLES["mlp"].model(), loss=loss, y=jax.ShapeDtypeStruct((1,), "int32"), check=False)


def test_what_y_is_does_not_go_into_target() -> None:
    with pytest.raises(UsageError, match="What y is goes into `y`"):
        converter.build(EXAMPLES["mlp"].model(), target=jax.ShapeDtypeStruct((1,), "int32"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"], "labels names 1 classes, and the model has 4: one name for each"),
        ([*"abcde"], "labels names 5 classes, and the model has 4"),
        ([], "labels names 0 classes"),
        ("abcd", "labels are names of the classes, a list of strings, not 'abcd'"),
        (4, "a list of strings, not 4"),
        ([1, 2, 3, 4], r"a list of strings, not \[1, 2, 3, 4\]"),
    ],
)
def test_each_class_has_a_name(labels: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converter.build(EXAMPLES["mlp"].model(), labels=labels)


def test_names_of_classes_are_in_the_manifest() -> None:
    assert converter.build(EXAMPLES["mlp"].model(), labels=(*"abcd",), check=False).manifest.labels == (*"abcd",)
    weights = {"w": np.ones((3, 1), np.float32)}
    one = jax_frontend.Model(lambda p, x: x @ p["w"], weights, [jax.ShapeDtypeStruct((1, 3), np.float32)])
    built = converter.build(one, loss="binary_crossentropy", labels=["no", "yes"], check=False)
    assert built.manifest.labels == ("no", "yes")


def test_a_card_is_in_the_manifest() -> None:
    card = {"license": "Apache-2.0", "source": "https://example.org/net", "wörter": "é\n\\"}
    made = converter.build(EXAMPLES["mlp"].model(), card=card, check=False).manifest
    assert made.card == card
    assert converter.build(EXAMPLES["mlp"].model(), check=False).manifest.card == {}


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("Apache-2.0", "card holds texts by name, for example {'license': 'Apache-2.0'}, not 'Apache-2.0'"),
        ({"license": 2}, "card holds texts by name"),
        ({1: "a"}, "card holds texts by name"),
    ],
)
def test_a_card_holds_texts(card: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        converter.build(EXAMPLES["mlp"].model(), card=card)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"card": {"license": "half \ud800"}}, "card is written into the program, as JSON in UTF-8"),
        ({"labels": ("a", "b", "c", "half \ud800")}, "labels is written into the program"),
        ({"name": "half \ud800"}, "name is written into the program"),
        ({"preprocessing": {"mean": float("nan")}}, "preprocessing is written into the program"),
        ({"preprocessing": {"mean": np.float32(1)}}, "preprocessing is written into the program"),
        ({"preprocessing": "0..1"}, "preprocessing is a dict that the app reads"),
        ({"preprocessing": {1: 2}}, "preprocessing is a dict that the app reads"),
    ],
)
def test_what_a_manifest_cannot_hold_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        converter.build(EXAMPLES["mlp"].model(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "mse", "y": LABEL}, r"mse takes y as float32\[8,4\], .*: leave y out"),
        ({"loss": "distillation", "y": {"label": LABEL}}, r"distillation takes y as .*: leave y out"),
        ({"loss": {"head": "mse"}}, "loss: the model has one output, pass what it is for that output alone"),
        ({"loss": "mse", "loss_weights": 2.0}, "loss_weights is for losses by output"),
        ({"loss": squared, "y": "int32"}, "y= describes y"),
        ({"loss": squared, "y": {}}, "y= describes y"),
        ({"loss": "triplet"}, "triplet compares 3 outputs of the model, and there are 1"),
        ({"loss": "ctx"}, "unknown loss 'ctx'. Did you mean 'ctc'"),
        ({"loss": None, "target": LABEL}, "goes into `y`"),
    ],
)
def test_what_is_said_of_y_and_of_the_loss_fits_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converter.build(EXAMPLES["mlp"].model(), **options)


def test_a_named_loss_may_be_told_what_it_takes() -> None:
    converter.build(EXAMPLES["mlp"].model(), y=LABEL, check=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_scale": 1000.0}, "loss_scale 1000: take a power of two"),
        ({"loss_scale": 2.0**40}, "loss_scale .*: take a power of two from"),
        ({"loss_scale": -2}, "loss_scale must be a positive number"),
        ({"loss_scale": 1024, "state": "stateless"}, "build with state='split'"),
        ({"state": "splitted"}, "variables or stateless or split"),
    ],
)
def test_a_loss_scale_is_a_power_of_two_for_split_programs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converter.build(EXAMPLES["mlp"].model(), **{"state": "split", **options})


@pytest.mark.parametrize("options", [{"batch": 10**9}, {"batch": 10**9, "micro_batch": 1}, {"batch": 65537}])
def test_batches_have_an_end(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="batch: a step has at most 65,536 rows"):
        converter.build(EXAMPLES["mlp"].model(), **options)
    with pytest.raises(UsageError, match="batch: a step has at most 65,536 rows"):
        converter.build(EXAMPLES["mlp"].model(), memory_budget="1MiB", **options)


def test_an_input_of_too_many_numbers() -> None:
    inputs = [jax.ShapeDtypeStruct((1, 1024, 1024, 3), np.float32)]
    model = jax_frontend.Model(lambda p, x: jnp.mean(x, (1, 2)) @ p["w"], {"w": np.ones((3, 2), np.float32)}, inputs)
    with pytest.raises(UsageError, match=r"1024 rows at once are too many: .* a smaller batch, or a micro_batch"):
        converter.build(model, batch=1024)


def test_building_leaves_the_garbage_collector_as_it_was() -> None:
    enabled = gc.isenabled()
    try:
        for switch in (gc.disable, gc.enable):
            switch()
            before = gc.isenabled()
            converter.build(EXAMPLES["mlp"].model(), check=False)
            assert gc.isenabled() == before
            with pytest.raises(UsageError):
                converter.build(EXAMPLES["mlp"].model(), loss="nothing", check=False)
            assert gc.isenabled() == before
    finally:
        (gc.enable if enabled else gc.disable)()


def test_a_program_is_called_as_asked() -> None:
    model = EXAMPLES["mlp"].model()
    assert converter.build(model, check=False).manifest.name == model.name
    assert converter.build(model, check=False, name="digits of Ada").manifest.name == "digits of Ada"
    with pytest.raises(UsageError, match="name must be a text, not 3"):
        converter.build(model, check=False, name=3)


ROWS = np.zeros((8, 3), np.float32), np.zeros(8, np.int32)
#: Functions that take options of `build` by keyword.
PLANNERS = {
    "compare_schemes": lambda model, **options: converter.compare_schemes(model, ["full"], **options),
    "estimate": lambda model, **options: converter.estimate(model, "pixel-8", ["full"], **options),
    "search": lambda model, **options: converter.search(model, ROWS, workers=0, **options),
}


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("keyword", ["bach", "update", "check", "targets"])
def test_planners_refuse_what_would_have_no_effect(name: str, keyword: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '{keyword}'"):
        PLANNERS[name](EXAMPLES["mlp"].model(), **{keyword: "head"})


@pytest.mark.parametrize("name", ["compare_schemes", "estimate"])
def test_planners_take_modules_with_their_inputs(name: str) -> None:
    module = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    inputs = [jax.ShapeDtypeStruct((1, 3), np.float32)]
    plan: Callable[..., Any] = PLANNERS[name]
    assert plan(module, inputs=inputs) == plan(jax_frontend.Model(module, inputs=inputs))
    with pytest.raises(UsageError, match="inputs: the Model says what it takes"):
        plan(jax_frontend.Model(module, inputs=inputs), inputs=inputs)


def test_types_of_keywords_are_those_of_the_options() -> None:
    hints = get_type_hints(converter.build)
    assert hints["batch"] is int
    assert hints["return"] is converter.Program
    assert hints.keys() - {"return"} == inspect.signature(converter.build).parameters.keys()


def test_wrong_arguments_are_named_as_python_names_them() -> None:
    with pytest.raises(TypeError, match=r"^build\(\) got multiple values for argument 'loss'"):
        converter.build(EXAMPLES["mlp"].model(), "mse", loss="mse")
    with pytest.raises(TypeError, match=r"^build\(\) got an unexpected keyword argument 'bach'"):
        converter.build(EXAMPLES["mlp"].model(), bach=2)
    with pytest.raises(TypeError, match=r"^build\(\) missing a required argument: 'model'"):
        converter.build()


@pytest.mark.parametrize("more", [{}, {"micro_batch": np.int32(2)}, {"memory_budget": "64MiB"}])
def test_numbers_of_numpy_are_numbers(more: dict[str, Any]) -> None:
    model = EXAMPLES["mlp"].model()
    built = converter.build(model, batch=np.int64(4), check=False, **more)
    assert built.data == converter.build(model, batch=4, check=False, **more).data
    assert converter.compare_schemes(model, ["full"], batch=np.int64(4)) == converter.compare_schemes(
        model, ["full"], batch=4
    )


@pytest.mark.parametrize(
    "options",
    [
        {"keep_base": 0.5},
        {"row_clipping": 1.0},
        {"proximal": 0.125},
        {"state": "split", "loss_scale": 128.0},
    ],
    ids=lambda options: next(reversed(options)),
)
def test_options_take_numbers_of_numpy(options: dict[str, Any]) -> None:
    given = {name: np.float32(value) if isinstance(value, float) else value for name, value in options.items()}
    programs = [converter.build(EXAMPLES["mlp"].model(), **made, check=False) for made in (options, given)]
    assert programs[0].manifest.to_bytes() == programs[1].manifest.to_bytes()
