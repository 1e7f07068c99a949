"""Low-rank adapters on their way out of a program and into one, whatever file has them."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose

import numpy as np

from converter.ir.view import View
from converter.program.adapters import LowRank, factors, magnitudes, read_adapters
from converter.program.file import ProgramFile, read_program
from converter.program.parameters import check_tensors
from converter.runtime.export.export import State, state_tensors
from converter.runtime.state.interchange import StateSpec
from converter.runtime.state.saved import save_state
from converter.support.errors import UsageError, nearest

#: A program that is open, its file or its bytes.
ProgramPath = ProgramFile | str | os.PathLike | bytes
#: Scales that are further apart are not the same number, rounded: alpha is a decimal, or the root of a rank.
_SAME_SCALE = 1e-6


class AdapterWarning(UserWarning):
    """An adapter goes on otherwise than where it comes from, by the program's own choice."""


@dataclass(frozen=True)
class Factors:
    """An adapter of a layer: its weight is used as W + scale * B A.

    Attributes:
        a: float32 [rank, inputs].
        b: float32 [outputs, rank].
        scale: alpha by the rank, or by its root.
        lengths: of the columns, float32 [outputs], where they train (DoRA).
    """

    a: np.ndarray
    b: np.ndarray
    scale: float
    lengths: np.ndarray | None = None

    @property
    def rank(self) -> int:
        """Rows of A."""
        return len(self.a)

    @property
    def alpha(self) -> float | int:
        """What `LoRA(rank, alpha)` takes for this scale."""
        alpha = float(f"{self.scale * self.rank:.9g}")
        return int(alpha) if alpha.is_integer() else alpha


def opened(program: ProgramPath) -> ProgramFile:
    """Return a program, opened where it is not. Raise UsageError as `read_program`."""
    return program if isinstance(program, ProgramFile) else read_program(program)


def module_of(adapter: LowRank) -> str:
    """Return what PEFT calls the layer of a weight."""
    name = adapter.weight.replace("/", ".")
    return name.removesuffix(".weight").removesuffix(".kernel")


def matrices(program: ProgramFile) -> dict[str, LowRank]:
    """Return the adapters of a program by the module that PEFT has for each.

    Raises:
        UsageError: it has none, one of a convolution, or some of DoRA and some of LoRA.
    """
    adapters = read_adapters(program)
    if not adapters:
        raise UsageError(
            f"{program.manifest.name} has no low-rank adapters: build it with update='lora-8', or with rules of "
            "pocketune.LoRA",
            page="adapters",
        )
    for adapter in adapters:
        if len(adapter.shape) != 2 or len(adapter.a_shape) != 2:
            raise UsageError(
                f"files of adapters have matrices, and {adapter.weight} is {list(adapter.shape)}: export the merged "
                "model",
                page="adapters",
            )
    if len({adapter.magnitude is None for adapter in adapters}) > 1:
        raise UsageError(
            "some of the program's adapters are of DoRA and some of LoRA, and a file has one kind: build with one, or "
            "export the merged model",
            page="adapters",
        )
    return {module_of(adapter): adapter for adapter in adapters}


def learned(program: ProgramFile, state: State) -> dict[str, Factors]:
    """Return what a state has of each adapter, by module.

    Raises:
        UsageError: as `matrices`, or the state is not one of the program.
    """
    adapters, numbers = matrices(program), state_tensors(program, state)
    found, lengths = factors(program, numbers), magnitudes(program, numbers)
    return {
        module: Factors(
            np.ascontiguousarray(found[adapter.weight][0].T),
            np.ascontiguousarray(found[adapter.weight][1].T),
            adapter.scale,
            lengths.get(adapter.weight),
        )
        for module, adapter in adapters.items()
    }


def write_state(
    program: ProgramFile, found: Mapping[str, Factors], where: str | os.PathLike, state: str | os.PathLike
) -> tuple[str, ...]:
    """Write a state of a program with these adapters; its optimizer starts again.

    Args:
        program: that is to go on with them.
        found: by module.
        where: the file or folder that they are of, for sentences.
        state: the file to write.

    Returns:
        Names of the program's weights that none is of: theirs are as they were built.

    Raises:
        UsageError: they are of another base, rank, scale or kind, or of weights that have none in the program.
    """
    adapters, where = matrices(program), os.fspath(where)
    _check_kind(adapters, found, where)
    for module, one in found.items():
        if module not in adapters:
            raise UsageError(
                f"{where}: the program has no adapter for {module}.{nearest(module, adapters)} Build it with "
                f"{_rules(adapters, found)}",
                page="adapters",
            )
        _check_fits(adapters, found, module, one, where)
    built = {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
    changed, drawn = dict(built), factors(program, built)
    pieces = {p.name: p.pieces for p in program.manifest.parameters}
    for module, one in found.items():
        adapter = adapters[module]
        arrays = {adapter.a: np.ascontiguousarray(one.a.T), adapter.b: np.ascontiguousarray(one.b.T)}
        if adapter.magnitude is not None:
            arrays[adapter.magnitude] = _fitting_lengths(adapter, one.lengths, where)
        for name, array in arrays.items():
            for piece in pieces.get(name, ()):
                changed[piece.tensor] = View.from_json(list(piece.view)).apply(array)
        if not adapter.trains_a and not np.array_equal(one.a.T, drawn[adapter.weight][0]):
            raise UsageError(
                f"{where}: the program keeps A of {adapter.weight} as it was drawn (train_a=False), and this adapter "
                "has another: build with LoRA(train_a=True)",
                page="adapters",
            )
    check_tensors(program.manifest, changed, where)
    save_state(state, StateSpec.of(program), changed)
    return tuple(adapter.weight for module, adapter in adapters.items() if module not in found)


def unrounded(program: ProgramFile) -> dict[str, str]:
    """Return checksums of frozen vectors (norms, biases), which are the same however the base is quantised."""
    identity = program.manifest.identity
    return {} if identity is None else {w.name: w.digest for w in identity.frozen if len(w.shape) == 1}


def check_base(program: ProgramFile, base: Mapping[str, str], where: str | os.PathLike) -> None:
    """Raise UsageError where an adapter of ours was trained on another base than the program's.

    Args:
        program: that is to go on with it.
        base: `unrounded` of the program that it is of; empty: of a file of others.
        where: the file or folder, for sentences.
    """
    own = unrounded(program)
    for name in own.keys() & base.keys():
        if own[name] != base[name]:
            raise UsageError(
                f"{os.fspath(where)}: the adapters are of another base than {program.manifest.name}, whose {name} has "
                "other numbers: build the program from the file that they were trained on",
                page="adapters",
            )


def warn_of_dropout(program: ProgramFile, dropout: float, where: str | os.PathLike) -> None:
    """Say where steps of a program drop other shares of an adapter's inputs than those that it comes from."""
    own = {adapter.dropout for adapter in read_adapters(program)}
    if any(not isclose(one, dropout, rel_tol=_SAME_SCALE) for one in own):
        warnings.warn(
            f"{os.fspath(where)}: lora_dropout is {dropout:g}, and the program was built with "
            f"{' and '.join(f'{one:g}' for one in sorted(own))}: steps go on by its own. Build it with "
            f"pocketune.LoRA(..., dropout={dropout:g}) for the other",
            AdapterWarning,
            stacklevel=3,
        )


def _check_kind(adapters: Mapping[str, LowRank], found: Mapping[str, Factors], where: str) -> None:
    """Raise where one of file and program is of DoRA and the other is not."""
    dora = any(adapter.magnitude is not None for adapter in adapters.values())
    if any(one.lengths is not None for one in found.values()) != dora:
        theirs, own = ("LoRA", "DoRA") if dora else ("DoRA", "LoRA")
        raise UsageError(
            f"{where}: the adapters are of {theirs}, and the program's of {own}: build it with "
            f"{_rules(adapters, found)}",
            page="adapters",
        )


def _check_fits(
    adapters: Mapping[str, LowRank], found: Mapping[str, Factors], module: str, one: Factors, where: str
) -> None:
    """Raise where an adapter has other inputs, outputs, another rank or another scale than the program's."""
    adapter = adapters[module]
    (rank, inputs), outputs = one.a.shape, one.b.shape[0]
    if (inputs, outputs) != (adapter.a_shape[0], adapter.b_shape[1]):
        raise UsageError(
            f"{where}: the adapter of {adapter.weight} is of {inputs} inputs and {outputs} outputs, and the program's "
            f"layer has {adapter.a_shape[0]} and {adapter.b_shape[1]}: it was trained on another base",
            page="adapters",
        )
    if rank != adapter.a_shape[1]:
        raise UsageError(
            f"{where}: the adapter of {adapter.weight} has the rank {rank}, and the program's {adapter.a_shape[1]}: "
            f"build it with {_rules(adapters, found)}",
            page="adapters",
        )
    if not isclose(one.scale, adapter.scale, rel_tol=_SAME_SCALE):
        raise UsageError(
            f"{where}: the product of the factors of {adapter.weight} counts {one.scale:g} times, and in the program "
            f"{adapter.scale:g} times, by which its steps would be others: build it with {_rules(adapters, found)}",
            page="adapters",
        )


def _rules(adapters: Mapping[str, LowRank], found: Mapping[str, Factors]) -> str:
    """Return the argument of a build that has adapters like these: by the ends of names, and by name what differs."""
    dropouts = {adapter.dropout for adapter in adapters.values()}
    kind = f", dropout={max(dropouts):g}" if max(dropouts) else ""
    kind += ", dora=True" if any(one.lengths is not None for one in found.values()) else ""
    by_end: dict[str, dict[str, str]] = {}
    for module, one in found.items():
        # Of modules that the program does not know, the names are those of transformers.
        weight = adapters[module].weight if module in adapters else f"{module}.weight"
        last = len(module.rpartition(".")[2])
        end = weight[len(module) - last - 1 :] if last < len(module) else weight
        by_end.setdefault(f"*{end}" if last < len(module) else end, {})[weight] = (
            f"pocketune.LoRA({one.rank}, {one.alpha}{kind})"
        )
    rules: dict[str, str] = {}
    for end, own in by_end.items():
        (usual, _), *_ = Counter(own.values()).most_common()
        rules |= {end: usual} | {weight: rule for weight, rule in own.items() if rule != usual}
    return "update={" + ", ".join(f'"{pattern}": {rule}' for pattern, rule in rules.items()) + "}"


def _fitting_lengths(adapter: LowRank, lengths: np.ndarray | None, where: str) -> np.ndarray:
    """Return the lengths of columns of an adapter of DoRA."""
    if lengths is None or lengths.shape != adapter.b_shape[-1:]:
        found = "none" if lengths is None else f"of shape {list(lengths.shape)}"
        raise UsageError(
            f"{where}: {adapter.weight} has {adapter.b_shape[-1]} outputs, and the lengths of columns "
            f"(lora_magnitude_vector) are {found}",
            page="adapters",
        )
    return lengths
