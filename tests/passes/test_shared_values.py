"""Every pass alone, on graphs in which values are shared: a value that others read too means what it meant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from converter.backend.lowering.lower import lower
from converter.backend.peephole.flat_rows import contracted_as_rows
from converter.backend.peephole.fuse import fuse
from converter.backend.peephole.masks import without_clamps
from converter.backend.peephole.products import smallest_products
from converter.backend.peephole.transposed import transposed_once
from converter.backend.peephole.wide_pixels import with_wide_pixels
from converter.backend.prepare import absorb_projections, attend_in_blocks
from converter.backend.prepare.tiling import tile_batch
from converter.backend.schedule import recompute
from converter.backend.schedule.overwriting import without_overwriting
from converter.backend.schedule.saved_masks import masks_in_int8
from converter.backend.stages import to_builtins
from converter.backend.targets import target
from converter.ir import Graph, evaluate, verify
from converter.passes import (
    absorb_layout,
    eliminate_dead_code,
    fold_affine,
    fold_constants,
    fold_numbers,
    merge_common_subexpressions,
    outputs_first,
    propagate_slices,
    simplify,
    simplify_loops,
)
from converter.passes.canonical import canonicalize, specialize
from converter.passes.idioms.recognize import recognize_idioms
from converter.support.errors import UnsupportedError
from tests.shared_values import shared_values

CPU = target("litert-2")
Pass = Callable[[Graph], Graph]
PASSES: dict[str, Pass] = {
    "absorb_layout": absorb_layout,
    "eliminate_dead_code": eliminate_dead_code,
    "fold_affine": fold_affine,
    "fold_constants": fold_constants,
    "fold_numbers": fold_numbers,
    "merge_common_subexpressions": merge_common_subexpressions,
    "propagate_slices": propagate_slices,
    "outputs_first": partial(outputs_first, names={"w0", "w1"}),
    "simplify": simplify,
    "simplify_loops": simplify_loops,
    "canonicalize": canonicalize,
    "specialize": specialize,
    "recognize_idioms": recognize_idioms,
    "tile_batch": partial(tile_batch, target=CPU),
    "attend_in_blocks": partial(attend_in_blocks, target=CPU),
    "absorb_projections": partial(absorb_projections, target=CPU),
}
#: Of the lowered graph.
PEEPHOLES: dict[str, Pass] = {
    "fuse": fuse,
    "smallest_products": smallest_products,
    "contracted_as_rows": contracted_as_rows,
    "transposed_once": transposed_once,
    "without_clamps": partial(without_clamps, target=CPU),
    "with_wide_pixels": partial(with_wide_pixels, target=CPU),
    "masks_in_int8": masks_in_int8,
    "recompute": recompute,
    "without_overwriting": without_overwriting,
}
TARGETS = ("litert-2", "tflite-2.14", "gpu", "web", "hexagon")


def assert_means_the_same(before: Graph, after: Graph, what: str) -> None:
    verify(after, what)
    feed = {"x": np.random.default_rng(1).uniform(-1, 1, (3, 4))}
    (wanted, kept), (found, kept_after) = (evaluate(graph, feed, np.float64) for graph in (before, after))
    shown = {p.name: p for p in after.parameters.values()}
    for name, array in wanted.items():
        close(found[name], array, f"{what}: {name}")
    for name, array in kept.items():
        whole = shown[name].model_value.astype(np.float64)
        shown[name].view.scatter(whole, kept_after[name])
        close(whole, array, f"{what}: update of {name}")


def close(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    """But for constants that are rounded to float32, and numbers of one axis where there was none."""
    scale = 1e-5 * (1 + np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=2e-5, atol=scale, err_msg=what)


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_what_is_shared(name: str, count: int) -> None:
    for seed in range(count):
        graph = shared_values(seed)
        after = PASSES[name](graph)
        assert {k: v.shape for k, v in after.outputs.items()} == {k: v.shape for k, v in graph.outputs.items()}
        assert_means_the_same(graph, after, f"{name} of {seed}")


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PEEPHOLES)
def test_a_peephole_keeps_what_is_shared(name: str, count: int) -> None:
    for seed in range(count):
        lowered = lower(shared_values(seed), CPU)
        assert_means_the_same(lowered, PEEPHOLES[name](lowered), f"{name} of {seed}")


@pytest.mark.parametrize("count", [25, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TARGETS)
def test_builtins_of_a_target_keep_what_is_shared(name: str, count: int) -> None:
    built = 0
    for seed in range(count):
        graph = shared_values(seed)
        try:
            lowered = to_builtins(graph, target(name))
        except UnsupportedError:  # engines take no tensors of many axes
            continue
        assert_means_the_same(graph, lowered, f"{name} of {seed}")
        built += 1
    assert built > count // 4
