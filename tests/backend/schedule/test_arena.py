"""The predicted arena against the interpreter's, and what the order of execution does to it."""

import pytest

import converter
from converter.backend.lowering.state import with_variables
from converter.backend.schedule import check_no_overlap, plan, schedule
from converter.backend.stages import to_builtins
from converter.backend.targets import target
from converter.driver.features.optimizer import with_optimizer
from converter.driver.models import import_model
from converter.ir import Graph, Node
from converter.passes import absorb_layout
from converter.passes.canonical import canonicalize
from converter.training.losses import named_loss
from converter.training.optim.named import resolve
from converter.training.schemes import update_scheme
from converter.training.step import whole_step
from tests.backend.schedule.arena import interpreter_arena
from tests.models.zoo import CASES

MODELS = ["lenet", "mobilenetv2-0.35", "flax-cnn", "encoder"]


@pytest.mark.parametrize(
    ("name", "update"),
    [
        pytest.param(name, update, marks=[pytest.mark.slow] if (name, update) == ("mobilenetv2-0.35", "full") else [])
        for name in MODELS
        for update in ("full", "sparse", "head")
    ],
)
def test_predicted_arena_is_the_interpreters(name: str, update: str) -> None:
    case = CASES[name]
    program = converter.build(case.model(), update=case.update(update), batch=8, check=False)
    assert arena(program.signatures["train"]) == pytest.approx(interpreter_arena(program.data), rel=0.05)


def in_program_order(name: str, update: str, optimizer: str) -> Graph:
    """A lowered training step as differentiation left it: all updates at the end."""
    case = CASES[name]
    forward = canonicalize(import_model(case.model(), 8).graph)
    rows = update_scheme(case.update(update)).resolve(absorb_layout(forward))
    selected, rule = with_optimizer(forward, rows, resolve(optimizer), target("litert-2"))
    step = whole_step(selected, named_loss("sparse_categorical_crossentropy"), rule)
    return to_builtins(step, target("litert-2"))


def arena(graph: Graph) -> int:
    return plan(with_variables(graph)).size


def stays(node: Node) -> bool:
    """As if there were no delegate."""
    return True


@pytest.mark.parametrize(("name", "optimizer"), [("lenet", "adamw"), ("encoder", "adamw"), ("mlp", "sgd")])
def test_scheduling_lowers_the_arena(name: str, optimizer: str) -> None:
    before = in_program_order(name, "full", optimizer)
    after = schedule(before, arena, stays)
    assert sorted(map(id, before.nodes)) == sorted(map(id, after.nodes))
    assert arena(after) < arena(before)


@pytest.mark.parametrize("name", MODELS)
def test_no_two_live_tensors_overlap(name: str) -> None:
    step = with_variables(schedule(in_program_order(name, "sparse", "sgd"), arena, stays))
    check_no_overlap(plan(step))


def test_each_update_runs_right_after_its_gradient() -> None:
    """Where updates are what the arena holds: a deep stack of wide layers on a small batch."""
    step = schedule(in_program_order("mlp", "full", "sgd"), arena, stays)
    phases = [n.origin.phase for n in step.nodes]
    first_update, last_gradient = phases.index("update"), len(phases) - 1 - phases[::-1].index("backward")
    assert first_update < last_gradient
