"""The rules between the fields of a manifest, which is read from files that nobody vouches for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import frexp, isfinite, prod
from typing import Any

from converter.program.manifest.certificates import check_certificates
from converter.program.manifest.identity import ModelTensor
from converter.program.manifest.records import (
    FISHER,
    FROZEN,
    GRADIENT,
    INPUT_ROLES,
    MASK,
    MAX_ELEMENTS,
    NAMED_ROLES,
    OUTPUT_ROLES,
    TARGET,
    Manifest,
    ParameterSpec,
    Role,
    Signature,
    rows_to_infer,
)
from converter.support.errors import UsageError


def check_manifest(manifest: Manifest) -> None:
    """Raises UsageError where two fields contradict each other."""
    _Checker(manifest).check()


class _Checker:
    """The rules between the fields."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.state = {t.tensor: t for t in manifest.state_tensors}

    def check(self) -> None:
        m = self.manifest
        if not re.fullmatch("[0-9a-f]{64}", m.graph_hash):
            _fail(f"graph_hash: expected 64 hexadecimal digits, got {m.graph_hash!r}")
        if m.batch < 1:
            _fail(f"batch: must be at least 1, got {m.batch}")
        if not 1 <= m.micro_batch <= m.batch or m.batch % m.micro_batch:
            _fail(f"micro_batch: {m.micro_batch} is no part of a batch of {m.batch}")
        _unique("state_tensors", (t.tensor for t in m.state_tensors))
        _unique("parameters", (p.name for p in m.parameters))
        for tensor in m.state_tensors:
            check_shape(f"state_tensors.{tensor.tensor}", tensor.shape)
            if tensor.model is not None:
                check_model_tensor(f"state_tensors.{tensor.tensor}", tensor.model, tensor.shape)
        if m.identity is not None:
            m.identity.check()
        self.signatures()
        for parameter in m.parameters:
            self.parameter(parameter)
        check_certificates(m.certificates)

    def signatures(self) -> None:
        m = self.manifest
        wanted = list(dict.fromkeys([m.step, m.updating]))
        wanted += ["save", "restore", "initialize"] if m.state == "variables" else []
        if "features" in m.signatures:
            wanted.append(m.step_on_features)
        others = [name for name in m.signatures if rows_to_infer(name)]
        known = {*wanted, "evaluate", "infer", "features", "fisher", *(others if "infer" in m.signatures else ())}
        for name in wanted:
            if name not in m.signatures:
                _fail(f"signatures: {name!r} is missing")
        for name in m.signatures:
            if name not in known:
                _fail(f"signatures: {name!r} is none of such a program")
        for name, signature in m.signatures.items():
            self.signature(f"signatures.{name}", signature)
        rows = ("weight", "loss")
        step = (*rows, "learning_rate") if m.step == m.updating else rows
        for name, one_each, several in (
            (m.step, step, ("input",)),
            (m.step_on_features, step, ("input",)),
            ("apply", ("learning_rate",), ()),
            ("evaluate", rows, ("input",)),
            *((name, (), ("input", "output")) for name in ("infer", *others)),
            ("features", (), ("input", "output")),
            ("fisher", ("weight",), ("input",)),
        ):
            if name not in m.signatures:
                continue
            roles: list[str] = [spec.role for spec in (*m.signatures[name].inputs, *m.signatures[name].outputs)]
            for role in one_each:
                if roles.count(role) != 1:
                    _fail(f"signatures.{name}: {roles.count(role)} tensors of role {role!r}, and it takes one")
            for role in several:
                if role not in roles:
                    _fail(f"signatures.{name}: nothing of role {role!r}")
        for name in (m.step, m.step_on_features, "evaluate", "fisher"):
            for spec in m.signatures[name].inputs if name in m.signatures else ():
                if spec.role in ("input", "target", "weight") and spec.shape[0] != m.micro_batch:
                    _fail(
                        f"signatures.{name}.{spec.name}: first axis {spec.shape[0]}, and a call takes {m.micro_batch}"
                    )
        for name in {"infer", "features", *others} & m.signatures.keys():
            if len({spec.shape[0] for spec in m.signatures[name].taking("input")}) != 1:
                _fail(f"signatures.{name}: the first axes of its inputs differ")
        for name in others:
            if m.signatures[name].taking("input")[0].shape[0] != rows_to_infer(name):
                _fail(f"signatures.{name}: it takes another number of rows")
            if self.results(name) != self.results("infer"):
                _fail(f"signatures.{name}: what it gives is not what infer gives")
        self.targets()
        # What a model takes is the same for all, but for the number of rows.
        same: list[tuple[str, Role]] = [("evaluate", "input"), ("evaluate", "target"), ("infer", "input")]
        same += [("fisher", "input"), ("fisher", "target"), *((name, "input") for name in others)]
        for name, role in (*same, ("features", "input")):
            if name in m.signatures and self.rows(name, role) != self.rows(m.step, role):
                _fail(f"signatures.{name}: what it takes of role {role!r} is not what {m.step} takes")
        if "features" in m.signatures:
            given = [(s.name, s.shape, s.dtype) for s in m.signatures["features"].giving("output")]
            if given != [(s.name, s.shape, s.dtype) for s in m.signatures[m.step_on_features].taking("input")]:
                _fail(f"signatures.{m.step_on_features}: its inputs are not what features gives")
        names = set(self.state)
        moves = {}
        if m.state == "variables":
            moves = {"save": m.signatures["save"].giving("state"), "restore": m.signatures["restore"].taking("state")}
        elif m.state == "stateless":
            moves = {m.updating: m.signatures[m.updating].taking("state")}
        for name, specs in moves.items():
            if {spec.name for spec in specs} != names:
                _fail(f"signatures.{name}: its state is not the tensors of state_tensors")
        self.rate()
        self.split()
        self.gradients()
        self.choices()

    def rate(self) -> None:
        """One learning rate: a number, or one that runs in the program and counts by the state."""
        m = self.manifest
        if (m.learning_rate is None) is (m.running_rate is None):
            _fail(
                "learning_rate: it is a number, or running_rate says how it runs in the program, one of both; programs "
                "of an older Pocketune say neither: build it again"
            )
        if m.learning_rate is not None and not (isfinite(m.learning_rate) and m.learning_rate >= 0):
            _fail(f"learning_rate: {m.learning_rate} is none")
        running = m.running_rate
        if running is None:
            return
        if running.zero_from is not None and running.zero_from < 0:
            _fail(f"running_rate.zero_from: {running.zero_from} is no number of a step")
        numbers = {t.tensor for t in m.state_tensors if t.shape == (1,) and t.dtype == "float32"}
        if running.counter is not None and running.counter not in numbers:
            _fail(f"running_rate.counter: {running.counter!r} is no number of the state")

    def split(self) -> None:
        """What the two halves of a split step change of the state; the scale of what they pass."""
        m = self.manifest
        if not m.loss_scale > 0 or frexp(m.loss_scale)[0] != 0.5 or (m.loss_scale != 1 and m.state != "split"):
            _fail(f"loss_scale: {m.loss_scale} is no power of two, or not for the state {m.state!r}")
        if m.state != "split":
            return
        moved, updated = self.moved_by(m.step), self.moved_by(m.updating)
        if missing := self.trained() - updated:
            _fail(f"signatures: {m.updating!r} does not update {sorted(missing)[0]!r}")
        if moved & updated:
            _fail(f"signatures: {m.step!r} and {m.updating!r} both change {sorted(moved & updated)[0]!r}")

    def moved_by(self, signature: str) -> set[str]:
        """The state tensors that a signature gives."""
        return {spec.name for spec in self.manifest.signatures[signature].giving("state")}

    def trained(self) -> set[str]:
        """The state tensors that have a gradient, or as moving averages a batch's statistics in the place of one."""
        m = self.manifest
        chosen = {choice.indices for choice in m.choices}
        # The number of the call, which the forward pass of a split step changes.
        forward = self.moved_by(m.step) if m.state == "split" else set()
        return {name for name, t in self.state.items() if not t.slot} - chosen - forward

    def targets(self) -> None:
        """One is `y`, several are `y/...`, and some losses take none; losses and labels are those of the targets."""
        m, names = self.manifest, [spec.name for spec in self.manifest.targets]
        if names != [TARGET] and not all(name.startswith(f"{TARGET}/") for name in names):
            _fail(f"signatures.{m.step}: its targets are {', '.join(names)}, and neither y nor y/...")
        if isinstance(m.loss, dict):
            owners = [next((n for n in m.losses if f"{name}/".startswith(f"{n}/")), None) for name in names]
            if None in owners or set(owners) != set(m.losses):
                _fail(f"loss: those of {', '.join(m.loss)}, and the targets are {', '.join(names)}")
        labelled = {spec.name for spec in m.targets if spec.dtype == "int32"}
        for name, labels in m.target_labels.items():
            if name not in labelled or not 1 <= labels.count < MAX_ELEMENTS:
                _fail(f"target_labels.{name}: {labels.count} labels, or no int32 target of that name")
            if labels.ignored is not None and abs(labels.ignored) >= MAX_ELEMENTS:
                _fail(f"target_labels.{name}: {labels.ignored} is no int32")

    def gradients(self) -> None:
        """Those of a split step go from one half to the other; a stateless one is handed its accumulators each time."""
        m = self.manifest
        trained, on_rows = {GRADIENT + name for name in self.trained()}, {m.step, m.step_on_features}
        split, stateless = m.state == "split", m.accumulates and m.state == "stateless"
        taking = {"apply"} if split else {*on_rows, "apply"} if stateless else set()
        giving = on_rows if split or stateless else set()
        for name, signature in m.signatures.items():
            sides = {"inputs": (signature.taking, taking), "outputs": (signature.giving, giving)}
            for side, (of_role, passed) in sides.items():
                if {spec.name for spec in of_role("gradient")} != (trained if name in passed else set()):
                    _fail(f"signatures.{name}: the gradients among its {side} are not those of what trains")

    def choices(self) -> None:
        """Each has a list of channels and a change of its own, and `fisher` weighs all of them."""
        m = self.manifest
        _unique("choices", (c.weight for c in m.choices))
        _unique("choices", (c.indices for c in m.choices))
        for choice in m.choices:
            where, stored = f"choices.{choice.weight}", self.state.get(choice.indices)
            shape = stored.shape if stored is not None and stored.dtype == "int32" else ()
            if len(shape) != 1:
                _fail(f"{where}: {choice.indices!r} is no list of channels in state_tensors")
            if not shape[0] <= choice.channels <= MAX_ELEMENTS:
                _fail(f"{where}: {shape[0]} of {choice.channels} channels")
            if choice.change not in {p.name for p in m.parameters}:
                _fail(f"{where}: {choice.change!r} is not in parameters")
        if "fisher" in m.signatures:
            found = {(s.name, s.shape, s.dtype) for s in m.signatures["fisher"].giving("fisher")}
            if found != {(FISHER + c.weight, (c.channels,), "float32") for c in m.choices} or not found:
                _fail("signatures.fisher: what it gives is not one number for each channel of the choices")

    def rows(self, signature: str, role: Role) -> set[Any]:
        return {(s.name, s.shape[1:], s.dtype) for s in self.manifest.signatures[signature].taking(role)}

    def results(self, signature: str) -> list[Any]:
        return [(s.name, s.shape[1:], s.dtype) for s in self.manifest.signatures[signature].giving("output")]

    def signature(self, where: str, signature: Signature) -> None:
        for side, specs, roles in (
            ("inputs", signature.inputs, INPUT_ROLES),
            ("outputs", signature.outputs, OUTPUT_ROLES),
        ):
            if not specs:
                _fail(f"{where}: no {side}")
            _unique(f"{where}.{side}", (spec.name for spec in specs))
            for spec in specs:
                check_shape(f"{where}.{spec.name}", spec.shape)
                if spec.role not in roles:
                    _fail(f"{where}.{spec.name}: role {spec.role!r} among the {side}")
                if spec.role in NAMED_ROLES and (spec.name, spec.dtype) != (spec.role, "float32"):
                    _fail(f"{where}.{spec.name}: role {spec.role!r} belongs to a float32 of that name")
                if spec.role in NAMED_ROLES and spec.shape != (1,) and spec.role != "weight":
                    _fail(f"{where}.{spec.name}: expected shape [1], got {list(spec.shape)}")
                if spec.role == "figure" and (spec.shape, spec.dtype) != ((1,), "float32"):
                    _fail(f"{where}.{spec.name}: a figure is one float32, not {spec}")
                if spec.role == "mask" and (spec.dtype != "float32" or not spec.name.startswith(MASK)):
                    _fail(f"{where}.{spec.name}: a mask is of float32 and called {MASK}..., not {spec}")
                if spec.role in ("state", "gradient"):
                    prefix = GRADIENT if spec.role == "gradient" else ""
                    stored = self.state.get(spec.name.removeprefix(prefix))
                    if stored is None or (stored.shape, stored.dtype) != (spec.shape, spec.dtype):
                        _fail(f"{where}.{spec.name}: does not agree with state_tensors")

    def parameter(self, parameter: ParameterSpec) -> None:
        where = f"parameters.{parameter.name}"
        check_shape(where, parameter.shape, least_rank=0)
        if not parameter.pieces:
            _fail(f"{where}: no pieces")
        for piece in parameter.pieces:
            if piece.tensor not in self.state:
                _fail(f"{where}: {piece.tensor!r} is not in state_tensors")
            stored = self.state[piece.tensor]
            self.view(where, parameter, piece.view, stored.shape)
        if (frozen := parameter.frozen) is not None:
            if not frozen.entry.startswith(FROZEN):
                _fail(f"{where}: the frozen part must be a metadata entry {FROZEN}..., got {frozen.entry!r}")
            check_shape(f"{where}.frozen", frozen.shape)
            self.view(where, parameter, frozen.view, frozen.shape)

    def view(self, where: str, parameter: ParameterSpec, view: tuple[Any, ...], stored: tuple[int, ...]) -> None:
        _check_view(where, view, parameter.shape, stored)


def check_model_tensor(where: str, model: ModelTensor, stored: tuple[int, ...]) -> None:
    """Raises UsageError unless a tensor of the model gives what is stored."""
    check_shape(where, model.shape, least_rank=0)
    _check_view(where, model.view, model.shape, stored)


def _check_view(where: str, view: tuple[Any, ...], shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    given = viewed_shape(where, view, shape)
    if prod(given) != prod(stored):
        _fail(f"{where}: a view gives {list(given)}, and what is stored is {list(stored)}")


def viewed_shape(where: str, view: Iterable[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape behind a view of anybody's. Raises UsageError for one that does not fit."""
    for step in view:
        shape = _viewed(f"{where}: view step {step!r}", step, shape)
    return shape


def _viewed(where: str, step: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape behind one step of a view, without touching a tensor: the manifest may be anybody's."""
    match step:
        case ["transpose", [*axes]] if all(type(a) is int for a in axes) and sorted(axes) == list(range(len(shape))):
            return tuple(shape[a] for a in axes)
        case ["reshape", [*to]] if all(type(d) is int and d > 0 for d in to) and prod(to) == prod(shape):
            return tuple(to)
        case ["slice", int(axis), int(start), int(stop)] if (
            bool not in map(type, step) and 0 <= axis < len(shape) and 0 <= start < stop <= shape[axis]
        ):
            return (*shape[:axis], stop - start, *shape[axis + 1 :])
    return _fail(f"{where} does not fit {list(shape)}")


def _fail(problem: str) -> Any:
    raise UsageError(f"manifest: {problem}", page="program-files")


def _unique(where: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _fail(f"{where}: {name!r} stands there twice")
        seen.add(name)


def check_shape(where: str, shape: tuple[int, ...], least_rank: int = 1) -> None:
    """Raises UsageError for a shape that no tensor of a program has."""
    if len(shape) < least_rank or any(d < 1 for d in shape) or prod(shape) > MAX_ELEMENTS:
        _fail(f"{where}: bad shape {list(shape)}")
