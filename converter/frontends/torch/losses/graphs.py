"""Graphs of losses: a loss of PyTorch, exported for outputs and targets and computed with JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import torch

from converter.frontends.torch.exporting import lowered, quiet
from converter.frontends.torch.findings import Findings
from converter.frontends.torch.guards import guarded
from converter.frontends.torch.interpreter import RULES, Interpreter
from converter.frontends.torch.losses.calling import Convention, conventions, name_of
from converter.frontends.torch.program import user_inputs, user_outputs
from converter.frontends.torch.writes import check_writes
from converter.ir import Builder, Graph, TensorType, Value
from converter.passes.idioms import with_idioms
from converter.support.errors import UnsupportedError, UsageError
from converter.training.losses import Loss
from jax_frontend import trace_function
from jax_frontend.unsupported import Problems

_ADVICE = (
    "Write it as a function of tensors that gives the loss of each row: loss(outputs, y), outputs as the module "
    "returns them and y as y= describes it, or one argument for each of these tensors. Without y= the targets are like "
    "the outputs: labels are y=jax.ShapeDtypeStruct((1,), 'int32'), several targets a dict of such"
)


def own_loss(loss: Any, outputs: Mapping[str, TensorType], targets: Any) -> Loss:
    """Return a loss by the user's own code, which is called as its signature says.

    Args:
        loss: a function or module that gives a number for each row.
        outputs: types of the module's outputs by name.
        targets: types of what the user says of y: one, a dict or a tuple; None: nothing.

    Raises:
        UsageError: its signature fits no convention, or two, it cannot be traced, or gives no number for each row.
    """
    made, errors = list[tuple[Convention, Loss]](), list[tuple[Convention, Exception]]()
    for way in conventions(loss, outputs, targets):
        if made and (len(outputs) == 1 or made[-1][0].together == way.together):
            continue
        try:
            made.append((way, traced_loss(loss, name_of(loss), outputs, way)))
        except (UsageError, UnsupportedError) as error:
            errors.append((way, error))
    if not made:
        ran = [error for _, error in errors if error.__cause__ is None]
        raise (ran or [error for way, error in errors if not way.in_tree])[0]
    if len(made) > 1:
        calls = " and as ".join(way.call for way, _ in made)
        raise UsageError(
            f"the loss {name_of(loss)} can be called as {calls}: say which by y=, the type of the targets "
            "(jax.ShapeDtypeStruct((1, 3), 'float32')), () for none",
            page="losses",
        )
    return made[0][1]


def traced_loss(
    loss: Callable[..., Any],
    name: str,
    outputs: Mapping[str, TensorType],
    way: Convention,
    summed: tuple[int, ...] = (),
) -> Loss:
    """Return a loss by its own code, of each row or of a row and place.

    Args:
        loss: is called with tensors of the outputs and of the targets, as `way` says.
        name: what it is called.
        outputs: types of the outputs by name.
        way: how it is called, and the targets.
        summed: axes of its result that it adds up.

    Raises:
        UsageError: it cannot be traced, or gives no number for each row.
        UnsupportedError: it uses what cannot be compiled.
    """
    if not next(iter(outputs.values())).shape:
        raise UsageError(
            f"the loss {name} is given one number, which the module makes of all rows: let it return one for each, "
            "shape [batch], as losses with reduction='none' do; a step takes their mean",
            page="losses",
        )
    graph = _graph_of(loss, name, [*outputs.values(), *way.targets.values()], way, summed)
    results, rows = list(graph.outputs.values()), next(iter(outputs.values())).shape[:1]
    if len(results) != 1 or results[0].shape[:1] != rows:
        returned = f"{len(results)} tensors" if len(results) != 1 else str(list(results[0].shape))
        raise UsageError(
            f"the loss {name} must return one number for each row, shape [batch]; it returns {returned}. "
            "Leave out the mean over the rows (reduction='none'), which the step takes",
            page="losses",
        )

    def emit(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        (made,) = b.inline(graph, [*outputs, *targets]).values()
        return made

    return Loss(name, lambda outputs: dict(way.targets), emit)


def _graph_of(
    loss: Callable[..., Any], name: str, types: Sequence[TensorType], way: Convention, summed: tuple[int, ...]
) -> Graph:
    class Called(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return loss(*way.arguments(tensors))

    def sample(type: TensorType) -> torch.Tensor:
        return torch.zeros(type.shape, dtype=torch.int64 if type.dtype.kind == "i" else torch.float32)

    try:
        with quiet(), guarded() as guard:
            exported = torch.export.export(Called(), tuple(map(sample, types)), strict=False)
        guard.check()
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        call = "" if way.call in ("", "loss(output, y)") else f", called as {way.call}"
        raise UsageError(f"the loss {name}{call} cannot be traced: {said}. {_ADVICE}", page="losses") from error
    problems = Problems()
    check_writes(exported, problems)
    problems.check()
    program = lowered(exported, list(RULES))
    interpreter = Interpreter(program, Findings())
    signature = program.graph_signature
    held = {**program.constants, **program.state_dict}
    places = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    known = {place: held[target].detach() for place, target in places.items()}
    known |= {p: program.constants[t] for p, t in signature.inputs_to_lifted_tensor_constants.items()}
    inputs = user_inputs(program)

    def function(*arrays: Any) -> Any:
        made = interpreter.run({**known, **{n.name: a for n, a in zip(inputs, arrays, strict=True)}})
        result = user_outputs(program, made)
        return jnp.sum(result, summed) if summed else result

    graph = trace_function(function, list(types))
    interpreter.problems.check()
    return with_idioms(graph)
