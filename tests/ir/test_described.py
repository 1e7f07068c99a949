"""Models of shapes alone are planned as the same models with weights are, and need no room for these."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import converter
from converter.ir import View, described, fingerprint, is_described, known_result, ops
from converter.ir.types import TensorType
from converter.support.errors import UsageError
from examples import llama, llama2_7b
from jax_frontend import Model
from tests.models.zoo import CASES

SMALL = {"layers": 2, "width": 64, "heads": 4, "key_heads": 2, "length": 16, "vocabulary": 100}


def twins(model: Model) -> tuple[Model, Model]:
    """A model with weights that are all different, and the same one without."""
    rng = np.random.default_rng(0)
    known, shapes = (
        jax.tree_util.tree_map(make, model.params)
        for make in (
            lambda leaf: rng.standard_normal(leaf.shape, np.float32),
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32),
        )
    )
    return replace(model, params=known), replace(model, params=shapes)


@pytest.mark.parametrize(
    ("model", "schemes", "options"),
    [
        (CASES["lenet"].model, ["sparse"], {}),
        (CASES["lenet"].model, ["full"], {"micro_batch": 1, "state": "stateless"}),
        (CASES["lenet"].model, ["bias-only"], {"memory_budget": "4MiB"}),
        (CASES["encoder"].model, ["sparse", "lora-2"], {}),
        (lambda: llama.build(**SMALL), ["full"], {"loss": "next_token"}),
    ],
    ids=["lenet", "micro-batches", "budget", "encoder", "llama"],
)
def test_a_plan_is_that_of_the_model_with_weights(model: Any, schemes: list[str], options: dict[str, Any]) -> None:
    with_weights, shapes = (
        converter.compare_schemes(each, schemes, optimizer="adam", batch=4, **options) for each in twins(model())
    )
    for plan, expected in zip(shapes, with_weights, strict=True):
        # Which rearrangements of a filter hold equal numbers, and stand in the file once, is not known without these.
        about = {name: pytest.approx(expected[name], rel=0.03) for name in ("mapped_bytes", "resident_bytes")}
        assert plan == expected | about


def test_a_plan_needs_no_room_for_the_weights() -> None:
    width = 1 << 18  # each kernel has 256 GiB, which no machine gives
    model = llama.build(
        layers=1, width=width, heads=64, key_heads=64, vocabulary=1000, length=8, hidden=width, seed=None
    )
    full, lora = converter.compare_schemes(
        model, ["full", "lora-1"], batch=1, optimizer="adam", loss="next_token", signatures=("train",)
    )
    weights = 7 * width**2 + 3 * width + 2 * 1000 * width
    assert full["trained_parameters"] == weights
    assert full["state_bytes"] == 3 * 4 * weights + 4  # the weights, two slots for each, and the count of Adam
    assert lora["trained_parameters"] == 7 * 2 * width


def test_the_example_is_llama_2() -> None:
    leaves = jax.tree_util.tree_leaves(llama2_7b.build().params)
    assert sum(leaf.size for leaf in leaves) == 6_738_415_616
    assert all(isinstance(leaf, jax.ShapeDtypeStruct | np.ndarray) for leaf in leaves)


@pytest.mark.parametrize("options", [{}, {"memory_budget": "1GiB"}])
def test_there_is_nothing_to_build_of_it(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"head has no value.*pocketune schemes"):
        converter.build(llama.build(**SMALL, seed=None), **options)


def test_int8_needs_numbers() -> None:
    with pytest.raises(UsageError, match="has no value"):
        converter.compare_schemes(llama.build(**SMALL, seed=None), ["head"], frozen="int8", calibration=np.zeros(1))


def test_what_is_no_parameter_needs_numbers() -> None:
    params = {"w": jax.ShapeDtypeStruct((3, 2), "float32"), "order": jax.ShapeDtypeStruct((3,), "int32")}
    model = Model(lambda p, x: x[:, p["order"]] @ p["w"], params, [jax.ShapeDtypeStruct((1, 3), "float32")])
    with pytest.raises(UsageError, match="order has no value"):
        converter.compare_schemes(model)


# -- described tensors -------------------------------------------------------------------------------------------------


def test_views_stay_described_and_computing_makes_other_ones() -> None:
    tensor = described((40_000, 3, 50_000), "w")
    for view in (tensor.T, tensor[5:, 0], tensor.reshape(-1), np.asarray(tensor)[None]):
        assert is_described(view)
        assert not any(view.strides)
    assert not any(View((("transpose", (1, 0, 2)), ("slice", 1, 0, 7))).apply(tensor).strides)
    transposed = known_result(ops.Transpose((2, 1, 0)), TensorType((50_000, 3, 40_000)), tensor)
    assert transposed is not None
    assert transposed.shape == (50_000, 3, 40_000)
    assert len({fingerprint(transposed), fingerprint(tensor), fingerprint(described((2, 2), "v"))}) == 3
    assert fingerprint(described((2, 2), "w")) == fingerprint(described((2, 2), "w"))


def test_numbers_are_not_taken_for_described() -> None:
    with np.errstate(all="ignore"):
        made = [np.float32(0) / np.float32(0), np.float32(np.inf) - np.float32(np.inf), np.sqrt(np.float32(-1))]
    made += [np.float32(np.nan), np.float32(-np.nan), np.float32(np.inf), np.float32(0), np.float32(-3)]
    assert not any(is_described(np.asarray(number)) for number in made)
    assert not is_described(np.zeros((0, 3), np.float32))
    assert not is_described(np.zeros(3, np.int32))
