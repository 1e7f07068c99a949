"""Arrays of a round: the trained tensors of a program by their model names, and checks of those that a server sends.

Nothing here is Flower's: a client in another language checks the same, in the same order.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from types import MappingProxyType

import numpy as np

from converter.ir.view import View
from converter.program.class_names import FREE
from converter.program.file import ProgramFile
from converter.program.manifest import LOSS_OF_STEP, ClassHead, Manifest, StateTensor
from converter.support.errors import UsageError, nearest
from converter.support.words import counted

#: Slots of FedProx's term (`converter.training.optim.proximal`), which a round sets.
_MU, _ANCHOR = "/proximal_mu", "/proximal_anchor/"
#: Where the owner sets no bound: so many times the norm of what was built, and as much for each number (see `check`).
_NORMS, _EACH = 10.0, 10.0
_NOTHING: Mapping[str, np.ndarray] = MappingProxyType({})


class RefusedRound(UsageError):
    """What the server asks is not done: its arrays or its plan are not what this program, or its owner, takes."""

    page = "federated"


@dataclass(frozen=True)
class Travelling:
    """A state tensor as it travels.

    Attributes:
        tensor: its name in the program.
        name: that of the parameter or slot in the model.
        shape: in the model's layout; of a weight that trains in part, of the part, flat where that is no box.
        stored: its shape in the program.
        order: where each element of what travels is stored: int64 [elements].
    """

    tensor: str
    name: str
    shape: tuple[int, ...]
    stored: tuple[int, ...]
    order: np.ndarray

    @staticmethod
    def of(spec: StateTensor) -> Travelling:
        """Return how a state tensor travels."""
        whole = spec.shape if spec.model is None else spec.model.shape
        view = View() if spec.model is None else View.from_json(list(spec.model.view))
        places = view.places(whole)
        box = tuple(len(np.unique(axis)) for axis in np.unravel_index(places, whole)) if whole else ()
        shape = box if prod(box) == len(places) else (len(places),)
        return Travelling(spec.tensor, spec.name, shape, spec.shape, np.argsort(places, kind="stable"))

    def sent(self, stored: np.ndarray) -> np.ndarray:
        """Return a stored tensor as it travels: a copy in the model's layout."""
        return stored.reshape(-1)[self.order].reshape(self.shape)

    def taken(self, array: np.ndarray) -> np.ndarray:
        """Inverse of `sent`."""
        stored = np.empty(prod(self.stored), array.dtype)
        stored[self.order] = array.reshape(-1)
        return stored.reshape(self.stored)


class Exchange:
    """What of a program's state travels.

    Attributes:
        identity: what the programs of all clients have in common, see `identity_of`.
        accepted: what a server may name as the program: that, or the one that has the labels in it whatever is
            personal, by which programs have all the more in common.
        trained: the trained tensors and statistics that are shared, by the model's names.
        personal: those that stay at home.
        slots: those of the optimizer for what is shared, which stay at home unless the server sends them; FedProx's are
            none of them.
        at_home: tensors of the program that stay here: those that are personal, and with a last layer that has room for
            classes their names.
        kept: tensors of the program that a client has from round to round, with their shapes as stored: slots, what is
            personal, and its slots.
        norm: the largest L2 norm of all trained arrays together that is taken.
    """

    def __init__(self, program: ProgramFile, norm: float | None = None, personal: Iterable[str] = ()) -> None:
        """Reads what travels from a program.

        Args:
            program: any of `pocketune.build`.
            norm: the owner's bound. None: ten times that of what was built, and ten times the root of the number of
                numbers.
            personal: patterns of names, `head/*`: what they match trains, and does not travel (FedPer).

        Raises:
            UsageError: a pattern matches nothing, or half of a last layer with room for classes, nothing is left to
                share, its trained channels are chosen on the device, so that no two mean the same, or an older
                Pocketune built it.
        """
        manifest = program.manifest
        kept = [t for t in manifest.state_tensors if t.dtype == "float32" and t.tensor != LOSS_OF_STEP]
        everything = {t.name: Travelling.of(t) for t in kept if not t.slot}
        self.personal = _personal(everything, list(personal))
        self.identity = identity_of(manifest, self.personal)
        self.accepted = frozenset({self.identity, identity_of(manifest)})
        self.trained = {name: one for name, one in everything.items() if name not in self.personal}
        slots = {t.name: Travelling.of(t) for t in kept if t.slot and _MU not in t.name and _ANCHOR not in t.name}
        own = {name: one for name, one in slots.items() if any(name.endswith(f"/{of}") for of in self.personal)}
        self.slots = {name: one for name, one in slots.items() if name not in own}
        self.kept = {one.tensor: one.stored for one in (*slots.values(), *self.personal.values())}
        self._mu = next((t.tensor for t in kept if t.slot and t.name.endswith(_MU)), None)
        self._anchors = {
            everything[t.name.partition(_ANCHOR)[2]].tensor: t.tensor for t in kept if t.slot and _ANCHOR in t.name
        }
        head = manifest.head
        self._later = None if head is None or head.names is None else (head.bias, head.own)
        self.at_home = [one.tensor for one in self.personal.values()] + _names_at_home(head, self.personal)
        built = self.sent({t.tensor: program.initial(t) for t in kept if t.name in self.trained})
        numbers = sum(array.size for array in built.values())
        self.norm = _NORMS * self._norm(built) + _EACH * sqrt(numbers) if norm is None else norm

    def sent(self, state: Mapping[str, np.ndarray], slots: bool = False) -> dict[str, np.ndarray]:
        """Return the arrays that leave the device: float32 in the model's layout, by the model's names.

        Args:
            state: tensors as the program stores them.
            slots: with the optimizer's.
        """
        return {name: one.sent(state[one.tensor]) for name, one in self._travelling(slots).items()}

    def taken(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return checked arrays of a server as the program stores them, by its tensors.

        Raises:
            RefusedRound: as `checked`.
        """
        expected = self._travelling(True)
        return {expected[name].tensor: expected[name].taken(array) for name, array in self.checked(arrays).items()}

    def checked(self, arrays: Mapping[str, np.ndarray], sender: str = "the server") -> dict[str, np.ndarray]:
        """Return checked arrays by their names, float32.

        Args:
            arrays: as they came.
            sender: whom they are of, for what is said.

        Raises:
            RefusedRound: one is missing, too many, of another shape or dtype, or not finite, or all are too large.
        """
        expected = self._travelling(self.asks_slots(arrays))
        for name in arrays:
            if name in self.personal:
                raise RefusedRound(
                    f"{sender} sent {name!r}, which is personal here and stays: both need the same patterns (personal)"
                )
            if name not in expected:
                raise RefusedRound(
                    f"{sender} sent {name!r}, which this program does not train.{nearest(name, expected)}"
                )
        if missing := [name for name in expected if name not in arrays]:
            raise RefusedRound(f"{sender} did not send {_few(missing)}")
        for name, one in expected.items():
            _check(name, one, arrays[name])
        rounded = {name: array.astype(np.float32) for name, array in arrays.items()}
        size = self._norm(rounded)
        if not size <= self.norm:
            raise RefusedRound(f"the arrays of {sender} have a norm of {size:.3g}, and {self.norm:.3g} is allowed here")
        return rounded

    @property
    def has_proximal(self) -> bool:
        """Whether the program was built with FedProx's term."""
        return self._mu is not None

    def begun(
        self, taken: Mapping[str, np.ndarray], mu: float | None = None, own: Mapping[str, np.ndarray] = _NOTHING
    ) -> dict[str, np.ndarray]:
        """Return what a round begins with: the tensors of the server, and what FedProx's term is held by.

        Args:
            taken: by the program's tensors, as `taken` gives them.
            mu: of the term; None: that of the program.
            own: what is personal, by the program's tensors.
        """
        begins = {**own, **taken}
        anchors = {anchor: begins[tensor] for tensor, anchor in self._anchors.items() if tensor in begins}
        asked = {} if mu is None or self._mu is None else {self._mu: np.array([mu], np.float32)}
        return {**begins, **anchors, **asked}

    def asks_slots(self, arrays: Iterable[str]) -> bool:
        """Return whether what a server sent has the optimizer's slots, which it then gets back."""
        return any(name in self.slots for name in arrays)

    def nbytes(self, slots: bool = False) -> int:
        """Return how many bytes of numbers travel in one direction."""
        return 4 * sum(prod(one.shape) for one in self._travelling(slots).values())

    def _norm(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Return the L2 norm of all trained arrays together, added up in float64.

        A bias of about -30,000, which a mean rounds, says that there is no such class: of those in room for classes the
        difference from that counts.
        """
        total = 0.0
        for name in self.trained:
            array = arrays[name].astype(np.float64)
            if self._later is not None and name == self._later[0]:
                later = array[self._later[1] :]
                later[later <= FREE / 2] -= FREE
            total += float(np.square(array).sum())
        return sqrt(total)

    def _travelling(self, slots: bool) -> dict[str, Travelling]:
        return self.trained | (self.slots if slots else {})


def _personal(trained: Mapping[str, Travelling], patterns: list[str]) -> dict[str, Travelling]:
    """Return the tensors that patterns match. Raises UsageError where one matches nothing, or all match."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in trained):
            raise UsageError(
                f"personal: {pattern!r} matches no trained tensor.{nearest(pattern, trained)} Trained are "
                f"{', '.join(trained)}",
                page="federated",
            )
    found = {name: one for name, one in trained.items() if any(fnmatch.fnmatchcase(name, p) for p in patterns)}
    if found and len(found) == len(trained):
        raise UsageError(
            f"personal: {', '.join(patterns)} match all that trains, so nothing is shared", page="federated"
        )
    return found


def _names_at_home(head: ClassHead | None, personal: Mapping[str, Travelling]) -> list[str]:
    """Return the tensor with the names of classes where their layer is personal. Raises UsageError where half is."""
    if head is None or head.names is None:
        return []
    stay = {name for name in (head.kernel, head.bias) if name in personal}
    if len(stay) == 1:
        raise UsageError(
            f"personal: {min(stay)} stays here and the rest of the last layer does not, which has room for classes: a "
            f"class that is added here is in {head.kernel} and {head.bias}, so both stay or none",
            page="federated",
        )
    return [head.names] if stay else []


def identity_of(manifest: Manifest, personal: Collection[str] = ()) -> str:
    """Return what programs have in common whose trained tensors may be averaged: 64 hexadecimal digits.

    It is the sha256 of lines of UTF-8: what the model computes and its update (`Identity`), the digests of what is
    frozen, name and shape of each trained tensor, and the labels in their order: rows of a last layer that stand for
    other classes have no mean. Target, batch size, signatures and rates have no part in it.

    Args:
        manifest: of the program.
        personal: the names of the trained tensors that stay at home. The labels have no part in it where these are all
            that stands for classes.

    Raises:
        UsageError: there is no such thing.
    """
    if manifest.choices:
        raise UsageError(
            f"{manifest.name} trains channels that each device chooses: those of two devices are not the same, so they "
            "cannot be averaged. Build with update='sparse' or a cut by rules",
            page="federated",
        )
    if manifest.scales:
        raise UsageError(
            f"{manifest.name} keeps weights in int8, and the mean of those of several devices would be rounded to that "
            "grid in each round, which loses what moves them by less than a step of it: build with train_as='float32'",
            page="federated",
        )
    identity = manifest.identity
    if identity is None:
        raise UsageError(
            f"{manifest.name} has no identity: an older Pocketune built it. Build it again", page="federated"
        )
    trained = [t for t in manifest.state_tensors if not t.slot and t.tensor != LOSS_OF_STEP]
    lines = [
        f"pocketune-federated/{identity.version}",
        *(identity.forward, identity.update, identity.int8),
        *(weight.digest for weight in identity.frozen),
        *sorted(
            f"{t.name} {t.dtype} {'x'.join(map(str, t.shape if t.model is None else t.model.shape))}" for t in trained
        ),
        *(f"class {label}" for label in _shared_labels(manifest, personal)),
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _shared_labels(manifest: Manifest, personal: Collection[str]) -> tuple[str, ...]:
    """Return the labels; none where all that trains of each layer that gives their classes is personal."""
    head = manifest.head
    layers: list[tuple[str, ...]] = [output.parameters for output in manifest.labelled]
    if head is not None and head.names is not None:
        layers = [(head.kernel, head.bias)]
    own = bool(layers) and all(layer and set(layer) <= set(personal) for layer in layers)
    return () if own else manifest.labels or ()


def _check(name: str, one: Travelling, array: np.ndarray) -> None:
    if array.dtype not in (np.float32, np.float64):  # a strategy that adds noise gives float64
        raise RefusedRound(f"{name} came as {array.dtype}, and is float32")
    if array.shape != one.shape:
        raise RefusedRound(f"{name} came as {list(array.shape)}, and is {list(one.shape)}")
    if not (np.abs(array) <= np.finfo(np.float32).max).all():
        raise RefusedRound(f"{name} came with NaN or infinity")


def _few(names: list[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'other array')}"
