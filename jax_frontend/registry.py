"""Import rules: what one is and is given, one function per jaxpr primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from converter.ir import Builder, TensorType, Value
from converter.support.errors import NotImportable
from converter.support.registry import Registry
from jax_frontend.origins import Site
from jax_frontend.unsupported import Problems, UnsupportedForm

#: What a rule returns: the output, or the outputs in order.
Result = Value | Sequence[Value]


class GraphImporter(Protocol):
    """Imports jaxprs into one builder."""

    def run(self, closed: Any, arguments: Sequence[Value], caller: Site) -> list[Value]:
        """Import a jaxpr with its inputs bound to `arguments`; return its outputs."""


@dataclass(frozen=True)
class Equation:
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
        importer: makes one for a graph of its own, `importer(builder, problems, is_primal)`.
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
    importer: Callable[[Builder, Problems, bool], GraphImporter]
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
        """Return what the value holds where that is known at compile time."""
        return self.b.graph.constants.get(value)

    def known(self, value: Value, what: str, advice: str = "") -> np.ndarray:
        """Like `constant`; raises NotImportable(what) where the value is computed at run time."""
        array = self.constant(value)
        if array is None:
            raise NotImportable(what, advice)
        return array


@dataclass(frozen=True)
class ImportRule:
    """An import rule.

    Attributes:
        function: `function(call, *values)`.
        broadcasts: it takes operands that are still to be repeated to the type JAX gives them.
        refuses: forms of its primitive that it does not import.
    """

    function: Callable[..., Result]
    broadcasts: bool = False
    refuses: tuple[UnsupportedForm, ...] = ()


class ImportRules(Registry[str, ImportRule]):
    """The import rules of one subject; its call is a decorator: `@rule("dot_general")`."""

    def __call__(
        self, *primitives: str, broadcasts: bool = False, refuses: Sequence[UnsupportedForm] = ()
    ) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
        """Add the decorated function, `function(call, *values)`, for the named primitives.

        JAX spells every broadcast out; the IR's elementwise ops broadcast as NumPy does. So a Value may stand for a
        larger tensor that it broadcasts to. A rule with `broadcasts=True` accepts that (and may return such a value);
        for all others the operands are repeated first.

        A key `jit NAME` is of what `jax.jit` made of a function whose name begins with that word.

        Raises:
            ValueError: a primitive has a rule already.
        """

        def register(function: Callable[..., Result]) -> Callable[..., Result]:
            for name in primitives:
                self.add(name, ImportRule(function, broadcasts, tuple(refuses)))
            return function

        return register
