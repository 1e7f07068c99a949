"""A module -> Graph: exported for a batch, computed with JAX under its own names, and traced by that front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

import jax_frontend
from converter.frontends.imported import Imported
from converter.frontends.torch.exporting import ASSIGNED, READS, lowered
from converter.frontends.torch.findings import Findings
from converter.frontends.torch.interpreter import RULES, Interpreter
from converter.frontends.torch.model import Model
from converter.frontends.torch.program import ASSIGNS, State, chosen, counted, user_inputs, user_outputs
from converter.frontends.torch.tensors import type_of
from converter.frontends.torch.writes import check_writes
from converter.passes.idioms import with_idioms
from converter.support.errors import NotImportable, UnsupportedError
from converter.support.notes import Note, half_notes
from jax_frontend.origins import Site
from jax_frontend.unsupported import Problems


def import_torch(model: Model, batch: int) -> Imported:
    """Return the forward graph of a module for a number of rows.

    Parameters and the statistics of batch normalization have the names of `state_dict()` and PyTorch's layout.

    Raises:
        UsageError: it cannot be exported, or has no such output.
        UnsupportedError: it holds what cannot be compiled; all places are listed.
        NumericError: a weight is not finite.
    """
    exported, problems = model.exported(batch), Problems()
    check_writes(exported, problems)
    problems.check()
    program = lowered(exported, list(RULES))
    findings = Findings(counted=counted(program), modes=model.modes())
    interpreter = Interpreter(program, findings)
    state = State(program, model.weights)
    inputs = user_inputs(program)

    def apply(params: Mapping[str, Any], *arrays: Any) -> Any:
        given = {**state.known, **{node.name: array for node, array in zip(inputs, arrays, strict=True)}}
        given |= {place: params[name] for place, name in state.places.items()}
        return chosen(user_outputs(program, interpreter.run(given)), model.outputs, model.name)

    specs = [jax.ShapeDtypeStruct(tuple(n.meta["val"].shape), type_of(n.meta["val"].dtype)) for n in inputs]
    source = jax_frontend.Model(apply, state.parameters, specs, frozen=state.frozen, name=model.name)
    found = jax_frontend.Findings()
    try:
        graph = jax_frontend.trace(source, batch, found)
    except UnsupportedError as error:
        for site in error.sites:
            where = Site(site.layer, site.source)
            interpreter.problems.add(NotImportable(site.reason, site.advice), where, site.primitive)
        interpreter.problems.check()
        raise
    interpreter.problems.check()
    own = [node.name for node in inputs]
    if len(graph.inputs) > 1:
        for value, name in zip(graph.inputs, own, strict=True):
            value.name = name
    else:
        found.inputs.update((value.name, name) for value, name in zip(graph.inputs, own, strict=True))
    kept = [Note(name, "left out", ASSIGNS) for name in exported.graph_module.meta.get(ASSIGNED, ())]
    left_out = [*model.training_notes(), *exported.graph_module.meta.get(READS, ())]
    notes = [*findings.notes, *left_out, *state.notes, *kept, *half_notes(found.halves)]
    return Imported(with_idioms(graph), notes, list(findings.batch_norms.values()), found.interface)
