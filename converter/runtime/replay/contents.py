"""Contents of a replay memory: whose rows they are, how they are stored, and which ones are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np

from converter.program.manifest import Dtype, Manifest, Signature, TargetLabels
from converter.runtime.data.examples import Examples
from converter.runtime.data.order import Random
from converter.runtime.replay.class_tags import UNKNOWN
from converter.runtime.replay.reservoir import Reservoir, Sampling
from converter.support.errors import UsageError

Keeps = Literal["inputs", "features"]
#: Shares are in millionths, so that every language writes the same number.
MILLION = 1_000_000


@dataclass(frozen=True)
class RowTensor:
    """One array of a row, without the axis of the rows."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Owner:
    """The program that rows belong to.

    Attributes:
        forward: of the manifest's identity.
        frozen: sha256 of the names and digests of its frozen weights.
        int8: of the identity.
        version: of the way in which they are computed.
    """

    forward: str
    frozen: str
    int8: str
    version: int


@dataclass(frozen=True)
class Part:
    """Rows for one purpose.

    Attributes:
        tensors: the arrays of a row, in the order of the signature that takes them.
        reservoir: which are kept.
        rows: structured [rows]: `number`, `label`, and each array by its place in `tensors`.
    """

    tensors: tuple[RowTensor, ...]
    reservoir: Reservoir
    rows: np.ndarray

    @staticmethod
    def empty(tensors: tuple[RowTensor, ...], capacity: int, classes: int) -> Part:
        """Return one without rows."""
        return Part(tensors, Reservoir.empty(capacity, classes), np.zeros(0, layout(tensors)))

    def examples(self) -> Examples:
        """Return the rows as a signature takes them."""
        kinds = [np.dtype(tensor.dtype) for tensor in self.tensors]
        arrays = [self.rows[str(i)].astype(kind) for i, kind in enumerate(kinds)]
        return Examples({tensor.name: array for tensor, array in zip(self.tensors, arrays, strict=True)})

    def without(self, label: int) -> Part:
        """Return one without the rows of a class."""
        return Part(self.tensors, self.reservoir.without(label), self.rows[self.rows["label"] != label])


@dataclass(frozen=True)
class Contents:
    """All that a memory holds.

    Attributes:
        owner: whose rows they are.
        keeps: what is replayed: rows as the model takes them, or what its frozen first layers gave.
        limit: bytes of the file, at most.
        held_out: millionths of the rows that are kept aside.
        seed: that the draws began with.
        random: state of the generator, which goes on from there.
        seen: rows that came.
        replay: rows to train on.
        heldout: rows kept aside, never trained on.
        tags: of the class that each label was of when its rows came.
    """

    owner: Owner
    keeps: Keeps
    limit: int
    held_out: int
    seed: int
    random: int
    seen: int
    replay: Part
    heldout: Part
    tags: tuple[bytes, ...]

    @property
    def classes(self) -> int:
        """How many classes are balanced; 1 where the reservoir is a plain one."""
        return len(self.replay.reservoir.seen)

    def without(self, label: int) -> Contents:
        """Return the contents without the rows of a class."""
        tags = (*self.tags[:label], UNKNOWN, *self.tags[label + 1 :])
        return replace(self, replay=self.replay.without(label), heldout=self.heldout.without(label), tags=tags)

    def tagged(self, tags: Sequence[bytes]) -> Contents:
        """Return the contents with the tags of classes as they are now, for each class that rows came of."""
        came = (self.replay.reservoir.seen + self.heldout.reservoir.seen) > 0
        return replace(self, tags=tuple(tag if there else UNKNOWN for tag, there in zip(tags, came, strict=True)))


@dataclass(frozen=True)
class Offered:
    """What becomes of rows that come.

    Attributes:
        aside: bool [rows], which of them are held out.
        places: for each row the place that it takes in its part; -1: none.
        before: the contents before.
        random: state of the generator after.
        replay: the reservoirs after.
        heldout: likewise.
    """

    aside: np.ndarray
    places: np.ndarray
    before: Contents
    random: int
    replay: Reservoir
    heldout: Reservoir

    def contents(self, labels: np.ndarray, replayed: Examples, heldout: Examples) -> Contents:
        """Return the contents with these rows.

        Args:
            labels: of the rows.
            replayed: all rows as they are replayed.
            heldout: all rows as they are held out.
        """
        kept, before = self.places >= 0, self.before
        replay = self._part(before.replay, self.replay, np.flatnonzero(kept & ~self.aside), labels, replayed)
        aside = self._part(before.heldout, self.heldout, np.flatnonzero(kept & self.aside), labels, heldout)
        seen = before.seen + len(self.places)
        return replace(before, random=self.random, seen=seen, replay=replay, heldout=aside)

    def _part(self, part: Part, after: Reservoir, kept: np.ndarray, labels: np.ndarray, examples: Examples) -> Part:
        """Return a part with the arrays of rows at their places."""
        rows = np.zeros(len(after.labels), part.rows.dtype)
        rows[: len(part.rows)] = part.rows
        for row in kept:  # in order: a later one may replace an earlier one
            place = rows[self.places[row]]
            place["number"], place["label"] = self.before.seen + row, labels[row]
            for i, tensor in enumerate(part.tensors):
                place[str(i)] = examples.arrays[tensor.name][row]
        return Part(part.tensors, after, rows)


def offer(contents: Contents, labels: np.ndarray, counts: np.ndarray) -> Offered:
    """Return what becomes of rows that come, one after another; the contents stay as they are.

    Args:
        contents: of the memory.
        labels: int64 [rows].
        counts: bool [rows]; rows that count nothing are numbered, and left.
    """
    random = Random(contents.random)
    replay, heldout = Sampling(contents.replay.reservoir), Sampling(contents.heldout.reservoir)
    aside, places = np.zeros(len(labels), bool), np.full(len(labels), -1, np.int64)
    for row in np.flatnonzero(counts):
        aside[row] = contents.held_out > 0 and random.next_int(MILLION) < contents.held_out
        place = (heldout if aside[row] else replay).offer(int(labels[row]), random)
        places[row] = -1 if place is None else place
    return Offered(aside, places, contents, random.state, replay.result(), heldout.result())


def layout(tensors: Sequence[RowTensor]) -> np.dtype:
    """Return how a row is stored, packed: its number, its label, its arrays."""
    arrays = [(str(i), np.dtype(t.dtype).newbyteorder("<"), t.shape) for i, t in enumerate(tensors)]
    return np.dtype([("number", "<u8"), ("label", "<u4"), *arrays])


def row_bytes(tensors: Sequence[RowTensor]) -> int:
    """Return the bytes of a stored row."""
    return 12 + sum(prod(t.shape) * np.dtype(t.dtype).itemsize for t in tensors)


def owner_of(manifest: Manifest) -> Owner:
    """Return the program as a memory names it. Raise UsageError where it does not say enough of itself."""
    identity = manifest.identity
    if identity is None:
        raise UsageError(
            f"{manifest.name} was built by an older Pocketune and does not say what it computes, so rows cannot be "
            "kept for it: build it again",
            page="replay-memories",
        )
    weights = "".join(f"{weight.name} {weight.digest}\n" for weight in identity.frozen)
    return Owner(identity.forward, hashlib.sha256(weights.encode()).hexdigest(), identity.int8, identity.version)


def tensors_of(signature: Signature) -> tuple[RowTensor, ...]:
    """Return what a row of a step consists of: inputs, targets and weight."""
    taken = [spec for role in ("input", "target", "weight") for spec in signature.taking(role)]
    return tuple(RowTensor(spec.name, spec.dtype, spec.shape[1:]) for spec in taken)


def classes_of(manifest: Manifest) -> int:
    """Return how many classes a memory balances: 1 where rows have no label."""
    labels = _only_labels(manifest)
    if labels is None:
        return 1
    return labels.count or len(labels.only) or 2


def labels_of(examples: Examples, manifest: Manifest) -> np.ndarray:
    """Return the class of each row by its only target, int64 [rows]; 0 where rows have no label.

    A row whose label is left out by the loss has the class -1: there is nothing to learn from it.
    """
    labels = _only_labels(manifest)
    if labels is None:
        return np.zeros(examples.rows, np.int64)
    y = examples.arrays[manifest.targets[0].name].reshape(examples.rows, -1)
    if labels.only:
        return (y[:, :1] == np.array(labels.only, y.dtype)).argmax(1).astype(np.int64)
    if y.dtype.kind == "f":
        return (y.argmax(1) if labels.count is not None else (y[:, 0] >= 0.5)).astype(np.int64)
    left = (y[:, 0] < 0) | (y[:, 0] >= (labels.count or 0)) | (y[:, 0] == labels.ignored)
    return np.where(left, -1, y[:, 0]).astype(np.int64)


def _only_labels(manifest: Manifest) -> TargetLabels | None:
    """Return what the loss takes for the only target where a row of it is of one class."""
    if len(manifest.targets) != 1:
        return None
    target = manifest.targets[0]
    labels, size = manifest.target_labels.get(target.name), prod(target.shape[1:])
    if labels is None:
        return None
    if labels.count is not None:
        return labels if size == (labels.count if target.dtype == "float32" else 1) else None
    return labels if size == 1 and (labels.only or (labels.least, labels.most) == (0, 1)) else None
