"""Classes of a session: set to means of samples without a gradient, added, renamed and forgotten."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from converter.program import class_names
from converter.program.file import ProgramFile
from converter.program.manifest import ClassHead, StateTensor, kept_of
from converter.runtime.data.examples import Examples
from converter.runtime.session.class_means import Means, as_layer, farther_of, means_in, means_of, sharpness_of
from converter.runtime.session.discriminant import checked_shrinkage, discriminant
from converter.runtime.session.held_state import HeldState
from converter.support.errors import UsageError


class KnownClasses(HeldState):
    """A session that knows its classes by name."""

    _known: list[str] | None = None  # names by label, empty ones free; None: to be read
    _goes_back = False  # whether a training runs that may end with the state of an earlier epoch

    @abstractmethod
    def features(self, x: Any) -> Any:
        """Return what the frozen first layers make of any number of rows."""

    def classes(self) -> list[str | None]:
        """Return what each class is called, by label; None where there is room for one.

        Raises:
            UsageError: the program has no last layer whose classes are known by name.
        """
        with self._lock:
            return [name or None for name in self._names()]

    def set_class_means(self, x: Any, y: Any, shrinkage: float | str | None = None) -> None:
        """Sets the last layer to that which finds the class with the nearest mean, without a gradient.

        What the layer reads is averaged for each class; logits are -s/2 |features - mean|^2, but for what all classes
        have in common, with the s that says the classes of the rows best, each left out of its class' mean. The
        optimizer's slots start again. Steps may follow: it is an exact start.

        Args:
            x: as for `infer`, any number of rows.
            y: labels [rows] of known classes, at least one row of each.
            shrinkage: nearest by the covariance of the rows within their classes, a linear discriminant whose priors
                are the shares of the rows: `auto`, shrunk as Ledoit and Wolf say, or by a number above 0 and to 1.
                None: by distance. A class cannot be added to a discriminant by its samples.

        Raises:
            UsageError: the program was built without `head="class_means"`, or a class has no row; for a covariance,
                there is one class, or rows of a class do not differ.
        """
        shrunk = None if shrinkage is None else checked_shrinkage(shrinkage)
        with self._lock:
            # The features, which are large, are gone before the state is read and written.
            self._set(*self._classifying(x, y, shrinkage is None, shrunk))

    def add_class(self, name: str, x: Any = None) -> int:
        """Adds a class where there is room for one, and returns its label.

        Args:
            name: what it is called, at most 60 bytes in UTF-8.
            x: its samples, of whose features it becomes the mean, somewhat farther away than that as they are few; no
                row of the others changes. None: weights of 0, for steps that follow.

        Raises:
            UsageError: there is no room, or a class of that name already; or with samples, the last layer is not one of
                class means: `set_class_means` first.
        """
        with self._lock:
            names, own = self._named(name), self._head().own
            if "" not in names:
                raise UsageError(
                    f"there is room for {len(names)} classes, and all are there: forget one, or build with more, "
                    f"classes='{own}+{len(names) - own + 10}', whose last layer takes no state of this one",
                    page="sessions",
                )
            known, label = self._known_labels(), names.index("")
            after = [*names[:label], name, *names[label + 1 :]]
            kernel, bias = self._layer()
            if x is None:
                kernel[label], bias[label] = 0, bias[known].mean() if len(known) else 0
                self._write(kernel, bias, label, after)
                return label
            of_own = known < own
            tell = bool(kernel[known[of_own]].any())  # a mean of 0 says nothing of the sharpness: then all others do
            before = means_in(kernel[known], bias[known], of_own if tell else np.ones(len(known), bool))
            if before is None:
                raise UsageError(
                    "the last layer does not hold class means, as after steps or with a shrinkage: what another "
                    "class' weights were to be beside them is not known. set_class_means(x, y) with samples of all "
                    "classes makes it such a layer. Or add the class without samples, and train or set all again",
                    page="sessions",
                )
            features, labels = self._features(x), np.append(known, label)
            means, sharpness, changed = np.vstack([before.means, features.mean(0)]), before.sharpness, slice(-1, None)
            farther = np.append(before.farther, farther_of(features) if tell else 0)
            if len(known) == 1:  # of one class alone nothing told how sharply it is to be told from others
                sharpness = sharpness_of(features, np.full(len(features), 1), means)
                changed = slice(None)
            rows, biases = Means(means, sharpness, farther).layer()
            kernel[labels[changed]], bias[labels[changed]] = rows[changed], biases[changed]
            self._write(kernel, bias, labels[changed], after)
            return label

    def rename_class(self, name: str, new: str) -> None:
        """Gives a class another name. Raises UsageError where there is none, or one of the new name."""
        with self._lock:
            self._check_named()
            names = list(self._names()) if name == new else self._named(new)
            names[self._label(name)] = new
            head, state = self._head(), self.state()
            state[str(head.names)] = class_names.written(names)
            self._put(state)

    def forget_class(self, name: str) -> None:
        """Forgets a class of the user's: its label is free again, and the labels of the others stay.

        Raises:
            UsageError: there is none of that name, or it is one of the model's own.
        """
        with self._lock:
            label = self._label(name)
            if label < self._head().own:
                raise UsageError(
                    f"{name!r} is a class of the model's own, and stays: it can be renamed", page="sessions"
                )
            kernel, bias = self._layer()
            kernel[label] = 0
            names = list(self._names())
            names[label] = ""
            self._write(kernel, bias, label, names)

    def _head(self) -> ClassHead:
        head = self.manifest.head
        if head is None:
            raise UsageError(
                "the program's last layer is set by steps alone: build with head='class_means', and room for classes, "
                "classes='10+20'",
                page="sessions",
            )
        return head

    def _names(self) -> list[str]:
        """Return names by label, empty ones free; where none are kept, those of the file or numbers."""
        head = self._head()
        if head.names is None:
            return list(self.manifest.labels or map(str, range(head.own)))
        with self._lock:  # a class that is added meanwhile is not to be lost
            if self._known is None:
                self._known = class_names.read(self.state()[head.names])
            return self._known

    def _kept_names(self) -> list[str] | None:
        """Return names by label, empty ones free, where the state keeps them; None where it keeps none."""
        head = self.manifest.head
        return None if head is None or head.names is None else list(self._names())

    def _names_in_memory(self) -> Sequence[str] | None:
        """Return names by label as a memory has them: those that the state keeps, or else the program's labels."""
        return self._kept_names() or self.manifest.labels

    def _named(self, name: str) -> list[str]:
        """Return all names where one may be added to them."""
        self._check_named()
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"the name of a class is a text, not {name!r}", page="sessions")
        if name in self._names():
            raise UsageError(f"there is a class {name!r} already", page="sessions")
        class_names.written([name])
        return list(self._names())

    def _check_named(self) -> None:
        """Raise UsageError where no names are kept."""
        if self._head().names is None:
            raise UsageError(
                f"names are not kept in this program's state: build with room, classes='{self._head().own}+10'",
                page="sessions",
            )

    def _label(self, name: str) -> int:
        names = self._names()
        if not name or name not in names:
            raise UsageError(f"there is no class {name!r}: there are {', '.join(filter(None, names))}", page="sessions")
        return names.index(name)

    def _called(self, label: int) -> str:
        return f"{label} ({self._names()[label]!r})"

    def _known_labels(self) -> np.ndarray:
        return np.array([label for label, name in enumerate(self._names()) if name], np.int64)

    def _labels(self, y: Any) -> np.ndarray:
        labels = np.asarray(y)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not np.isin(labels, self._known_labels()).all():
            known = ", ".join(map(str, self._known_labels()))
            raise UsageError(f"y: labels of known classes, one a row: {known}", page="sessions")
        return labels.astype(np.int64)

    def _check_labels(self, examples: Examples) -> None:
        """Raise UsageError where rows are of a class that there is not."""
        names = self._kept_names()
        if names is None:
            return
        for spec in self.manifest.targets:
            y = examples.arrays.get(spec.name)
            if y is None or (y.dtype.kind != "i" and spec.shape[1:][-1:] != (len(names),)):
                continue  # numbers of rows, and no shares of classes
            given = (
                np.unique(y[y >= 0]) if y.dtype.kind == "i" else np.flatnonzero((y > 0).reshape(-1, y.shape[-1]).any(0))
            )
            free = [int(label) for label in given if int(label) < len(names) and not names[int(label)]]
            if free:
                raise UsageError(
                    f"{spec.name}: label {free[0]} is of no class yet: session.add_class(name) makes one",
                    page="sessions",
                )

    def _classifying(self, x: Any, y: Any, by_distance: bool, shrinkage: float | None) -> tuple[np.ndarray, ...]:
        """Return the known labels, and weights and biases that tell these rows by distance or by a covariance."""
        features, labels = self._features(x), self._labels(y)
        if len(labels) != len(features):
            raise UsageError(f"y: {len(labels)} labels of {len(features)} rows", page="sessions")
        known = self._known_labels()
        if not np.isin(known, labels).all():
            missing = self._called(int(known[~np.isin(known, labels)][0]))
            raise UsageError(f"y: no row is of class {missing}, which has no mean then", page="sessions")
        order = np.searchsorted(known, labels)
        means = means_of(features, order, len(known))
        if by_distance:
            return known, *Means(means, sharpness_of(features, order, means), np.zeros(len(known))).layer()
        return known, *as_layer(*discriminant(features, order, means, shrinkage))

    def _features(self, x: Any) -> np.ndarray:
        """Return what the last layer reads, float64 [rows, inputs]."""
        head = self._head()
        if not head.takes_features:
            raise UsageError(
                "setting class means needs a program for it: build with head='class_means' and update='head'",
                page="sessions",
            )
        given = np.asarray(self.features(x))
        if not len(given):
            raise UsageError("x: there are no rows", page="sessions")
        found = given.astype(np.float64).reshape(len(given), -1)
        found -= head.zero_point  # in place: of many blocks it is some 10 MB
        found *= head.scale
        return found

    def _layer(self) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel [classes, inputs] and bias [classes] as they are now."""
        head, found = self._head(), self.parameters()
        kernel = found[head.kernel]
        return (kernel if head.axis == 0 else kernel.T).copy(), found[head.bias].copy()

    def _set(self, labels: np.ndarray, weights: np.ndarray, biases: np.ndarray) -> None:
        """Replaces the rows of some labels."""
        kernel, bias = self._layer()
        kernel[labels], bias[labels] = weights, biases
        self._write(kernel, bias, labels, self._names())

    def _write(self, kernel: np.ndarray, bias: np.ndarray, changed: Any, names: list[str]) -> None:
        """Replaces layer and names; the optimizer's slots of labels that changed, and of free ones, start again."""
        head, state = self._head(), self.state()
        free = np.array([head.names is not None and not name for name in names])
        bias[free] = class_names.free_bias(bias[~free])
        placed = {head.kernel: (kernel if head.axis == 0 else kernel.T, head.axis), head.bias: (bias, 0)}
        state = with_layer(self._program, state, placed, np.append(np.flatnonzero(free), changed))
        if head.names is not None:
            state[head.names] = class_names.written(names)
        self._put(state)

    def _put(self, state: dict[str, np.ndarray]) -> None:
        """Puts a state with other classes in the place of the one before."""
        if self._goes_back:
            raise UsageError(
                "a training that may go back to an earlier epoch (patience, roll_back) would lose a change of classes: "
                "change them before it or after it",
                page="sessions",
            )
        running = self._open()
        running.check_not_lost()
        running.take(state)
        self._changed()

    def _changed(self) -> None:
        super()._changed()
        self._known = None


def with_layer(
    program: ProgramFile,
    state: Mapping[str, np.ndarray],
    placed: Mapping[str, tuple[np.ndarray, int]],
    labels: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return a state with other weights, in which the optimizer's slots of some labels are as they were built.

    A slot that was built as a copy of the weights, as an average or FedProx's anchor is, gets the new weights. Slots
    that are of no class, as Adam's count, start again where the labels are all that there are.

    Args:
        program: its file.
        state: as it stores it.
        placed: by parameter, its values in the model's layout and the axis of its classes.
        labels: whose slots start again.
    """
    # Here: a session that only trains does without the IR, 3 MB of Python's memory.
    from converter.ir.view import View

    manifest, after, by_class = program.manifest, dict(state), set[str]()
    for spec in manifest.parameters:
        if spec.name in placed:
            for piece in spec.pieces:
                stored = View.from_json(list(piece.view)).apply(placed[spec.name][0])
                after[piece.tensor] = np.ascontiguousarray(stored, np.float32).reshape(state[piece.tensor].shape)
    kept = [(owner, tensor) for owner in placed for tensor in kept_of(owner, manifest.state_tensors) if tensor.slot]
    for owner, tensor in kept:
        if tensor.model is None or tensor.model.shape != placed[owner][0].shape:
            continue
        view, axis = View.from_json(list(tensor.model.view)), placed[owner][1]
        whole = np.zeros(tensor.model.shape, state[tensor.tensor].dtype)
        view.scatter(whole, state[tensor.tensor])
        begun = placed[owner][0] if _copies_weights(program, tensor, owner, placed) else _built(program, tensor)
        np.moveaxis(whole, axis, 0)[labels] = np.moveaxis(begun, axis, 0)[labels]
        after[tensor.tensor] = np.ascontiguousarray(view.apply(whole)).reshape(state[tensor.tensor].shape)
        by_class.add(tensor.tensor)
    if all(len(np.unique(labels)) == values.shape[axis] for values, axis in placed.values()):
        rest = (tensor for tensor in manifest.state_tensors if tensor.slot and tensor.tensor not in by_class)
        after |= {tensor.tensor: program.initial(tensor) for tensor in rest}
    return after


def _copies_weights(program: ProgramFile, slot: StateTensor, owner: str, owners: Iterable[str]) -> bool:
    """Return whether a slot was built equal to the weights of its parameter.

    Of weights that were built as zeros that slot tells nothing, and its like of the layer's other parameter does: where
    both were zeros, a build refuses an optimizer of such slots.
    """
    kind = slot.name.removesuffix(owner)
    by_name = {tensor.name: tensor for tensor in program.manifest.state_tensors if tensor.model is not None}
    pairs = [(by_name[kind + name], by_name[name]) for name in owners if kind + name in by_name and name in by_name]
    told = [(_built(program, of), weights) for of, one in pairs if (weights := _built(program, one)).any()]
    return bool(told) and all(np.array_equal(begun, weights) for begun, weights in told)


def _built(program: ProgramFile, tensor: StateTensor) -> np.ndarray:
    """Return a tensor of the state as it was built, in the model's layout."""
    from converter.ir.view import View

    assert tensor.model is not None
    values = program.initial(tensor)
    whole = np.zeros(tensor.model.shape, values.dtype)
    View.from_json(list(tensor.model.view)).scatter(whole, values)
    return whole
