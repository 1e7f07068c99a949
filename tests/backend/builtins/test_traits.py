"""What the classes of builtins claim holds of what they compute, and what holds is claimed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.targets import target
from converter.ir import FLOAT32
from tests.backend.builtins.cases import Case, all_cases

CASES: dict[type[tfl.Builtin], list[Case]] = defaultdict(list)
for case in all_cases():
    CASES[type(case.op)].append(case)


def of_those(claims: Callable[[type[tfl.Builtin]], object]) -> pytest.MarkDecorator:
    """Each builtin that claims something."""
    kinds = [kind for kind in CASES if claims(kind)]
    assert kinds
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


def first(case: Case) -> np.ndarray:
    made = case.op.evaluate(*case.arrays)
    return np.asarray(made[0] if isinstance(made, tuple) else made)


def broadcasts(case: Case) -> bool:
    """Whether the operands could be those of an elementwise builtin."""
    try:
        return bool(case.arrays) and np.broadcast_shapes(*(a.shape for a in case.arrays)) == first(case).shape
    except ValueError:
        return False


def is_of_its_place(case: Case) -> bool:
    """Whether an element of the result follows from those at its place."""
    whole = first(case)
    place = tuple(slice(int(n) - 1, int(n)) for n in whole.shape)
    cut = [np.broadcast_to(a, whole.shape)[place] for a in case.arrays]
    return np.array_equal(first(Case(case.op, tuple(cut))), whole[place], equal_nan=True)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_what_is_elementwise_says_so(kind: type[tfl.Builtin]) -> None:
    def holds(case: Case) -> bool:
        try:
            return broadcasts(case) and is_of_its_place(case)
        except (ValueError, AssertionError, IndexError):  # attributes that fit the whole
            return False

    assert all(map(holds, CASES[kind])) == kind.elementwise


@of_those(lambda kind: kind.moves_data)
def test_moved_elements_are_those_of_operands(kind: type[tfl.Builtin]) -> None:
    for case in CASES[kind]:
        y = first(case)
        there = [a.ravel() for a in case.arrays if a.dtype == y.dtype]
        if case.op.fill is not None:
            there.append(np.asarray([case.op.fill], y.dtype))
        assert np.isin(y, np.concatenate(there)).all(), str(case)


@of_those(lambda kind: kind.keeps_data)
def test_data_is_kept(kind: type[tfl.Builtin]) -> None:
    for case in CASES[kind]:
        np.testing.assert_array_equal(first(case).ravel(), case.arrays[0].ravel())


@of_those(lambda kind: kind.factors)
def test_factors_are_multiplied(kind: type[tfl.Builtin]) -> None:
    """Without a bias and an activation the result is as many times larger as either of them."""
    for case in CASES[kind]:
        if getattr(case.op, "activation", "NONE") != "NONE" or any(a.dtype != FLOAT32 for a in case.arrays):
            continue
        arrays = [a if k in kind.factors else np.zeros_like(a) for k, a in enumerate(case.arrays)]
        y = first(Case(case.op, tuple(arrays)))
        for place in kind.factors:
            scaled = [2 * a if k == place else a for k, a in enumerate(arrays)]
            np.testing.assert_array_equal(first(Case(case.op, tuple(scaled))), 2 * y)


@of_those(lambda kind: kind.same_scale)
def test_integers_are_handed_on(kind: type[tfl.Builtin]) -> None:
    """What int8 stands for in the operands is all that stands in the result: no number needs another scale."""
    for case in CASES[kind]:
        if getattr(case.op, "activation", "NONE") == "NONE":
            y = first(case)
            assert np.isin(y, np.concatenate([np.zeros(1, y.dtype), *(a.ravel() for a in case.arrays)])).all()


@of_those(lambda kind: kind.fixed_scale is not None)
def test_the_fixed_scale_holds_every_result(kind: type[tfl.Builtin]) -> None:
    assert kind.fixed_scale is not None
    y = kind().evaluate(np.linspace(-30, 30, 1001, dtype=np.float32))
    assert abs(kind.fixed_scale.real(kind.fixed_scale.stored(y)) - y).max() <= kind.fixed_scale.scale


def test_int8_kernels_are_of_one_kind() -> None:
    for kind in CASES:
        claims = [kind.int8_weights, kind.same_scale, kind.rescales, kind.fixed_scale is not None]
        assert sum(claims) <= 1, kind.__name__


@pytest.mark.parametrize("name", ["litert-2", "litert-2/x86-64"])
def test_tables_have_the_figures(name: str) -> None:
    table = target(name)
    priced = {key.partition(".")[0] for key in table.per_mac}
    for kind in CASES:
        assert not kind.product or kind.product in priced, kind.__name__
        assert not kind.int8_weights or f"{kind.product}.int8" in table.per_mac, kind.__name__
        assert not kind.moved or kind.moved in table.per_byte, kind.__name__
