"""jaxpr -> Graph: walks the equations, calls the import rule of each, inlines nested calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from converter.ir import Builder, Origin, TensorType, Value, dependents
from jax_frontend.dtypes import ir_type, narrow
from jax_frontend.folding import squeezed
from jax_frontend.origins import Site, site
from jax_frontend.registry import RULES, Call, NotImportable
from jax_frontend.unsupported import Problems


class Importer:
    """Imports jaxprs into one builder; sites that cannot be imported are collected in `problems`."""

    def __init__(self, builder: Builder, problems: Problems | None = None) -> None:
        self.b = builder
        self.problems = problems if problems is not None else Problems()
        self._unknown: set[Value] = set()  # stand-ins for results of equations that could not be imported

    def run(self, closed: ClosedJaxpr, arguments: Sequence[Value], caller: Site = Site()) -> list[Value]:
        """Imports a jaxpr with its inputs bound to `arguments`; returns its outputs, of the exact types JAX gives."""
        outputs = self._inline(closed, arguments, caller)
        return [full(self.b, v, ir_type(t)) for v, t in zip(outputs, closed.out_avals, strict=True)]

    def _inline(self, closed: Any, arguments: Sequence[Value], caller: Site) -> list[Value]:
        jaxpr, constants = closed.jaxpr, closed.consts
        known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        for variable, array in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = self._constant(array, caller, variable.aval)

        def read(atom: Any) -> Value:
            if isinstance(atom, Literal):
                return self._constant(atom.val, caller, atom.aval)
            return known[atom]

        needed = _needed(jaxpr)
        for eqn in jaxpr.eqns:
            if not any(v in needed for v in eqn.outvars):
                continue
            results = self._equation(eqn, [read(a) for a in eqn.invars], site(eqn, caller))
            known |= zip(eqn.outvars, results, strict=True)
        return [read(v) for v in jaxpr.outvars]

    def _constant(self, array: Any, where: Site, aval: Any) -> Value:
        try:
            return self.b.constant(narrow(array))
        except NotImportable as problem:
            self.problems.add(problem, where)
            return self._stand_in(aval)

    def _equation(self, eqn: Any, values: list[Value], where: Site) -> Sequence[Value]:
        with self.b.at(Origin(where.layer, where.source, self.b.origin.phase)):
            try:
                return self._apply(eqn, values, where)
            except NotImportable as problem:
                # What follows from an equation already reported would only repeat it.
                if not self._unknown or not set(values) & dependents(self.b.graph, self._unknown):
                    self.problems.add(problem, where)
                return [self._stand_in(v.aval) for v in eqn.outvars]

    def _apply(self, eqn: Any, values: list[Value], where: Site) -> Sequence[Value]:
        name = eqn.primitive.name
        if name not in RULES:
            raise NotImportable(name)
        call = Call(
            self.b,
            dict(eqn.params),
            tuple(ir_type(a.aval) for a in eqn.invars),
            tuple(ir_type(v.aval) for v in eqn.outvars),
            lambda closed, arguments: self._inline(closed, arguments, where),
            where,
            self.problems,
        )
        if not RULES[name].broadcasts:
            values = [full(self.b, v, t) for v, t in zip(values, call.inputs, strict=True)]
        result = RULES[name].function(call, *values)
        results = [result] if isinstance(result, Value) else list(result)
        for value, type in zip(results, call.outputs, strict=True):
            fits = np.broadcast_shapes(value.shape, type.shape) == type.shape
            assert fits and value.dtype == type.dtype, f"rule of {name}: made {value.type} for {type}"
        return results

    def _stand_in(self, aval: Any) -> Value:
        try:
            type = ir_type(aval)
        except NotImportable:
            type = TensorType(tuple(getattr(aval, "shape", ())))
        value = Value(type, "unknown")
        self._unknown.add(value)
        return value


def full(b: Builder, value: Value, type: TensorType) -> Value:
    """`value` repeated to the shape of `type`."""
    if value.type.size == type.size:
        return b.reshape(value, type.shape)
    return b.broadcast_to(value, type.shape)


def aligned(b: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    """`value` in a shape of the same elements, or as it is where NumPy broadcasting does not see the difference."""
    same = squeezed(value.shape) == squeezed(shape) and len(value.shape) <= len(shape)
    return value if same else b.reshape(value, shape)


def _needed(jaxpr: Any) -> set[Any]:
    """Variables that the outputs depend on: an equation whose result nobody reads needs no rule."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return needed
