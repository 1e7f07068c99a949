"""Look-ups: embeddings, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.frontends.torch.registry import Call, NotImportable, Rules

rule = Rules()


def _check_plain(scale_by_frequency: bool) -> None:
    if scale_by_frequency:
        raise NotImportable(
            "an embedding whose gradients are divided by how often a row occurs", "leave scale_grad_by_freq out"
        )


@rule("embedding")
def embedding(
    call: Call, table: Any, rows: Any, padding: int = -1, scale_by_frequency: bool = False, sparse: bool = False
) -> Any:
    _check_plain(scale_by_frequency)
    found = jnp.take(table, rows, axis=0, mode="clip")
    if padding < 0:
        return found
    return jnp.where((rows == padding)[..., None], lax.stop_gradient(found), found)


@rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    call: Call,
    table: Any,
    rows: Any,
    offsets: Any,
    scale_by_frequency: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Any = None,
    include_last: bool = False,
    padding: int = -1,
) -> Any:
    if not isinstance(offsets, np.ndarray):
        raise NotImportable(
            "EmbeddingBag with offsets that are an input, so bags have no fixed size", "give it rows of equal length"
        )
    _check_plain(scale_by_frequency)
    padding = -1 if padding is None else padding
    begins = [int(o) for o in offsets]
    ends = [*begins[1:], rows.shape[0]] if not include_last else begins[1:]
    sizes = {end - begin for begin, end in zip(begins, ends, strict=False)}
    if len(sizes) != 1 or 0 in sizes:
        raise NotImportable("EmbeddingBag with bags of several sizes", "give it rows of equal length")
    (size,) = sizes
    bags = rows.reshape(-1, size)
    found = embedding(call, table, bags, padding)
    counts = (bags != padding).astype(table.dtype)[..., None] if padding >= 0 else None
    if mode == 2:
        kept = found if counts is None else jnp.where(counts > 0, found, -jnp.inf)
        y = jnp.max(kept, 1)
        return (y if counts is None else jnp.where(jnp.sum(counts, 1) > 0, y, 0.0), None, None, None)
    if weights is not None:
        found = found * weights.reshape(-1, size, 1)
    y = jnp.sum(found if counts is None else found * counts, 1)
    if mode == 1:
        y = y / (float(size) if counts is None else jnp.maximum(jnp.sum(counts, 1), 1.0))
    return (y, None, None, None)


@rule("index_select")
def index_select(call: Call, x: Any, axis: int, places: Any) -> Any:
    return jnp.take(x, places, axis, mode="clip")


@rule("gather")
def gather(call: Call, x: Any, axis: int, places: Any, **_: Any) -> Any:
    axis %= x.ndim
    wanted = [n if i != axis else x.shape[axis] for i, n in enumerate(places.shape)]
    return jnp.take_along_axis(lax.slice(x, [0] * x.ndim, wanted), places, axis, mode="clip")


def _places(x: Any, places: Sequence[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for axis, place in enumerate(places):
        if place is None:
            found.append(slice(None))
            continue
        if place.dtype == np.bool_:
            if not isinstance(place, np.ndarray):
                raise NotImportable(
                    "indexing by a mask, whose result has no fixed size", "use torch.where, or multiply by the mask"
                )
            found += list(np.nonzero(place))
            continue
        library: Any = np if isinstance(place, np.ndarray) else jnp
        found.append(library.where(place < 0, place + x.shape[axis], place))
    return tuple(found)


@rule("index", "_unsafe_index")
def index(call: Call, x: Any, places: Sequence[Any]) -> Any:
    x = jnp.asarray(x)
    return x.at[_places(x, places)].get(mode="clip")


@rule("index_put", "_unsafe_index_put")
def index_put(call: Call, x: Any, places: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    x = jnp.asarray(x)
    if len(places) == 1 and places[0] is not None and places[0].dtype == np.bool_ and jnp.size(values) == 1:
        mask = places[0].reshape(*places[0].shape, *[1] * (x.ndim - places[0].ndim))
        value = jnp.asarray(values).reshape(()).astype(x.dtype)
        return jnp.where(mask, x + value if accumulate else value, x)
    at = x.at[_places(x, places)]
    values = jnp.asarray(values).astype(x.dtype)
    return at.add(values, mode="drop") if accumulate else at.set(values, mode="drop")


def _along(x: Any, axis: int, places: Any) -> tuple[Any, ...]:
    grid = list(jnp.indices(places.shape, sparse=True))
    grid[axis % x.ndim] = places
    return tuple(grid)


def _source(x: Any, places: Any, source: Any) -> Any:
    if jnp.ndim(source) == 0:
        return jnp.broadcast_to(jnp.asarray(source, x.dtype), places.shape)
    return lax.slice(source, [0] * places.ndim, places.shape).astype(x.dtype)


@rule("scatter")
def scatter(call: Call, x: Any, axis: int, places: Any, source: Any, *, reduce: str | None = None) -> Any:
    x = jnp.asarray(x)
    at, values = x.at[_along(x, axis, places)], _source(x, places, source)
    if reduce == "add":
        return at.add(values, mode="drop")
    return at.multiply(values, mode="drop") if reduce == "multiply" else at.set(values, mode="drop")


@rule("scatter_add")
def scatter_add(call: Call, x: Any, axis: int, places: Any, source: Any) -> Any:
    x = jnp.asarray(x)
    return x.at[_along(x, axis, places)].add(_source(x, places, source), mode="drop")


@rule("index_add")
def index_add(call: Call, x: Any, axis: int, places: Any, source: Any, *, alpha: Any = 1) -> Any:
    return jnp.asarray(x).at[(slice(None),) * (axis % x.ndim) + (places,)].add(alpha * source, mode="drop")


@rule("index_copy")
def index_copy(call: Call, x: Any, axis: int, places: Any, source: Any) -> Any:
    return jnp.asarray(x).at[(slice(None),) * (axis % x.ndim) + (places,)].set(source, mode="drop")


@rule("index_fill")
def index_fill(call: Call, x: Any, axis: int, places: Any, value: Any) -> Any:
    return jnp.asarray(x).at[(slice(None),) * (axis % x.ndim) + (places,)].set(value, mode="drop")


@rule("one_hot")
def one_hot(call: Call, x: Any, classes: int = -1) -> Any:
    if classes < 0:
        raise NotImportable("one_hot without a number of classes", "give num_classes")
    return (x[..., None] == np.arange(classes)).astype(call.dtype)


@rule("bucketize")
def bucketize(call: Call, x: Any, bounds: Any, *, right: bool = False, **_: Any) -> Any:
    x = jnp.asarray(x)[..., None]
    return jnp.sum(((bounds <= x) if right else (bounds < x)).astype(np.int32), -1)


@rule("masked_select")
def masked_select(call: Call, x: Any, mask: Any) -> Any:
    if not isinstance(mask, np.ndarray):
        return chosen_by_values(call)
    shape = np.broadcast_shapes(x.shape, mask.shape)
    return jnp.broadcast_to(x, shape).reshape(-1)[np.flatnonzero(np.broadcast_to(mask, shape))]


@rule("nonzero", "_unique2", "unique_dim", "unique_consecutive")
def chosen_by_values(call: Call, *_: Any, **__: Any) -> Any:
    raise NotImportable("a result whose size depends on values", "use torch.where, or multiply by the mask")


@rule("_local_scalar_dense", "item")
def number_of(call: Call, *_: Any) -> Any:
    raise NotImportable("a number taken out of a tensor (item, int, float)", "keep it a tensor")
