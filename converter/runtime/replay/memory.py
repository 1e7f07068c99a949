"""`ReplayMemory`: rows of earlier trainings in a file of bounded size, which a session mixes into new ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from converter.program.manifest import TARGET, Manifest
from converter.runtime.data.examples import Examples
from converter.runtime.data.order import Random
from converter.runtime.data.targets import check_targets
from converter.runtime.replay.class_tags import UNKNOWN, tags_of
from converter.runtime.replay.contents import (
    MILLION,
    Contents,
    Keeps,
    Offered,
    Part,
    classes_of,
    labels_of,
    offer,
    owner_of,
    tensors_of,
)
from converter.runtime.replay.memory_file import MOST_BYTES, capacities, pack, unpack
from converter.support.errors import UsageError
from converter.support.files import check_regular, write_atomically

#: Bytes of a file that nothing is said of, and the share of rows that it keeps aside.
_LIMIT, _HELD_OUT = 4 << 20, 0.1
#: So many bytes of a file, its digest among them, tell whether it is the one that was read.
_STAMP = 48


class ReplayMemory:
    """Rows of earlier trainings, in a file of bounded size, against forgetting.

        memory = ReplayMemory("mine.memory", session.manifest, limit=4 << 20)
        session.fit(x, y, memory=memory)

    Which rows stay is decided by class-balanced reservoir sampling where a row has one label (Chrysakis and Moens
    2020), else by a plain reservoir. A share of the rows is kept aside and never trained on: the loss on them says what
    was forgotten. The file is written whole or not at all, and rows that were added are in it when the call returns.
    One object at a time may write to a file.

    Attributes:
        path: of the file, which the first rows begin.
        keeps: `inputs`, or `features`: what the frozen first layers gave.
        limit: bytes of the file, at most.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        manifest: Manifest,
        limit: int | None = None,
        held_out: float | None = None,
        keeps: Keeps | None = None,
        seed: int | None = None,
    ) -> None:
        """Opens a memory, or begins one.

        Args:
            path: the file.
            manifest: of the program whose rows it keeps, as `TrainingSession.manifest`.
            limit: bytes of the file, 4 MiB; beside it another lies while it is written. What a file was begun with
                stays, of all that follows too: None takes it.
            held_out: share of the rows that are kept aside, 0 to 0.5, 0.1.
            keeps: `inputs`, rows as the model takes them; or `features`, what its frozen first layers gave for those to
                be replayed, of programs with that signature: smaller, and never computed again.
            seed: of the draws.

        Raises:
            UsageError: the file is damaged or no memory, belongs to another program, or was begun with other numbers;
                the limit has no room for a row; or the program cannot have one.
        """
        self.path = Path(path)
        self._manifest = manifest
        _check_numbers(limit, held_out, keeps, seed)
        whole = {name: None if number is None else int(number) for name, number in (("limit", limit), ("seed", seed))}
        share = None if held_out is None else _millionths(held_out)
        self._contents = self._read({**whole, "held_out": share, "keeps": keeps})
        self.limit, self.keeps = self._contents.limit, self._contents.keeps

    @property
    def seen(self) -> int:
        """How many rows came, kept or not: those that come next are numbered from here."""
        return self._contents.seen

    @property
    def capacity(self) -> tuple[int, int]:
        """How many rows there is room for: to be replayed, and held out."""
        return self._contents.replay.reservoir.capacity, self._contents.heldout.reservoir.capacity

    def counts(self) -> dict[int, int]:
        """Return how many rows to be replayed there are of each label; of rows without labels all are of 0."""
        labels, counts = np.unique(self._contents.replay.reservoir.labels, return_counts=True)
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows are kept, of all that came by their number: to be replayed, and held out."""
        kept = self._contents
        return kept.replay.rows["number"].astype(np.int64), kept.heldout.rows["number"].astype(np.int64)

    def replayed(self) -> tuple[Any, Any, np.ndarray]:
        """Return the rows to be replayed, (x, y, weight); x and y by name where there are several.

        Raises:
            UsageError: features are kept, not inputs.
        """
        if self.keeps != "inputs":
            raise UsageError(f"{self.path} keeps features: there are no inputs to be given", page="replay-memories")
        return self._arguments(self._contents.replay)

    def held_out(self) -> tuple[Any, Any, np.ndarray] | None:
        """Return the rows that were kept aside, as `evaluate` and `validation=` take them; None without any."""
        return self._arguments(self._contents.heldout) if len(self._contents.heldout.rows) else None

    def forget(self, label: int) -> None:
        """Removes all rows of a label, as when the class is forgotten; what comes of it counts from new.

        Raises:
            UsageError: there is no such label, or the file cannot be written.
        """
        self._check_label(label)
        self._write(self._contents.without(label))

    def rename(self, label: int, name: str) -> None:
        """Says that a label is of the same class as before, which has another name: its rows stay.

        Raises:
            UsageError: there is no such label, the name holds half a character, or the file cannot be written.
        """
        self._check_label(label)
        tags = list(self._contents.tags)
        tags[label] = tags_of([name])[0]
        self._write(replace(self._contents, tags=tuple(tags)))

    def check_classes(self, names: Sequence[str] | None) -> None:
        """Raise UsageError where rows are of another class than the one that has their label now.

        Args:
            names: of the classes by label, an empty one of none; None: they are not known.
        """
        tags = self._tags(names)
        parts = self._contents.replay, self._contents.heldout
        for label in sorted({int(label) for part in parts for label in part.reservoir.labels}):
            if self._contents.tags[label] not in (UNKNOWN, tags[label]):
                now = repr(names[label]) if names and names[label] else "no class"
                raise UsageError(
                    f"the memory: its rows of label {label} came under another name, and the label is of {now} now. "
                    f"memory.forget({label}) removes them; memory.rename({label}, name) keeps them, if it is the class "
                    "of before under another name",
                    page="replay-memories",
                )

    def _check_label(self, label: Any) -> None:
        """Raise UsageError for what is no label of the memory, as -1 is none: nothing is counted from the end."""
        most = self._contents.classes - 1
        if isinstance(label, bool) or not isinstance(label, int | np.integer) or not 0 <= label <= most:
            raise UsageError(
                f"label: a whole number from 0 to {most}, the labels of {self.path}, not {label!r}",
                page="replay-memories",
            )

    def _tags(self, names: Sequence[str] | None) -> tuple[bytes, ...]:
        """Return the tags of all labels; as they are where the names are not known, or are not of these labels."""
        if names is None or len(names) != self._contents.classes:
            return self._contents.tags
        return tags_of(names)

    def examples(self) -> Examples:
        """Return the rows to be replayed, as the step takes them that trains on what is kept."""
        return self._contents.replay.examples()

    def visit(self, inputs: Examples, names: Sequence[str] | None = None) -> Visit:
        """Return what becomes of rows that come; nothing is written yet.

        Args:
            inputs: checked rows, as the step takes them.
            names: as for `check_classes`.
        """
        labels = labels_of(inputs, self._manifest)
        counts = (inputs.arrays["weight"] > 0) & (labels >= 0)
        return Visit(self, inputs, labels, offer(self._contents, labels, counts), self._tags(names))

    def _arguments(self, part: Part) -> tuple[Any, Any, np.ndarray]:
        arrays = part.examples().arrays
        taken = self._manifest.calls[self._manifest.step]
        x = {spec.label: arrays[spec.name] for spec in taken.taking("input")}
        y = {spec.label: arrays[spec.name] for spec in taken.taking("target")}
        only_y = y.get(TARGET) if len(y) == 1 else None
        return next(iter(x.values())) if len(x) == 1 else x, (y or None) if only_y is None else only_y, arrays["weight"]

    def _read(self, wanted: dict[str, Any]) -> Contents:
        """Return what the file holds, or empty contents where there is none."""
        check_regular(self.path)
        self._stamp: bytes | None = None
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            given = {name: value for name, value in wanted.items() if value is not None}
            begun: dict[str, Any] = {"limit": _LIMIT, "held_out": _millionths(_HELD_OUT), "keeps": "inputs", "seed": 0}
            return self._begun(**begun | given)
        except OSError as error:
            raise UsageError(f"cannot read {self.path}: {error.strerror or error}", page="replay-memories") from error
        try:
            contents = unpack(data, lambda there: self._check(there, wanted))
            for part in (contents.replay, contents.heldout):
                check_targets(part.examples(), self._manifest)
        except UsageError as error:
            raise type(error)(f"{self.path}: {error}", page="replay-memories") from None
        self._stamp = data[:_STAMP]
        return contents

    def _begun(self, limit: int, held_out: int, keeps: Keeps, seed: int) -> Contents:
        """Return empty contents with room for as many rows as the limit allows."""
        manifest = self._manifest
        owner, classes = owner_of(manifest), classes_of(manifest)
        replay, heldout = _tensors(manifest, keeps, bool(held_out))
        empty = Part.empty(replay, 0, classes), Part.empty(heldout, 0, classes)
        rows, aside = capacities(Contents(owner, keeps, limit, held_out, seed, 0, 0, *empty, ()))
        parts = Part.empty(replay, rows, classes), Part.empty(heldout, aside, classes)
        return Contents(owner, keeps, limit, held_out, seed, Random.seeded(seed).state, 0, *parts, (UNKNOWN,) * classes)

    def _check(self, there: Contents, wanted: dict[str, Any]) -> None:
        """Raise UsageError for a memory of another program, or that was begun with other numbers."""
        if differs := _difference(there, self._manifest):
            raise UsageError(
                f"it belongs to another program: {differs}. Open it with its own, or begin another file",
                page="replay-memories",
            )
        for name, value in wanted.items():
            if value is not None and value != getattr(there, name):
                raise UsageError(
                    f"it was begun with {name} {_said(name, getattr(there, name))}, not {_said(name, value)}: open it "
                    f"without {name}, or begin another file",
                    page="replay-memories",
                )

    def _write(self, contents: Contents) -> None:
        """Writes the file; then the contents are those of this memory."""
        data = pack(contents)
        try:
            with self.path.open("rb") as file:
                there: bytes | None = file.read(_STAMP)
        except FileNotFoundError:
            there = None
        if there != self._stamp:
            raise UsageError(
                f"{self.path} is not as it was when it was opened: another wrote to it, or removed it. Open it again",
                page="replay-memories",
            )
        write_atomically(self.path, data)
        self._contents, self._stamp = contents, data[:_STAMP]

    def _enter(self, offered: Offered, contents: Contents) -> None:
        """Writes the memory with rows that came."""
        if offered.before is not self._contents:
            raise UsageError(
                f"{self.path}: rows came while others were on their way. One training at a time goes with a memory",
                page="replay-memories",
            )
        self._write(contents)

    def __repr__(self) -> str:
        rows, aside = self.numbers()
        return f"ReplayMemory({self.path}, {len(rows)} rows of {self.keeps}, {len(aside)} held out, {self.seen} seen)"


class Visit:
    """Rows on their way into a memory.

    Attributes:
        trains: bool [rows], which of them are to be trained on: the others are held out.
    """

    def __init__(
        self, memory: ReplayMemory, inputs: Examples, labels: np.ndarray, offered: Offered, tags: Sequence[bytes]
    ) -> None:
        self._memory, self._inputs, self._labels, self._offered, self._tags = memory, inputs, labels, offered, tags
        self.trains = ~offered.aside

    def enter(self, replayed: Examples) -> None:
        """Writes the memory with the rows.

        Args:
            replayed: all of them as the memory keeps them to be replayed.

        Raises:
            UsageError: it cannot be written, or is not as it was; the file stays.
        """
        contents = self._offered.contents(self._labels, replayed, self._inputs)
        self._memory._enter(self._offered, contents.tagged(self._tags))


def _check_numbers(limit: Any, held_out: Any, keeps: Any, seed: Any) -> None:
    """Raise UsageError for what is no limit, share, kind or seed."""
    for name, number, most in (("limit", limit, MOST_BYTES), ("seed", seed, (1 << 53) - 1)):
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number <= most
        ):
            raise UsageError(f"{name}: a whole number from 0 to {most}, not {number!r}", page="replay-memories")
    if held_out is not None and (
        isinstance(held_out, bool) or not isinstance(held_out, int | float | np.number) or not 0 <= held_out <= 0.5
    ):
        raise UsageError(f"held_out: a share from 0 to 0.5, not {held_out!r}", page="replay-memories")
    if keeps not in (None, "inputs", "features"):
        raise UsageError(f"keeps is 'inputs' or 'features', not {keeps!r}", page="replay-memories")


def _millionths(share: float) -> int:
    return int(float(share) * MILLION + 0.5)


def _said(name: str, value: Any) -> Any:
    return value / MILLION if name == "held_out" else value


def _tensors(manifest: Manifest, keeps: Keeps, judged: bool) -> tuple[tuple, tuple]:
    """Return the arrays of a row to be replayed, and of one that is held out. Raise UsageError where there is none."""
    if manifest.lengths:
        raise UsageError(
            f"{manifest.name} takes rows of several lengths, and rows of a memory are of one size: build it with one",
            page="replay-memories",
        )
    if judged and "evaluate" not in manifest.calls:
        raise UsageError(
            f"{manifest.name} has no signature 'evaluate', which held-out rows are for: build it with "
            "signatures=(..., 'evaluate'), or pass held_out=0",
            page="replay-memories",
        )
    if keeps == "features" and "features" not in manifest.signatures:
        raise UsageError(
            f"{manifest.name} has no signature 'features': build it with signatures=(..., 'features'), or keep inputs",
            page="replay-memories",
        )
    step = manifest.step_on_features if keeps == "features" else manifest.step
    return tensors_of(manifest.calls[step]), tensors_of(manifest.calls[manifest.step])


def _difference(there: Contents, manifest: Manifest) -> str | None:
    """Return what tells a memory's program from another, in words; None where rows of the one are rows of the other."""
    owner, here = there.owner, owner_of(manifest)
    if owner.version != here.version:
        return "it was built by another version of Pocketune, and whether both compute the same cannot be told"
    if owner.forward != here.forward:
        return "the forward computation differs, or the head of a file of several"
    if there.keeps == "features" and owner.frozen != here.frozen:
        return "the frozen weights differ, and features are kept"
    if there.keeps == "features" and owner.int8 != here.int8:
        return "other frozen layers are rounded there, or otherwise, and features are kept"
    replay, heldout = _tensors(manifest, there.keeps, bool(there.held_out))
    for theirs, ours in ((there.replay.tensors, replay), (there.heldout.tensors, heldout)):
        if theirs != ours:
            return f"its rows are {_listed(theirs)}, and those of this program {_listed(ours)}"
    if there.classes != classes_of(manifest):
        return f"it balances {there.classes} classes, and this program has {classes_of(manifest)}"
    return None


def _listed(tensors: tuple) -> str:
    return ", ".join(f"{tensor.name} {tensor.dtype}{list(tensor.shape)}" for tensor in tensors)
