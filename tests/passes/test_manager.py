"""The pass manager: the order of a pipeline, what is watched of it, and what a wrong pass meets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

import pocketune
from converter.driver.pipeline import PIPELINE
from converter.ir import Builder, Graph, Node, Parameter, TensorType, Value, VerifyError, View, ops
from converter.ir.module import Module, verify_module
from converter.passes.manager import Pass, PipelineError, Watch, in_order_of_need, run, watched
from tests.models.zoo import CASES


@dataclass(frozen=True)
class Stage:
    """A state of one module."""

    module: Module

    @property
    def modules(self) -> dict[str, Module]:
        return {"program": self.module}


def graph(scale: float = 1.0) -> Graph:
    b = Builder()
    b.graph.outputs["y"] = b(ops.Mul(), b.input("x", TensorType((2,))), scale)
    return b.graph


def test_passes_stand_behind_what_they_need() -> None:
    assert in_order_of_need(*PIPELINE) == PIPELINE
    needed = {what for one in PIPELINE for what in one.requires}
    for what in needed:
        ensuring = next(i for i, one in enumerate(PIPELINE) if what in one.ensures)
        first = next(i for i, one in enumerate(PIPELINE) if what in one.requires)
        passes = [*PIPELINE]
        passes.insert(first, passes.pop(ensuring)) if ensuring > first else passes.insert(ensuring, passes.pop(first))
        with pytest.raises(PipelineError, match=r"needs .*which no pass before it ensures"):
            in_order_of_need(*passes)


def test_two_passes_of_one_name_are_refused() -> None:
    one = Pass[Stage]("fold", lambda state: state)
    with pytest.raises(PipelineError, match="two passes are called 'fold'"):
        in_order_of_need(one, one)


def test_each_pass_says_why_it_stands_there() -> None:
    assert all(one.why for one in PIPELINE)
    assert len({one.name for one in PIPELINE}) == len(PIPELINE)


def test_a_malformed_graph_is_found_behind_the_pass_that_made_it() -> None:
    def broken(state: Stage) -> Stage:
        after = graph()
        after.nodes.reverse()
        missing = Value(TensorType((2,)), "nowhere")
        after.nodes.append(Node(ops.Neg(), (missing,), (Value(TensorType((2,)), "z"),), after.nodes[0].origin))
        return replace(state, module=Module({"train": after}))

    passes = Pass[Stage]("harmless", lambda state: state), Pass[Stage]("broken", broken)
    with watched(Watch()):
        assert len(run(passes, Stage(Module({"train": graph()}))).module) == 1, "unchecked it goes through"
    with watched(Watch(verifies=True)), pytest.raises(VerifyError, match="after broken, in train"):
        run(passes, Stage(Module({"train": graph()})))


def test_graphs_store_what_they_share_alike() -> None:
    def storing(view: View) -> Graph:
        made = graph()
        made.parameters[Value(TensorType((2, 2)), "w")] = Parameter("w", np.zeros((2, 2), np.float32), view=view)
        return made

    alike = Module({"train": storing(View()), "infer": storing(View())})
    verify_module(alike, "any")
    assert [*alike.parameters()] == ["w"]
    transposed = Parameter("w", np.zeros((2, 2), np.float32)).viewed(("transpose", (1, 0))).view
    with pytest.raises(VerifyError, match="w is stored otherwise in train than in infer"):
        verify_module(alike.including(infer=storing(transposed)), "any")


def test_what_is_watched_is_there() -> None:
    with watched(Watch(dumps="select")) as watch:
        program = pocketune.build(CASES["mlp"].model(), batch=2, update="head", check=False)
    assert [*watch.seconds] == [one.name for one in PIPELINE]
    assert "parameter" in watch.dumped["model: forward"]
    assert program.manifest.batch == 2
    text = watch.dumped["model: forward"]
    with watched(Watch(dumps="schedule")) as watch:
        pocketune.build(CASES["mlp"].model(), batch=2, update="head", check=False)
    assert {"program: train", "program: infer"} <= watch.dumped.keys()
    assert watch.dumped["program: train"] != text


def test_a_module_does_not_change() -> None:
    module = Module({"train": graph()})
    more = module.including(infer=graph(2.0))
    assert ([*module], [*more]) == (["train"], ["train", "infer"])
    assert [*more.mapped(lambda name, _: graph(len(name)))] == ["train", "infer"]


def test_every_step_between_passes_of_a_build_is_well_formed() -> None:
    x = jax.ShapeDtypeStruct((1, 4), np.float32)
    model = pocketune.Model(lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"], {"a": np.eye(4), "b": np.eye(4)}, [x])
    with watched(Watch(verifies=True)):
        pocketune.build(
            model, loss="mse", batch=4, micro_batch=2, signatures=("train", "infer", "infer_1"), check=False
        )
