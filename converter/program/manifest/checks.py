"""The rules between the fields of a manifest, which is read from files that nobody vouches for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import frexp, prod
from typing import Any

from converter.program.manifest.certificates import check_certificate
from converter.program.manifest.identity import ModelTensor
from converter.program.manifest.names import ON_FEATURES, at_length, rows_to_infer
from converter.program.manifest.records import (
    FISHER,
    GRADIENT,
    TARGET,
    Manifest,
    Signature,
    TargetLabels,
    TensorSpec,
)
from converter.program.manifest.schema import ROLES, SIGNATURES, check_fields, fail
from converter.program.manifest.views import check_view, viewed_shape
from converter.program.manifest.weights import ChosenChannels, ParameterSpec

#: What is compared of a tensor.
Facts = tuple[str, tuple[int, ...], str]


def check_manifest(manifest: Manifest) -> None:
    """Raise UsageError where a field is beyond its limits, or two of them contradict each other."""
    check_fields(manifest)
    _Checker(manifest).check()


class _Checker:
    """The rules between the fields."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.state = {t.tensor: t for t in manifest.state_tensors}
        #: The signatures that a program of several lengths has for each of them.
        self.by_rows = [name for name in (manifest.step, "evaluate", "infer") if name in manifest.signatures]

    def check(self) -> None:
        m = self.manifest
        if m.micro_batch > m.batch or m.batch % m.micro_batch:
            fail(f"micro_batch: {m.micro_batch} is no part of a batch of {m.batch}")
        for i, tensor in enumerate(m.state_tensors):
            if tensor.model is not None:
                check_view(f"state_tensors[{i}].model", tensor.model.view, tensor.model.shape, tensor.shape)
        self.names()
        for name, signature in m.signatures.items():
            self.signature(f"signatures.{name}", signature)
            base, tokens = at_length(name)
            said = SIGNATURES["infer_n" if rows_to_infer(name) else base]
            self.kind(f"signatures.{name}", signature, said if tokens is None else {**said, "same": ()})
        for name, on_features in m.behind_features.items():
            self.kind(f"signatures.{on_features}", m.calls[name], SIGNATURES[name])
        self.infers()
        self.lengths()
        self.targets()
        self.features()
        self.all_state()
        self.rate()
        self.split()
        self.gradients()
        self.choices()
        self.head()
        for i, parameter in enumerate(m.parameters):
            self.parameter(f"parameters[{i}]", parameter)
        self.integers()
        for i, certificate in enumerate(m.certificates):
            check_certificate(f"certificates[{i}]", certificate)

    def names(self) -> None:
        """There are the signatures that a step needs, and no other than those of the schema."""
        m = self.manifest
        wanted = [m.step, m.updating]
        wanted += ["save", "restore", "initialize"] if m.state == "variables" else []
        wanted += [m.step_on_features] if "features" in m.signatures else []
        for name in wanted:
            if name not in m.calls:
                fail(f"signatures: {name!r} is missing")
        known = {*wanted, "evaluate", "infer", "features", "fisher", "prefill", "decode"}
        known |= {"evaluate_features", "infer_features"} if "features" in m.signatures else set()
        for name in m.signatures:
            base, tokens = at_length(name)
            is_other = (rows_to_infer(name) and "infer" in m.calls) or (tokens and base in self.by_rows)
            if name not in known and not is_other:
                fail(f"signatures: {name!r} is none of such a program")

    def signature(self, where: str, signature: Signature) -> None:
        for side, specs in (("in", signature.inputs), ("out", signature.outputs)):
            for spec in specs:
                self.tensor(f"{where}.{spec.name}", spec, side)

    def tensor(self, where: str, spec: TensorSpec, side: str) -> None:
        """Check what its role says of a tensor."""
        role, prefix = ROLES[spec.role], ROLES[spec.role].get("prefix", "")
        if side not in role:
            fail(f"{where}: role {spec.role!r} among the {side}puts")
        fits = spec.dtype == role.get("dtype", spec.dtype) and spec.name.startswith(prefix)
        if "named" in role and (spec.name != spec.role or not fits):
            fail(f"{where}: role {spec.role!r} belongs to a {role['dtype']} of that name")
        if "size" in role:
            fits = fits and len(spec.shape) == 1 and role["size"] in ("rows", str(spec.shape[0]))
        if not fits:
            fail(f"{where}: a {spec.role} is {_words(role)}, not {spec}")
        if "state" in role:
            stored = self.state.get(spec.name.removeprefix(prefix))
            # The bits of int8 are passed as uint8.
            passed = None if stored is None else "uint8" if stored.dtype == "int8" else stored.dtype
            if stored is None or (stored.shape, passed) != (spec.shape, spec.dtype):
                fail(f"{where}: does not agree with state_tensors")

    def kind(self, where: str, signature: Signature, said: Mapping[str, Any]) -> None:
        """Check what the schema says of a kind of signature."""
        m = self.manifest
        roles = [spec.role for spec in (*signature.inputs, *signature.outputs)]
        for role in said.get("one", ()):
            if roles.count(role) != 1:
                fail(f"{where}: {roles.count(role)} tensors of role {role!r}, and it takes one")
        for role in said.get("some", ()):
            if role not in roles:
                fail(f"{where}: nothing of role {role!r}")
        rows = said.get("rows")
        for spec in (*signature.inputs, *signature.outputs) if rows == "call" else ():
            if "row" in ROLES[spec.role] and spec.shape[0] != m.micro_batch:
                fail(f"{where}.{spec.name}: first axis {spec.shape[0]}, and a call takes {m.micro_batch}")
        if rows == "own" and len({spec.shape[0] for spec in signature.taking("input")}) != 1:
            fail(f"{where}: the first axes of its inputs differ")
        for role in said.get("same", ()):
            if _facts(signature.taking(role), 1) != _facts(m.calls[m.step].taking(role), 1):
                fail(f"{where}: what it takes of role {role!r} is not what {m.step} takes")

    def infers(self) -> None:
        """`infer_<n>` is `infer` for n rows."""
        signatures = self.manifest.calls
        for name, signature in signatures.items():
            if (rows := rows_to_infer(name)) is None:
                continue
            if signature.taking("input")[0].shape[0] != rows:
                fail(f"signatures.{name}: it takes another number of rows")
            if _ordered(signature.giving("output"), 1) != _ordered(signatures["infer"].giving("output"), 1):
                fail(f"signatures.{name}: what it gives is not what infer gives")

    def lengths(self) -> None:
        """Check that `train_length_<n>` is `train` for rows of n tokens, and all of them are there for each n."""
        m = self.manifest
        for name, signature in m.signatures.items():
            base, tokens = at_length(name)
            if tokens is None:
                continue
            for other in self.by_rows:
                if f"{other}_length_{tokens}" not in m.signatures:
                    fail(f"signatures: '{other}_length_{tokens}' is missing")
            longest, own = m.signatures[base], _at(signature, _tokens(signature))
            rows = {spec.shape[1:] for role in ("input", "target") for spec in signature.taking(role)}
            if rows != {(tokens,)} or _tokens(longest) <= tokens or _at(longest, tokens) != own:
                fail(f"signatures.{name}: it is not {base} for rows of {tokens} tokens")

    def features(self) -> None:
        """Check that what the frozen first layers give is what the signatures on it take."""
        m = self.manifest
        for name in (m.step_on_features, "evaluate_features", "infer_features"):
            if "features" not in m.signatures or name not in m.signatures:
                continue
            if _ordered(m.signatures["features"].giving("output")) != _ordered(m.signatures[name].taking("input")):
                fail(f"signatures.{name}: its inputs are not what features gives")
            whole = m.calls[name.removesuffix(ON_FEATURES)]
            if name != m.step_on_features and _ordered(m.signatures[name].outputs) != _ordered(whole.outputs):
                fail(f"signatures.{name}: what it gives is not what {name.removesuffix(ON_FEATURES)} gives")

    def all_state(self) -> None:
        """Check that what moves the state moves all of it."""
        m = self.manifest
        moves = {}
        if m.state == "variables":
            moves = {"save": m.signatures["save"].giving("state"), "restore": m.signatures["restore"].taking("state")}
        elif m.state == "stateless":
            moves = {m.updating: m.calls[m.updating].taking("state")}
        for name, specs in moves.items():
            if {spec.name for spec in specs} != set(self.state):
                fail(f"signatures.{name}: its state is not the tensors of state_tensors")

    def rate(self) -> None:
        """Check one learning rate: a number, or one that runs in the program and counts by the state."""
        m = self.manifest
        if (m.learning_rate is None) is (m.running_rate is None):
            fail(
                "learning_rate: it is a number, or running_rate says how it runs in the program, one of both; programs "
                "of an older Pocketune say neither: build it again"
            )
        counter = None if m.running_rate is None else m.running_rate.counter
        numbers = {t.tensor for t in m.state_tensors if t.shape == (1,) and t.dtype == "float32"}
        if counter is not None and counter not in numbers:
            fail(f"running_rate.counter: {counter!r} is no number of the state")

    def split(self) -> None:
        """Check what the two halves of a split step change of the state; the scale of what they pass."""
        m = self.manifest
        if frexp(m.loss_scale)[0] != 0.5 or (m.loss_scale != 1 and m.state != "split"):
            fail(f"loss_scale: {m.loss_scale} is no power of two, or not for the state {m.state!r}")
        if m.state != "split":
            return
        moved, updated = self.moved_by(m.step), self.moved_by(m.updating)
        if missing := self.trained() - updated:
            fail(f"signatures.{m.updating}: it does not update {sorted(missing)[0]!r}")
        if moved & updated:
            fail(f"signatures.{m.step}: it changes {sorted(moved & updated)[0]!r}, and so does {m.updating}")

    def moved_by(self, signature: str) -> set[str]:
        """Return the state tensors that a signature gives."""
        return {spec.name for spec in self.manifest.calls[signature].giving("state")}

    def trained(self) -> set[str]:
        """Return the state tensors with a gradient, or as moving averages a batch's statistics in its place."""
        m = self.manifest
        chosen = {choice.indices for choice in m.choices}
        chosen |= {piece.tensor for p in m.parameters if p.name in m.redrawn for piece in p.pieces}
        # The number of the call, which the forward pass of a split step changes.
        forward = self.moved_by(m.step) if m.state == "split" else set()
        return {name for name, t in self.state.items() if not t.slot} - chosen - forward

    def targets(self) -> None:
        """One is `y`, several are `y/...`, and some losses take none; losses and labels are those of the targets."""
        m, names = self.manifest, [spec.name for spec in self.manifest.targets]
        if names != [TARGET] and not all(name.startswith(f"{TARGET}/") for name in names):
            fail(f"signatures.{m.step}: its targets are {', '.join(names)}, and neither y nor y/...")
        if isinstance(m.loss, dict):
            owners = {next((n for n in m.losses if f"{name}/".startswith(f"{n}/")), None) for name in names}
            if owners != set(m.losses):
                fail(f"loss: those of {', '.join(m.loss)}, and the targets are {', '.join(names)}")
        targets = {spec.name: spec for spec in m.targets}
        for name, labels in m.target_labels.items():
            if name not in targets:
                fail(f"target_labels.{name}: no target of that name")
            _check_labels(f"target_labels.{name}", labels, targets[name])

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
                if {spec.name for spec in of_role("gradient")} != (trained if at_length(name)[0] in passed else set()):
                    fail(f"signatures.{name}: the gradients among its {side} are not those of what trains")

    def choices(self) -> None:
        """Check that each has a list of channels and a change of its own, and `fisher` weighs all of them."""
        m = self.manifest
        for i, choice in enumerate(m.choices):
            where, stored = f"choices[{i}]", self.state.get(choice.indices)
            if stored is None or stored.dtype != "int32" or len(stored.shape) != 1:
                fail(f"{where}: {choice.indices!r} is no list of channels in state_tensors")
            elif stored.shape[0] > choice.channels:
                fail(f"{where}: {stored.shape[0]} of {choice.channels} channels")
            if choice.change not in {p.name for p in m.parameters}:
                fail(f"{where}: {choice.change!r} is not in parameters")
            self.redrawn(where, choice)
        if "fisher" in m.signatures:
            weighed = {(FISHER + c.weight, (c.channels,), "float32") for c in m.choices}
            if _facts(m.signatures["fisher"].giving("fisher")) != weighed:
                fail("signatures.fisher: what it gives is not one number for each channel of the choices")

    def redrawn(self, where: str, choice: ChosenChannels) -> None:
        """Check that a weight in the state, and what is added to its channels, are whole and fit each other."""
        if choice.product is None:
            return
        known, many = {p.name: p for p in self.manifest.parameters}, self.manifest.trained_channels(choice)
        if choice.weight not in known:
            fail(f"{where}: {choice.weight!r} is not in parameters")
        weight, change = known[choice.weight], known[choice.change]
        for one in (weight, change):
            stored = [self.state[piece.tensor].shape for piece in one.pieces if piece.tensor in self.state]
            whole = [prod(shape) for shape in stored] == [prod(one.shape)] and one.frozen is None
            if not whole or one.dtype != "float32" or one.pieces[0].scales is not None:
                fail(f"{where}: {one.name!r} is not whole in one tensor of float32")
        shape = viewed_shape(f"{where}.product", choice.product, weight.shape)
        fits = len(shape) > 1 and shape[-2] == choice.channels and prod(shape) == prod(weight.shape)
        if not fits or change.shape != (*shape[:-2], many, shape[-1]):
            fail(f"{where}.product: {list(change.shape)} is not what is added to {many} channels of {list(shape)}")

    def head(self) -> None:
        """Check that its kernel and bias are of the same classes, and names and features of a size with them."""
        head = self.manifest.head
        if head is None:
            return
        shapes = {p.name: p.shape for p in self.manifest.parameters}
        kernel, bias = shapes.get(head.kernel, ()), shapes.get(head.bias, ())
        if len(kernel) != 2 or bias != (kernel[head.axis],) or head.own > bias[0]:
            fail(f"head: {head.kernel!r} and {head.bias!r} are no kernel and bias of {head.own} classes or more")
        stored = self.state.get(head.names or "")
        if head.names is not None and (stored is None or (stored.shape, stored.dtype) != ((bias[0], 16), "int32")):
            fail(f"head.names: {head.names!r} is no int32[{bias[0]}, 16] in state_tensors")
        if head.takes_features:
            given = (
                self.manifest.signatures["features"].giving("output") if "features" in self.manifest.signatures else ()
            )
            if [prod(spec.shape[1:]) for spec in given] != [kernel[1 - head.axis]]:
                fail(f"head: features gives no {kernel[1 - head.axis]} numbers a row, which {head.kernel!r} takes")

    def parameter(self, where: str, parameter: ParameterSpec) -> None:
        if parameter.dtype == "int8":
            fail(f"{where}.dtype: a weight in int8 stands for float32 numbers")
        for piece in parameter.pieces:
            if piece.tensor not in self.state:
                fail(f"{where}: {piece.tensor!r} is not in state_tensors")
            check_view(where, piece.view, parameter.shape, self.state[piece.tensor].shape)
        if (frozen := parameter.frozen) is not None:
            check_view(f"{where}.frozen", frozen.view, parameter.shape, frozen.shape)

    def integers(self) -> None:
        """Check that each state tensor in int8 is a weight's, with scales of its own beside it."""
        m = self.manifest
        pairs = [(piece.tensor, piece.scales) for p in m.parameters for piece in p.pieces if piece.scales is not None]
        for tensor, said in pairs:
            stored, scales = self.state[tensor], self.state.get(said.tensor)
            lengths = (1, *stored.shape[said.axis : said.axis + 1]) if said.axis < len(stored.shape) else ()
            if scales is None or scales.dtype != "float32" or prod(scales.shape) not in lengths:
                fail(f"parameters: {said.tensor!r} is no scales of {tensor!r} in state_tensors")
        of_integers = sorted(name for name, tensor in self.state.items() if tensor.dtype == "int8")
        if sorted(tensor for tensor, _ in pairs) != of_integers or len({s.tensor for _, s in pairs}) < len(pairs):
            fail("parameters: each state tensor in int8, and no other, has scales of its own")
        layer = () if m.head is None else (m.head.kernel, m.head.bias)
        for p in (p for p in m.parameters if p.name in layer and any(piece.scales for piece in p.pieces)):
            fail(f"head: {p.name!r} is in int8, and a session sets float32 numbers")


def _tokens(signature: Signature) -> int:
    """Return the tokens of a row, 0 where its first input has none."""
    return (*signature.taking("input")[0].shape, 0)[1] if signature.taking("input") else 0


def _at(signature: Signature, tokens: int) -> list[tuple[str, tuple[int, ...], str, str]]:
    """Return what is compared of the tensors of a signature, with so many tokens in the place of its own."""
    own = _tokens(signature)

    def shape(spec: TensorSpec) -> tuple[int, ...]:
        rows = spec.role in ("input", "target", "output") and spec.shape[1:2] == (own,)
        return (spec.shape[0], tokens, *spec.shape[2:]) if rows else spec.shape

    return [(spec.name, shape(spec), spec.dtype, spec.role) for spec in (*signature.inputs, *signature.outputs)]


def _words(role: Mapping[str, Any]) -> str:
    """Say what a tensor of a role is."""
    said = {"1": "one ", "rows": "one a row, of "}.get(role.get("size", ""), "of ") + role.get("dtype", "any type")
    return said + (f" and called {role['prefix']}..." if "prefix" in role else "")


def _check_labels(where: str, labels: TargetLabels, target: TensorSpec) -> None:
    """Raise UsageError unless a target of its type can hold such labels or numbers."""
    bounds = [bound for bound in (labels.least, labels.most) if bound is not None]
    if target.dtype == "int32" and (labels.count is None or bounds or labels.only):
        fail(f"{where}: an int32 target holds labels from 0 to a count, and no other numbers")
    if target.dtype == "float32" and (labels.masked or labels.ignored is not None):
        fail(f"{where}: labels are left out, and a float32 target holds none")
    if target.dtype == "float32" and labels.count not in (None, target.shape[-1]):
        fail(f"{where}: {labels.count} classes, and the target has {target.shape[-1]} along its last axis")
    if target.dtype == "bool" or bounds != sorted(bounds):
        fail(f"{where}: there are no such numbers of {target.dtype}")


def _ordered(specs: Iterable[TensorSpec], axes: int = 0) -> list[Facts]:
    """Return what is compared of tensors, in their order, without their first axes."""
    return [(spec.name, spec.shape[axes:], spec.dtype) for spec in specs]


def _facts(specs: Iterable[TensorSpec], axes: int = 0) -> set[Facts]:
    """Return the same in no order."""
    return set(_ordered(specs, axes))


def check_model_tensor(where: str, model: ModelTensor, stored: tuple[int, ...]) -> None:
    """Raise UsageError unless a tensor of the model gives what is stored."""
    check_fields(model, where)
    check_view(where, model.view, model.shape, stored)
