"""State compatibility: what differs between two programs, and a state's tensors as the other one stores them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from converter.program import class_names
from converter.program.file import ProgramFile
from converter.program.manifest import (
    ChosenChannels,
    ClassHead,
    FrozenWeight,
    Identity,
    LabelledOutput,
    Manifest,
    StateTensor,
    kept_of,
)

if TYPE_CHECKING:
    from converter.ir.view import View

#: So many differences of a kind are told; the number of the others is.
_MOST = 3
#: What is said of a state that nothing speaks against, and that does not say all.
UNPROVEN = (
    "it was saved by, or for a program of, an older or another version of Pocketune: its tensors fit this program, and "
    "whether the frozen weights and the forward computation are the same cannot be told"
)


@dataclass(frozen=True)
class StateSpec:
    """What a state is, or what a program takes for one.

    Attributes:
        program: graph hash of the program.
        tensors: in the order of its manifest.
        identity: what the state belongs to; None where an older Pocketune did not say.
        labels: of the classes of each output, in the order of the outputs; none of an output that has none. They end
            with the last output that has some.
        choices: of the program; a file does not have them.
        built: what the program begins with, by tensor; a file does not have that.
        scales: by the tensor of a weight in int8 that of its scales; a file does not have them.
        head: the last layer, of the program, where the state says what its classes are called; a file does not have it.
        labelled: the outputs of the program that have labels; a file does not have them.
    """

    program: str
    tensors: tuple[StateTensor, ...]
    identity: Identity | None = None
    labels: tuple[tuple[str, ...], ...] = ()
    choices: tuple[ChosenChannels, ...] = ()
    built: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    scales: Mapping[str, str] = field(default_factory=dict)
    head: ClassHead | None = None
    labelled: tuple[LabelledOutput, ...] = ()

    @property
    def says_layouts(self) -> bool:
        """Whether it is said of a tensor how it is laid out."""
        return any(tensor.model is not None for tensor in self.tensors)

    @staticmethod
    def of(program: ProgramFile) -> StateSpec:
        """Return what a program takes."""
        m = program.manifest
        built = {tensor.tensor: program.initial(tensor) for tensor in m.state_tensors}
        head = None if m.head is None or m.head.names is None else m.head
        labels = labels_of(m)
        return StateSpec(
            m.graph_hash, m.state_tensors, m.identity, labels, m.choices, built, m.scales, head, m.labelled
        )


def labels_of(manifest: Manifest) -> tuple[tuple[str, ...], ...]:
    """Return what a state says of the classes of a program's outputs; see `StateSpec`."""
    places = {one.place for one in manifest.labelled}
    return tuple(manifest.labels or () if place in places else () for place in range(max(places, default=-1) + 1))


def differences(there: StateSpec, here: StateSpec) -> tuple[str, ...]:
    """Return what makes the state of one program meaningless in another, in words; nothing where it goes on there."""
    return () if there.program == here.program else (*_of_programs(there, here), *_of_labels(there, here))


def _of_programs(there: StateSpec, here: StateSpec) -> tuple[str, ...]:
    """Return what differs between two programs, whatever their classes are called."""
    a, b = there.identity, here.identity
    found = list(_of_tensors(there, here, slots=False))
    if a is None or b is None:
        return tuple(found or _of_tensors(there, here, slots=True))
    same_version = a.version == b.version
    if same_version and a.update != b.update and a.optimizer != b.optimizer:
        found.insert(0, f"the optimizer is {a.optimizer} there, {b.optimizer} here")
    found = found or list(_of_tensors(there, here, slots=True))
    if same_version and a.update != b.update and not found:
        found.append("the optimizer computes another update")
    found += _of_frozen(there, here, a.frozen, b.frozen)
    if same_version and a.forward != b.forward and not found:
        found.append("the forward computation differs")
    if a.int8 and b.int8 and a.int8 != b.int8:
        found.append("other frozen layers are rounded there, or in other ranges")
    elif a.int8 != b.int8:
        kinds = ["rounded" if one.int8 else "float32" for one in (a, b)]
        found.append(f"the frozen layers are {kinds[0]} there, {kinds[1]} here")
    return tuple(found)


def is_proven(there: StateSpec, here: StateSpec) -> bool:
    """Return whether all was compared of two programs between which no difference was found."""
    a, b = there.identity, here.identity
    return there.program == here.program or (a is not None and b is not None and a.version == b.version)


def carried(
    tensors: Mapping[str, np.ndarray], there: StateSpec, here: StateSpec, partly: bool
) -> dict[str, np.ndarray]:
    """Return those tensors of a state that a program has, by its names, as it stores them.

    Args:
        tensors: of the state, by its own names.
        there: what they are.
        here: what the program takes.
        partly: whether the program differs, so that what belongs together may come in part.
    """
    if there.program == here.program:
        return _of_same_program(tensors, here)
    known = {tensor.name: tensor for tensor in there.tensors}
    found = {
        tensor.tensor: _stored(tensors[known[tensor.name].tensor], known[tensor.name], tensor)
        for tensor in here.tensors
        if tensor.name in known and _difference(known[tensor.name], tensor) is None
    }
    for output in _of_other_classes(there, here):  # the rows of its last layer mean nothing here
        layer = {t.tensor for name in output.parameters for t in kept_of(name, here.tensors)}
        found = {name: array for name, array in found.items() if name not in layer}
    if here.head is None:  # a class that there is not would have a loss of 30,000 here
        free = {t.tensor for name in _layer_of_free_classes(tensors, there) for t in kept_of(name, here.tensors)}
        found = {name: array for name, array in found.items() if name not in free}
    for choice in here.choices if partly else ():  # a change means nothing beside other channels, or another weight
        pair = choice.indices, *(t.tensor for t in kept_of(choice.change, here.tensors))
        weight = [t.tensor for t in here.tensors if t.name == choice.weight]
        is_without = choice.weight in known and not (weight and weight[0] in found)
        if is_without or any(name not in found for name in pair) or not choice.is_good(found[choice.indices]):
            found = {name: array for name, array in found.items() if name not in pair}
    for pair in here.scales.items():  # integers mean nothing with other scales
        if any(name not in found for name in pair):
            found = {name: array for name, array in found.items() if name not in pair}
    if here.head is not None:  # names say of all rows of the layer which are classes
        kept = [t for name in (here.head.kernel, here.head.bias) for t in kept_of(name, here.tensors)]
        if any(name not in found for name in (here.head.names, *(t.tensor for t in kept if not t.slot))):
            left = {here.head.names, *(t.tensor for t in kept)}
            found = {name: array for name, array in found.items() if name not in left}
    return found


def with_layouts(there: StateSpec, here: StateSpec, tensors: Mapping[str, np.ndarray]) -> StateSpec:
    """Return the state of an older version, which says of no tensor how it is laid out, with that where it can be told.

    Weights of dense layers were stored as [inputs, outputs] or transposed, all others in one way. Of a square one that
    way counts which is clearly nearer to what was built; a slot goes with its weight.

    Args:
        there: what the state is.
        here: what the program takes.
        tensors: of the state.
    """
    if there.says_layouts or there.program == here.program:
        return there
    ours = {tensor.name: tensor for tensor in here.tensors}
    transposed: dict[str, bool | None] = {}  # by the weight
    for tensor in (t for t in there.tensors if t.name in ours and not t.slot):
        like = ours[tensor.name]
        transposed[tensor.name] = _is_transposed(tensor, like, tensors[tensor.tensor], here.built[like.tensor])

    def laid(tensor: StateTensor) -> StateTensor:
        like, owners = ours.get(tensor.name), [n for n in transposed if f"/{tensor.name}".endswith(f"/{n}")]
        if like is None or like.model is None:
            return tensor
        is_weights = bool(owners) and prod(tensor.shape) == prod(ours[max(owners, key=len)].shape)
        way = transposed[max(owners, key=len)] if is_weights else False
        if way is None or tensor.shape != (like.shape[::-1] if way else like.shape):
            return tensor
        view = (*like.model.view, ["transpose", [1, 0]]) if way else like.model.view
        return replace(tensor, model=replace(like.model, view=view))

    return replace(there, tensors=tuple(map(laid, there.tensors)))


def _of_same_program(tensors: Mapping[str, np.ndarray], here: StateSpec) -> dict[str, np.ndarray]:
    """Return the tensors of a state of the program itself: they lie as it stores them, whether or not it says how."""
    kinds = {name: (array.shape, array.dtype.name) for name, array in tensors.items()}
    return {t.tensor: tensors[t.tensor] for t in here.tensors if kinds.get(t.tensor) == (t.shape, t.dtype)}


def _is_transposed(there: StateTensor, here: StateTensor, array: np.ndarray, built: np.ndarray) -> bool | None:
    """Return whether a weight is stored the other way round than here; None where it cannot be told."""
    if not _is_square(here) or there.shape != here.shape:
        return len(here.shape) == 2 and there.shape == here.shape[::-1] != here.shape
    kept, changed = (float(np.square(a - built).sum()) for a in (array, array.T))
    return None if min(kept, changed) > max(kept, changed) / 2 or not max(kept, changed) else changed < kept


def _is_square(tensor: StateTensor) -> bool:
    """Return whether a tensor has as many rows as columns, so that its shape does not say which are which."""
    return len(tensor.shape) == 2 and tensor.shape[0] == tensor.shape[1] > 1


def _of_tensors(there: StateSpec, here: StateSpec, slots: bool) -> Iterator[str]:
    """Yield what differs in what trains, or in the optimizer's slots."""
    a, b = ({t.name: t for t in spec.tensors if t.slot == slots} for spec in (there, here))
    still_a, still_b = _frozen_names(there), _frozen_names(here)
    yield from _few(filter(None, (_difference(a[name], b[name]) for name in b if name in a)))
    if slots:
        yield from _few(f"the optimizer keeps {name} here and not there" for name in b if name not in a)
        yield from _few(f"the optimizer keeps {name} there and not here" for name in a if name not in b)
        return
    new, gone = [name for name in b if name not in a], [name for name in a if name not in b]
    yield from _few(f"{name} {'is frozen' if name in still_a else 'is not'} there and trains here" for name in new)
    yield from _few(f"{name} trains there and {'is frozen' if name in still_b else 'is not'} here" for name in gone)


def _of_frozen(
    there: StateSpec, here: StateSpec, ours: tuple[FrozenWeight, ...], theirs: tuple[FrozenWeight, ...]
) -> Iterator[str]:
    """Yield what differs in what does not train."""
    if [weight.digest for weight in ours] == [weight.digest for weight in theirs]:
        return  # their names do not matter
    a, b = {weight.name: weight for weight in ours}, {weight.name: weight for weight in theirs}
    trained = {t.name for spec in (there, here) for t in spec.tensors}
    both = [name for name in b if name in a and (name not in trained or a[name].shape == b[name].shape)]
    if changed := [name for name in both if a[name].shape == b[name].shape and a[name].digest != b[name].digest]:
        yield f"the frozen weights differ: {_listed(changed)}"
    reshaped = [name for name in both if a[name].shape != b[name].shape]
    yield from _few(f"{name} is {_size(a[name].shape)} there, {_size(b[name].shape)} here" for name in reshaped)
    yield from _few(f"{name} is here and not there" for name in b if name not in a and name not in trained)
    yield from _few(f"{name} is there and not here" for name in a if name not in b and name not in trained)


def _of_labels(there: StateSpec, here: StateSpec) -> Iterator[str]:
    """Yield the first class of each output that has another label."""
    for output, theirs in _relabelled(there, here):
        ours = here.labels[output.place]
        pairs = enumerate(zip_longest(theirs, ours))
        number, (a, b) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
        a, b = ("missing" if label is None else f"'{label}'" for label in (a, b))
        said = f"class {number} of {output.output} is {a} there, {b} here"
        yield f"{said}: build with the labels of the state, in its order"


def _of_other_classes(there: StateSpec, here: StateSpec) -> list[LabelledOutput]:
    """Return the labelled outputs whose classes are others there, or named by the state itself."""
    names_its_own = any(tensor.name == class_names.TENSOR for tensor in there.tensors)
    return [*here.labelled] if names_its_own else [output for output, _ in _relabelled(there, here)]


def _layer_of_free_classes(tensors: Mapping[str, np.ndarray], there: StateSpec) -> list[str]:
    """Return the weights of a last layer with rows of classes that there are not, by the state's names; none without.

    A file does not say which layer it is: it is that whose bias is the one of free classes.
    """
    kept = (t for t in there.tensors if t.name == class_names.TENSOR and t.dtype == "int32" and len(t.shape) == 2)
    names = next((tensor.tensor for tensor in kept), None)
    free = np.zeros(0, bool) if names is None else tensors[names][:, 0] == 0
    weights = [tensor for tensor in there.tensors if not tensor.slot]
    biases = [t.name for t in weights if t.shape == free.shape and (tensors[t.tensor][free] <= class_names.FREE).all()]
    if not free.any() or not biases:
        return []
    layer = re.sub(r"[^/.]*$", "", biases[0])
    return [t.name for t in weights if t.name.startswith(layer) and len(free) in (t.model or t).shape]


def _relabelled(there: StateSpec, here: StateSpec) -> Iterator[tuple[LabelledOutput, tuple[str, ...]]]:
    """Yield the outputs that have labels in both, and others there, with these."""
    for output in here.labelled:
        theirs = there.labels[output.place] if output.place < len(there.labels) else ()
        if theirs and theirs != here.labels[output.place]:
            yield output, theirs


def _difference(there: StateTensor, here: StateTensor) -> str | None:
    """Return what differs between two tensors of one name.

    None where one is the other, be it stored in another layout.
    """
    known = there.model is not None and here.model is not None
    a, b = (t.model.shape if known and t.model is not None else t.shape for t in (there, here))
    if a != b:
        return f"{here.name} is {_size(a)} there, {_size(b)} here"
    if there.dtype != here.dtype:
        return f"{here.name} is {there.dtype} there, {here.dtype} here"
    if known and not _covers_same(there, here):
        return f"another part of {here.name} trains there"
    if not known and _is_square(here):
        return f"which way round {here.name} lies there cannot be told"
    return None


def _covers_same(there: StateTensor, here: StateTensor) -> bool:
    """Return whether two tensors hold the same elements of the model's."""
    a, b = _view(there), _view(here)
    if prod(there.shape) != prod(here.shape):
        return False
    if a == b or not (a.is_cut or b.is_cut):
        return True
    return np.array_equal(np.sort(_places(there), axis=None), np.sort(_places(here), axis=None))


def _stored(array: np.ndarray, there: StateTensor, here: StateTensor) -> np.ndarray:
    """Return the same numbers as another program stores them."""
    if there.model is None or here.model is None or there.model.view == here.model.view:
        return array.reshape(here.shape)
    whole = np.empty(prod(here.model.shape), array.dtype)
    whole[_places(there)] = array.reshape(-1)
    return whole[_places(here)].reshape(here.shape)


def _places(tensor: StateTensor) -> np.ndarray:
    """Return where each element lies in the model's tensor."""
    shape = tensor.shape if tensor.model is None else tensor.model.shape
    return _view(tensor).places(shape)


def _view(tensor: StateTensor) -> View:
    # Here: a session that only trains does without the IR, 3 MB of Python's memory.
    from converter.ir.view import View

    return View() if tensor.model is None else View.from_json(list(tensor.model.view))


def _frozen_names(spec: StateSpec) -> set[str]:
    return set() if spec.identity is None else {weight.name for weight in spec.identity.frozen}


def _few(said: Iterable[str]) -> Iterator[str]:
    """Yield the first of some differences, and how many more there are."""
    everything = list(said)
    yield from everything[:_MOST]
    if len(everything) > _MOST:
        yield f"and {len(everything) - _MOST} more of these"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"
