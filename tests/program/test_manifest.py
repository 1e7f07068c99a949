"""The manifest: what is written is read, and nonsense is refused in words."""

from __future__ import annotations

import copy
import json
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converter.ir.view import View
from converter.program.manifest import manifest_of_bytes, manifest_of_json
from converter.program.manifest.views import _viewed
from converter.support.errors import UsageError
from tests.runtime.programs import EXAMPLES, program

CASES = [
    (name, state, optimizer, update)
    for name in EXAMPLES
    for state in ("variables", "stateless", "split")
    for optimizer, update in (("sgd", "full"), ("adam", 0.5))
]


@pytest.mark.parametrize("case", CASES)
def test_a_manifest_is_read_as_it_was_written(case: tuple[Any, ...]) -> None:
    manifest = program(*case).manifest
    assert manifest_of_bytes(manifest.to_bytes()) == manifest
    assert manifest_of_json(manifest.to_json()) == manifest
    assert manifest.to_bytes() == manifest_of_bytes(manifest.to_bytes()).to_bytes()
    sums = sum(4 * prod(spec.shape) for spec in manifest.signatures[manifest.updating].taking("gradient"))
    assert manifest.state_bytes + sums == program(*case).costs["state_bytes"]


def test_both_exports_are_one_program() -> None:
    for name in EXAMPLES:
        assert program(name, "variables").manifest.graph_hash == program(name, "stateless").manifest.graph_hash
    assert program("mlp").manifest.graph_hash != program("mlp", optimizer="adam").manifest.graph_hash
    assert program("mlp").manifest.graph_hash != program("mlp", update=0.5).manifest.graph_hash


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path] * bool(path) + [place for key, value in items for place in _places(value, (*path, key))]


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_nonsense_is_a_usage_error(data: st.DataObject) -> None:
    """Something in a good manifest replaced, removed or doubled: a UsageError, or a manifest that can be used."""
    original = program(*data.draw(st.sampled_from(CASES[:6]))).manifest.to_json()
    changed = copy.deepcopy(original)
    *way, last = data.draw(st.sampled_from(_places(original)))
    holder: Any = changed
    for key in way:
        holder = holder[key]
    kind = data.draw(st.sampled_from(["replace", "remove", "double"]))
    if kind == "replace":
        holder[last] = data.draw(json_values)
    elif kind == "remove":
        del holder[last]
    elif isinstance(holder, list):
        holder.append(holder[last])
    else:
        holder[f"{last}2"] = holder[last]
    try:
        manifest = manifest_of_bytes(json.dumps(changed).encode())
    except UsageError as error:
        assert str(error).startswith("manifest")  # noqa: PT017
        return
    for parameter in manifest.parameters:
        for piece in parameter.pieces:
            assert View.from_json(list(piece.view)).apply(np.empty(parameter.shape)).size


@given(st.binary(max_size=100))
def test_noise_is_a_usage_error(noise: bytes) -> None:
    with pytest.raises(UsageError):
        manifest_of_bytes(noise)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"1" * 5000, b'{"format":"pocketune/1"}', b"null", b"\xff", b"NaN"])
def test_hostile_json(data: bytes) -> None:
    with pytest.raises(UsageError):
        manifest_of_bytes(data)


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], View]:
    """A shape and a chain of steps that fits it."""
    start = shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    view = View()
    for kind in draw(st.lists(st.sampled_from(["transpose", "reshape", "slice"]), max_size=4)):
        if kind == "transpose":
            view = view.then(("transpose", tuple(draw(st.permutations(range(len(shape)))))))
        elif kind == "reshape":
            divisor = draw(st.sampled_from([d for d in range(1, prod(shape) + 1) if prod(shape) % d == 0]))
            view = view.then(("reshape", (divisor, prod(shape) // divisor)))
        elif shape:
            axis = draw(st.integers(0, len(shape) - 1))
            low = draw(st.integers(0, shape[axis] - 1))
            view = view.then(("slice", axis, low, draw(st.integers(low + 1, shape[axis]))))
        shape = view.apply(np.empty(start)).shape
    return start, view


@given(views())
def test_views_travel_in_the_manifest(case: tuple[tuple[int, ...], View]) -> None:
    shape, view = case
    steps = json.loads(json.dumps(view.to_json()))
    assert View.from_json(steps) == view
    checked = shape
    for step in steps:
        checked = _viewed("here", step, checked)
    full = np.random.default_rng(0).random(shape)
    stored = view.apply(full)
    assert stored.shape == checked
    empty = np.zeros(shape)
    view.scatter(empty, stored)
    np.testing.assert_array_equal(empty[empty != 0], full[empty != 0])
    np.testing.assert_array_equal(view.apply(empty), stored)
