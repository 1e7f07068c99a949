"""Weights that are read when they are asked for: the program is that of the same weights in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import converter
from converter.backend.quantize import read_int4
from converter.backend.quantize.weight_only import LEAST
from converter.ir import INT4, INT8, LazyArray, StoredIntegers
from converter.passes import read_weights
from converter.runtime import TrainingSession
from converter.support.errors import NumericError
from examples import llama

SHAPE: dict[str, Any] = {"layers": 2, "width": 64, "heads": 4, "key_heads": 2, "length": 8, "vocabulary": 131}
DECODER = llama.build(**SHAPE)
UPDATE = {"layers/*/attention/*": converter.LoRA(4), "layers/*/ffn/*": converter.LoRA(4)}
#: Elements that are read at once, and that lie in memory at most.
FEW = 1024


class Read(LazyArray):
    """An array that counts how much of it is asked for at once, and how often."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.most = self.times = 0

    def rows(self, start: int, stop: int) -> np.ndarray:
        self.most, self.times = max(self.most, (stop - start) * (self.size // self.shape[0])), self.times + 1
        return self.array[start:stop]


class Integers(Read):
    """An array of integers with a scale for each row."""

    def __init__(self, integers: np.ndarray, scales: np.ndarray) -> None:
        super().__init__(integers.astype(np.float32) * scales[:, None])
        parts = lambda start, stop: (integers[start:stop], scales[start:stop, None])  # noqa: E731
        self.stored = StoredIntegers(integers.dtype, 1, scales.dtype, parts)

    def integers(self) -> StoredIntegers:
        return self.stored


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_weights, "_AT_ONCE", FEW)
    monkeypatch.setattr(read_int4, "_IN_MEMORY", FEW)


def with_params(change: Callable[[np.ndarray], Any]) -> Any:
    params = jax.tree_util.tree_map(lambda w: change(w) if w.ndim > 1 else w, DECODER.params)
    return type(DECODER)(DECODER.apply, params, DECODER.inputs, DECODER.layers)


def built(model: Any, **options: Any) -> Any:
    options = {"loss": "next_token", "update": UPDATE, "frozen": "int4", **options}
    return converter.build(model, optimizer="adam", batch=2, check=False, **options)


@pytest.mark.parametrize("frozen", ["int4", "int4-blockwise", "float32"])
def test_it_is_the_program_of_the_same_numbers(frozen: str) -> None:
    model = with_params(Read)
    made = built(model, frozen=frozen)
    assert made.data == built(DECODER, frozen=frozen).data
    read = [leaf for leaf in jax.tree_util.tree_leaves(model.params) if isinstance(leaf, Read)]
    most = 32 * 176 if frozen == "int4-blockwise" else FEW  # a block of rows, where one is turned
    assert all(0 < one.most <= most for one in read)  # but for none is the whole matrix asked for at once
    assert any(one.size > 4 * FEW for one in read)


def test_a_plan_reads_nothing() -> None:
    model = with_params(Read)
    table = converter.compare_schemes(model, loss="next_token", batch=2, schemes=["head", "lora-4"], frozen="int4")
    assert len(table)
    assert not any(leaf.times for leaf in jax.tree_util.tree_leaves(model.params) if isinstance(leaf, Read))


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [INT4, INT8])
def test_what_is_stored_in_integers_is_taken_over(dtype: np.dtype) -> None:
    rng = np.random.default_rng(0)

    def integers(w: np.ndarray) -> Integers:
        return Integers(rng.integers(-7, 8, w.shape).astype(dtype), rng.uniform(0.01, 0.02, len(w)).astype(np.float32))

    model = with_params(integers)
    program = built(model, update={**UPDATE, "tokens": 0, "head": 0})
    held = [a for g in program.signatures.values() for v, a in g.constants.items() if v.dtype == dtype]
    stored = {leaf.stored.rows(0, 9**9)[0].astype(np.int8).tobytes() for leaf in jax.tree_util.tree_leaves(model.params)
              if isinstance(leaf, Integers) and leaf.size >= LEAST}  # fmt: skip
    assert {np.ascontiguousarray(a).astype(np.int8).tobytes() for a in held} == stored
    plain = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf), model.params)
    x, _ = llama.sample_batch(2, length=8, vocabulary=131)
    with TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(x), DECODER.apply(plain, x), atol=1e-4)


def test_numbers_that_are_not_finite_are_refused() -> None:
    def broken(w: np.ndarray) -> Read:
        w = w.copy()
        w[-1, -1] = np.nan
        return Read(w)

    for frozen in ("int4", "float32"):
        with pytest.raises(NumericError, match=r"not finite: head, rows 63 to 64"):
            built(with_params(broken), frozen=frozen)
