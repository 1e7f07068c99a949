"""The table of import rules: one function per jaxpr primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.ir import Builder, TensorType, Value

if TYPE_CHECKING:
    from jax_frontend.origins import Site
    from jax_frontend.unsupported import Problems

#: What a rule returns: the output, or the outputs in order.
Result = Value | Sequence[Value]


#: Names in the report for what many primitives and element types come from.
COMPLEX, RANDOM = "complex numbers, as in fft", "random numbers"


class NotImportable(Exception):
    """A site that has no import rule, or that the rule cannot express. Collected, reported all at once.

    Args:
        what: the primitive or the form of it, as the report calls it.
        advice: what the person can do; empty to use the hint table.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.advice = advice


@dataclass(frozen=True)
class Call:
    """One equation of a jaxpr, as its rule sees it.

    Attributes:
        b: builder of the graph being made, with the origin of this equation.
        params: the equation's parameters.
        inputs: types of the operands as JAX has them; a Value may be smaller, see `rule`.
        outputs: types of the results.
        apply: the equation itself, of JAX arrays, `apply(*arrays) -> outputs`.
        inline: imports a closed jaxpr in place, `inline(jaxpr, values) -> outputs`.
        inline_primal: the same for a jaxpr that is never differentiated: its derivative is known otherwise.
        is_primal: the equation stands in such a jaxpr.
        dtypes: names of the operands' element types in JAX, which may be narrower than those of `inputs`.
        site: where the equation stands.
        problems: collects what cannot be imported.
    """

    b: Builder
    params: dict[str, Any]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    apply: Callable[..., list[Any]]
    inline: Callable[[Any, Sequence[Value]], list[Value]]
    inline_primal: Callable[[Any, Sequence[Value]], list[Value]]
    is_primal: bool
    dtypes: tuple[str, ...]
    site: Site
    problems: Problems

    @property
    def unsigned(self) -> bool:
        """Whether operands are uint32, whose numbers from 2^31 on are negative here."""
        return "uint32" in self.dtypes

    @property
    def output(self) -> TensorType:
        """Type of the only result."""
        (type,) = self.outputs
        return type

    def constant(self, value: Value) -> np.ndarray | None:
        """What the value holds where that is known at compile time."""
        return self.b.graph.constants.get(value)

    def known(self, value: Value, what: str, advice: str = "") -> np.ndarray:
        """Like `constant`; raises NotImportable(what) where the value is computed at run time."""
        array = self.constant(value)
        if array is None:
            raise NotImportable(what, advice)
        return array


@dataclass(frozen=True)
class Rule:
    """An import rule. `broadcasts`: it takes operands that are still to be repeated to the type JAX gives them."""

    function: Callable[..., Result]
    broadcasts: bool


RULES: dict[str, Rule] = {}


def rule(*primitives: str, broadcasts: bool = False) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Registers an import rule `function(call, *values)` for the named primitives.

    JAX spells every broadcast out; the IR's elementwise ops broadcast as NumPy does. So a Value may stand for a
    larger tensor that it broadcasts to. A rule with `broadcasts=True` accepts that (and may return such a value);
    for all others the operands are repeated first.

    Raises:
        ValueError: a primitive has a rule already.
    """

    def register(function: Callable[..., Result]) -> Callable[..., Result]:
        for name in primitives:
            if name in RULES:
                raise ValueError(f"two import rules for the primitive {name!r}")
            RULES[name] = Rule(function, broadcasts)
        return function

    return register
