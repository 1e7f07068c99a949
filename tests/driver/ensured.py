"""What each name that passes ensure means, checked on the graphs of a build."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from converter.backend.builtins import Builtin
from converter.driver.compilation import Compilation
from converter.ir import Graph, Value, nested, ops, reachable
from converter.training.dropout import dropouts

_TRAINED = ("weight", "statistic", "choice")


def _names(graph: Graph) -> set[str]:
    return {parameter.name for parameter in graph.parameters.values()}


def _no_dead(graph: Graph) -> None:
    """Each node makes something that an output or an update needs."""
    needed = reachable(graph, [*graph.outputs.values(), *graph.updates.values()])
    dead = [node.op for node in graph.nodes if needed.isdisjoint(node.outputs)]
    assert not dead, f"nothing reads {dead[0]}"


def canonical(c: Compilation) -> None:
    """Nothing is left that constants decide, and nothing that no output needs."""
    _no_dead(c.graphs.model)
    for node in c.graphs.model.nodes:
        decided = node.inputs and all(v in c.graphs.model.constants for v in node.inputs)
        assert not decided, f"constants decide {node.op}"


def layouts(c: Compilation) -> None:
    """Inputs, outputs and parameters are as the model has them."""
    assert c.graphs.forward is c.graphs.model
    before, after = c.source.graph, c.graphs.model
    assert [v.type for v in after.inputs] == [v.type for v in before.inputs]
    assert {n: v.shape for n, v in after.outputs.items()} == {n: v.shape for n, v in before.outputs.items()}
    shapes = {p.name: p.model_value.shape for p in before.parameters.values()}
    assert all(shapes[p.name] == p.model_value.shape for p in after.parameters.values())


def scheme(c: Compilation) -> None:
    """There is a decision on each weight of the model."""
    assert {row.parameter for row in c.resolved} >= {p.name for p in c.graphs.model.weights().values()}


def rows(c: Compilation) -> None:
    """What has an adapter has its tensors in the graph, and a decision on each."""
    decided = {row.parameter: row for row in c.rows}
    adapted = {row.parameter for row in c.resolved if row.adapter is not None}
    assert {adapter.weight for adapter in c.adapters} == adapted
    assert decided.keys() >= {p.name for p in c.graphs.model.weights().values()}


def selected(c: Compilation) -> None:
    """What trains is a parameter, what does not is none, and the optimizer has an update of each that does."""
    trains = {row.parameter for row in c.rows if row.fraction > 0}
    weights = {p.name for p in c.graphs.model.parameters.values() if p.kind == "weight"}
    assert weights == set(c.rule.parameters)
    assert weights <= trains
    assert not [p.name for p in c.graphs.model.parameters.values() if p.kind not in _TRAINED]


def step(c: Compilation) -> None:
    """The step has a signature, and a counter that is no tensor of the model's."""
    assert c.step.signature == c.request.step
    counter, parameter = c.counter
    assert counter not in c.graphs.model.parameters
    assert parameter.name not in {p.name for p in c.source.graph.parameters.values()}


def goal(c: Compilation) -> None:
    """What the loss reads are outputs of the model."""
    for term in c.goal.terms(c.graphs.model):
        assert set(term.reads) <= c.graphs.model.outputs.keys()


def suffix(c: Compilation) -> None:
    """What is behind the prefix reads what that gives and the model's inputs, and all that trains is behind it."""
    assert _names(c.graphs.suffix) == _names(c.graphs.model)
    assert [*c.graphs.suffix.outputs] == [*c.graphs.model.outputs]
    given = {v.name: v.type for v in c.graphs.model.inputs}
    if c.graphs.prefix is not None:
        assert not c.graphs.prefix.parameters
        given |= {name: v.type for name, v in c.graphs.prefix.outputs.items()}
    assert {v.name for v in c.graphs.suffix.inputs} <= given.keys()


def inference(c: Compilation) -> None:
    """Nothing is random, and nothing is done in training alone."""
    assert not dropouts(c.graphs.inference)
    assert not [
        node for graph in nested(c.graphs.inference) for node in graph.nodes if isinstance(node.op, ops.InTraining)
    ]
    assert [*c.graphs.inference.outputs] == [*c.graphs.suffix.outputs]


def scored(c: Compilation) -> None:
    """The loss is an output, the model's own outputs are none."""
    assert "loss" in c.graphs.scored.outputs
    assert c.graphs.scored.outputs.keys().isdisjoint(c.graphs.inference.outputs)
    assert not dropouts(c.graphs.scored)


def signatures(c: Compilation) -> None:
    """The step is the first signature, and all that trains is updated by some signature."""
    assert next(iter(c.program)) == c.request.step
    updated = {g.parameters[v].name for g in c.program.values() for v in g.updates}
    assert updated >= {p.name for p in c.graphs.model.parameters.values() if p.kind == "weight"}
    loss = {"gradients", "train", "accumulate"} & c.program.keys()
    assert all("loss" in c.program[name].outputs for name in loss)


def builtins(c: Compilation) -> None:
    """All operators are the runtime's."""
    for name, graph in c.program.items():
        others = [node.op for inner in nested(graph) for node in inner.nodes if not isinstance(node.op, Builtin)]
        assert not others, f"{others[0]} in {name}"


def scheduled(c: Compilation) -> None:
    """All operators are the runtime's still, each behind what it reads, and none makes what nothing reads."""
    builtins(c)
    for graph in c.program.values():
        known: set[Value] = {*graph.inputs, *graph.constants, *graph.parameters}
        for node in graph.nodes:
            assert known.issuperset(node.inputs)
            known.update(node.outputs)
        _no_dead(graph)


CHECKS: Mapping[str, Callable[[Compilation], None]] = {
    check.__name__: check
    for check in (
        canonical,
        layouts,
        scheme,
        rows,
        selected,
        step,
        goal,
        suffix,
        inference,
        scored,
        signatures,
        builtins,
    )
} | {"scheduled": scheduled}
