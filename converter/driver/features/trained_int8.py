"""`train_as="int8"`: trained weights and their state in int8, by quantization-aware scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from converter.backend.stages import to_builtins
from converter.driver.compilation import Compilation
from converter.ir import Graph, Parameter, TensorType, Value
from converter.ir.module import Module
from converter.program.manifest import rows_to_infer
from converter.support.errors import UsageError
from converter.support.notes import Note
from converter.training.int8_state import SCALES, UPDATES, in_integers, with_integers
from converter.training.schemes import Plain, join

#: What makes this a word of a build.
_INT8 = "train_as='int8'"


def choose(c: Compilation) -> Compilation:
    """Say which of the trained weights are stored in int8.

    Raises:
        UsageError: the optimizer keeps slots of such a weight, it has an adapter, there is none, or a parameter has the
            name of what is kept beside it.
    """
    if c.options.train_as != "int8":
        return c
    if c.adapters:
        raise UsageError(
            f"{_INT8} is for weights of the model, and {c.adapters[0].weight} has an adapter, which begins at zero and "
            "has no range: leave one of the two out",
            page="arguments",
        )
    made, others = in_integers(c.graphs.model)
    if not made:
        raise UsageError(f"{_INT8} changes nothing: of what trains no weight is a matrix or filter", page="arguments")
    for slot, array in c.rule.slots.items():
        owner = max((name for name in c.rule.parameters if slot.endswith(f"/{name}")), key=len, default="")
        if owner in made and array.size > 1:
            raise UsageError(
                f"{_INT8}: the optimizer keeps slots for each number of a weight ({slot}), in float32, so "
                "the state would not be a quarter: use one without, optimizer='sgd' (--optimizer sgd), and no proximal",
                page="arguments",
            )
    names = set(c.graphs.model.parameter_names())
    if twice := next((name for name in (UPDATES, *(weight + SCALES for weight in made)) if name in names), None):
        raise UsageError(
            f"{_INT8} keeps numbers of its own under the name {twice!r}, which a parameter of the model has: rename it",
            page="arguments",
        )
    held = f"{len(made)} in int8 with a scale for each output channel, rounded at random by how near each is"
    kept = f"; in float32: {', '.join(dict.fromkeys(others.values()))} ({len(others)})" if others else ""
    return replace(c, integers=made, notes=[*c.notes, Note("trained weights", "int8", held + kept)])


def store(c: Compilation) -> Compilation:
    """Store them so in every signature; the model that is exported has the numbers that they stand for."""
    if not c.integers:
        return c
    plain = None
    if "infer" in c.program and c.source.file is None:
        alone = [] if c.request.rows_to_infer else [name for name in c.program if rows_to_infer(name)]
        graph = to_builtins(c.program[(*alone, "infer")[0]], c.once)
        plain = Plain(graph if c.graphs.prefix is None else join(c.graphs.prefix, graph), {})
        c = replace(c, program=Module({name: graph for name, graph in c.program.items() if name not in alone}))
    return replace(c, program=Module(stored(c, c.program)), plain=plain)


def stored(c: Compilation, graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """Return signatures with their weights as this program stores them."""
    if not c.integers:
        return dict(graphs)
    counter = Value(TensorType((1,)), UPDATES), Parameter(UPDATES, np.zeros(1, np.float32), kind="slot")
    return {name: with_integers(graph, c.integers, counter) for name, graph in graphs.items()}
