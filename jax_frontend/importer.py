"""jaxpr -> Graph: walks the equations, calls the import rule of each, inlines nested calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from converter.ir import Builder, Origin, TensorType, Value, dependents
from converter.ir.folding import squeezed
from converter.ir.op import ShapeError
from converter.support.errors import NotImportable
from jax_frontend.dtypes import HALVES, ir_type, is_bits, narrow
from jax_frontend.integers import as_typed, by_order, counts_bits
from jax_frontend.keys import draws, on_words
from jax_frontend.origins import NOWHERE, Site, site
from jax_frontend.registry import Equation, ImportRule
from jax_frontend.unsupported import GROUPS, RANDOM, Problems


class Importer:
    """Imports jaxprs into one builder; sites that cannot be imported are collected in `problems`."""

    def __init__(
        self, builder: Builder, rules: Mapping[str, ImportRule], problems: Problems, is_primal: bool = False
    ) -> None:
        self.b = builder
        self.problems = problems
        self._rules = rules
        self._is_primal = is_primal  # what is imported is never differentiated
        self._unknown: set[Value] = set()  # stand-ins for results of equations that could not be imported

    def run(self, closed: ClosedJaxpr, arguments: Sequence[Value], caller: Site = NOWHERE) -> list[Value]:
        """Imports a jaxpr with its inputs bound to `arguments`; returns its outputs, of the exact types JAX gives."""
        outputs = self._inline(closed, arguments, caller)
        return [full(self.b, v, ir_type(t)) for v, t in zip(outputs, closed.out_avals, strict=True)]

    def _inline(self, closed: Any, arguments: Sequence[Value], caller: Site) -> list[Value]:
        jaxpr = closed.jaxpr
        known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))

        def read(atom: Any) -> Value:
            if isinstance(atom, Literal):
                return self.b.constant(narrow(atom.val))
            if atom not in known:
                known[atom] = self.b.constant(narrow(constants[atom]))
            return known[atom]

        needed = _needed(jaxpr)
        for eqn in jaxpr.eqns:
            if any(v in needed for v in eqn.outvars):
                known |= zip(eqn.outvars, self._equation(eqn, read, site(eqn, caller)), strict=True)
        return [self._result(atom, read, caller) for atom in jaxpr.outvars]

    def _inline_primal(self, closed: Any, arguments: Sequence[Value], caller: Site) -> list[Value]:
        outer, self._is_primal = self._is_primal, True
        try:
            return self._inline(closed, arguments, caller)
        finally:
            self._is_primal = outer

    def _result(self, atom: Any, read: Callable[[Any], Value], caller: Site) -> Value:
        try:
            return read(atom)
        except NotImportable as problem:
            self.problems.add(problem, caller)
            return self._stand_in(atom.aval)

    def _equation(self, eqn: Any, read: Callable[[Any], Value], where: Site) -> Sequence[Value]:
        values: list[Value] = []
        with self.b.at(Origin(where.layer, where.source, self.b.origin.phase)):
            try:
                for atom in eqn.invars:
                    values.append(read(atom))
                return self._apply(eqn, values, where)
            except NotImportable as problem:
                if not self._follows(eqn, values, problem):
                    self.problems.add(problem, where, self._culprit(eqn))
                return [self._stand_in(v.aval) for v in eqn.outvars]

    def _follows(self, eqn: Any, values: list[Value], problem: NotImportable) -> bool:
        """Return whether a problem only follows from one that is reported: a missing known operand, random bits."""
        if problem.what in GROUPS.values() or not self._unknown:
            return False
        known_primitive = eqn.primitive.name in self._rules
        return (known_primitive or any(map(is_bits, eqn.invars))) and not self._reached().isdisjoint(values)

    def _reached(self) -> set[Value]:
        return dependents(self.b.graph, self._unknown)

    def _apply(self, eqn: Any, values: list[Value], where: Site) -> Sequence[Value]:
        name = eqn.primitive.name
        if draws(eqn):
            return self._by_words(eqn, values, where)
        if name not in self._rules:
            return self._computed(eqn, values)
        avals = [a.aval for a in eqn.invars]
        if name == "convert_element_type" and (half := str(eqn.params["new_dtype"])) in HALVES:
            self.problems.halves.setdefault(where.layer or where.source or "the model", half)
        call = Equation(
            self.b,
            dict(eqn.params),
            tuple(ir_type(a.aval) for a in eqn.invars),
            tuple(ir_type(v.aval) for v in eqn.outvars),
            lambda *arrays: _applied(eqn, arrays),
            lambda closed, arguments: self._inline(closed, arguments, where),
            lambda closed, arguments: self._inline_primal(closed, arguments, where),
            self._is_primal,
            tuple(str(a.dtype) for a in avals),
            lambda builder, problems, is_primal: Importer(builder, self._rules, problems, is_primal),
            where,
            self.problems,
        )
        rule = self._rule_of(eqn, call.unsigned)
        if not rule.broadcasts:
            values = [full(self.b, v, t) for v, t in zip(values, call.inputs, strict=True)]
        if counts_bits(name, avals):
            raise NotImportable(f"{name} of integers of less than 32 bits", "cast them to int32 before")
        values = by_order(self.b, name, avals, values)
        try:
            result = rule.function(call, *values)
        except ShapeError as error:
            raise NotImportable(f"this form of {name} ({error})") from error
        results = [result] if isinstance(result, Value) else list(result)
        results = as_typed(self.b, name, avals, [v.aval for v in eqn.outvars], results)
        for value, type in zip(results, call.outputs, strict=True):
            made = f"rule of {name}: made {value.type} for {type}"
            assert value.dtype == type.dtype, made
            assert np.broadcast_shapes(value.shape, type.shape) == type.shape, made
        return results

    def _rule_of(self, eqn: Any, unsigned: bool) -> ImportRule:
        """The rule of a primitive, of its form for unsigned integers, or of a function of JAX marked by its name."""
        name = eqn.primitive.name
        special = f"unsigned {name}" if unsigned else f"jit {str(eqn.params.get('name', '')).partition(' ')[0]}"
        return self._rules.get(special, self._rules[name])

    def _computed(self, eqn: Any, values: list[Value]) -> list[Value]:
        """Return what has no rule but is known while the program is built, as JAX computes it."""
        name, arrays = eqn.primitive.name, [self.b.graph.constants.get(v) for v in values]
        if name in GROUPS or eqn.effects or not all(a is not None for a in arrays):
            raise NotImportable(GROUPS.get(name, name))
        types = [v.aval for v in eqn.invars]
        given = [np.broadcast_to(a, t.shape).astype(t.dtype) for a, t in zip(arrays, types, strict=True)]  # type: ignore[arg-type]
        return [self.b.constant(narrow(array)) for array in _applied(eqn, given)]

    def _by_words(self, eqn: Any, values: list[Value], where: Site) -> list[Value]:
        """Return what is done with keys, as JAX does it with the words that they are."""
        constants = self.b.graph.constants
        if eqn.primitive.name == "random_bits" and values[0] in constants and self.problems.refuses_known_keys:
            raise NotImportable(RANDOM)
        function, types = on_words(eqn)
        values = [full(self.b, v, ir_type(t)) for v, t in zip(values, types, strict=True)]
        made = self._inline_primal(jax.make_jaxpr(function)(*types), values, where)
        return [full(self.b, v, ir_type(o.aval)) for v, o in zip(made, eqn.outvars, strict=True)]

    def _culprit(self, eqn: Any) -> str:
        """Return the primitive of an equation; of a call the first one inside that has no rule."""
        inner = eqn.params.get("jaxpr")
        names = map(self._culprit, getattr(getattr(inner, "jaxpr", inner), "eqns", ()))
        return next((name for name in names if name not in self._rules), eqn.primitive.name)

    def _stand_in(self, aval: Any) -> Value:
        try:
            type = ir_type(aval)
        except NotImportable:
            type = TensorType(tuple(getattr(aval, "shape", ())))
        value = Value(type, "unknown")
        self.give_up(value)
        return value

    def give_up(self, value: Value) -> None:
        """Takes a value for unknown: what goes wrong because of it is not reported again."""
        self._unknown.add(value)


def _applied(eqn: Any, arrays: Sequence[Any]) -> list[Any]:
    """Return an equation on other arrays than its own."""
    made = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(eqn.params))
    return list(made) if eqn.primitive.multiple_results else [made]


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
