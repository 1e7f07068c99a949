"""Conventions of an own loss: how it is called with the outputs of a module and the targets, by its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converter.ir import TensorType
from converter.program.manifest import TARGET
from converter.support.errors import UsageError


class Outputs(dict[str, Any]):
    """Outputs with names, as a module returns them: by key, by attribute or by place."""

    def __missing__(self, key: Any) -> Any:
        """Return an output by its place."""
        if isinstance(key, int):
            return list(self.values())[key]
        raise KeyError(key)

    def __getattr__(self, name: str) -> Any:
        """Return an output by its name."""
        if name in self:
            return self[name]
        raise AttributeError(name)


class OneOutput(Outputs):
    """The only output of a module, under whatever key, attribute or place the loss takes it from.

    The program calls it `output`: how the module returned it, in a dict, a tuple or an object, is not kept.
    """

    def __missing__(self, key: Any) -> Any:
        """Return the output by a key, or by its place."""
        if isinstance(key, str) or (isinstance(key, int) and key in (0, -1)):
            return next(iter(self.values()))
        raise KeyError(key)

    def __getattr__(self, name: str) -> Any:
        """Return the output by a name that no tensor has."""
        output = next(iter(self.values()))
        if name.startswith("_") or hasattr(output, name):
            raise AttributeError(name)
        return output

    def __iter__(self) -> Iterator[Any]:
        """Yield the output, as a tuple of one does."""
        return iter(self.values())


@dataclass(frozen=True)
class Convention:
    """One way to call a loss.

    Attributes:
        call: in words, `loss(outputs, y)`.
        outputs: names of the outputs, in the order of the module.
        targets: types of the targets by name, in the order in which a session takes them.
        together: whether outputs and targets are an argument each, else every tensor is one.
        in_tree: whether the only output, which the program has as a tensor, is handed over as a dict or tuple has it.
    """

    call: str
    outputs: Sequence[str]
    targets: Mapping[str, TensorType]
    together: bool
    in_tree: bool = False

    def arguments(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the arguments of the loss, of the tensors of the outputs followed by those of the targets."""
        if not self.together:
            return list(tensors)
        count = len(self.outputs)
        named = dict(zip(self.outputs, tensors[:count], strict=True))
        outputs = OneOutput(named) if self.in_tree else tree_of(named)
        if not self.targets:
            return [outputs]
        names = [name.removeprefix(f"{TARGET}/") for name in self.targets]
        return [outputs, tree_of(dict(zip(names, tensors[count:], strict=True)))]


def conventions(loss: Any, outputs: Mapping[str, TensorType], targets: Any) -> list[Convention]:
    """Return the ways in which an own loss may be called, by the number of its arguments, in the order of trying.

    The only output of a module is handed over in a dict or tuple first: a loss that takes it out of one (`outputs[0]`)
    would take the first row of a tensor, and one that computes with a tensor cannot with these.

    Args:
        loss: a function, or a module with a `forward` of its own.
        outputs: types of the module's outputs by name.
        targets: types of what the user says of y: one, a dict or a tuple; None: nothing.

    Raises:
        UsageError: its signature fits none.
    """
    ways = _fitting(loss, outputs, targets)
    if len(outputs) > 1:
        return ways
    by_outputs = [way for way in ways if way.together or list(way.targets) in ([], [TARGET])]
    return [*(replace(way, together=True, in_tree=True) for way in by_outputs), *ways]


def _fitting(loss: Any, outputs: Mapping[str, TensorType], targets: Any) -> list[Convention]:
    """Return the ways that have as many arguments as a loss; see `conventions`."""
    names, first = list(outputs), next(iter(outputs.values()))
    like_outputs = {f"{TARGET}/{name}": type for name, type in outputs.items()} if len(names) > 1 else {TARGET: first}
    flat: list[dict[str, TensorType]] = [{TARGET: first}, {}]
    joint = [like_outputs, *flat]
    if targets is not None:
        flat = joint = [named_targets(targets, names)]
    found = [
        *(Convention(_flat_call(names, y), names, y, False) for y in flat),
        *(Convention("loss(outputs, y)" if y else "loss(outputs)", names, y, True) for y in joint),
    ]
    if len(names) == 1 and list(found[0].targets) in ([], [TARGET]):
        found = [way for way in found if not way.together]  # both are the same
    counts = [_count(way) for way in found]
    least, most, has_rest = _arity(loss)
    if has_rest:
        return [way for way, count in zip(found, counts, strict=True) if count >= least][:1]
    fitting = [way for way, count in zip(found, counts, strict=True) if count == least]
    fitting = fitting or [way for way, count in zip(found, counts, strict=True) if least <= count <= most]
    if fitting:
        return fitting
    listed = " or ".join(dict.fromkeys(way.call for way in found))
    raise UsageError(
        f"the loss {name_of(loss)} takes {least if least == most else f'{least} to {most}'} arguments. It is called as "
        f"{listed}: outputs as the module returns them ({', '.join(names)}), y as y= describes it",
        page="losses",
    )


def named_targets(targets: Any, outputs: Sequence[str]) -> dict[str, TensorType]:
    """Return types of targets by the names that they have in a program.

    In the order in which they are described; those of the outputs' names in the order of these.
    """
    if isinstance(targets, tuple):
        targets = {str(i): kind for i, kind in enumerate(targets)}
    if not isinstance(targets, Mapping):
        return {TARGET: targets}
    order = outputs if set(targets) == set(outputs) else targets
    return {f"{TARGET}/{name}": targets[name] for name in order}


def tree_of(named: Mapping[str, Any]) -> Any:
    """Return values by path as what the paths say: the only one, tuples of those with numbers, else `Outputs`."""
    if list(named) in (["output"], [TARGET]):
        return next(iter(named.values()))
    if list(named) == [f"output_{i}" for i in range(len(named))]:
        return tuple(named.values())
    parts: dict[str, dict[str, Any]] = {}
    for path, value in named.items():
        first, _, rest = path.partition("/")
        parts.setdefault(first, {})[rest] = value
    made = {name: part[""] if list(part) == [""] else tree_of(part) for name, part in parts.items()}
    return tuple(made.values()) if list(made) == [str(i) for i in range(len(made))] else Outputs(made)


def name_of(loss: Any) -> str:
    """Return what a loss is called in messages."""
    name = getattr(loss, "__name__", type(loss).__name__)
    return "loss" if name == "<lambda>" else str(name)


def _flat_call(outputs: Sequence[str], targets: Mapping[str, TensorType]) -> str:
    """The call in which each tensor is an argument."""
    if len(outputs) == 1:
        return f"loss(output{', y' if targets else ''})"
    several = ", ".join(name.replace("/", "_") for name in (*outputs, *targets))
    return f"loss({several})"


def _count(way: Convention) -> int:
    """How many arguments a loss is called with."""
    return 1 + bool(way.targets) if way.together else len(way.outputs) + len(way.targets)


def _arity(loss: Any) -> tuple[int, int, bool]:
    """How many arguments a loss needs by place, how many it takes, and whether it takes any number."""
    function: Callable[..., Any] = getattr(loss, "forward", loss)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables of C have no signature
        return 0, 0, True
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    has_rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return sum(p.default is p.empty for p in by_place), len(by_place), has_rest
