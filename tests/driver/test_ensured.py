"""What passes ensure holds on the graphs: behind the pass that ensures it, in front of each that requires it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pocketune
from converter.driver.compilation import Compilation
from converter.driver.pipeline import PIPELINE
from converter.passes.manager import Pass, Watch, in_order_of_need, watched
from tests.driver.ensured import CHECKS
from tests.models.zoo import CASES

#: Builds that take all branches of the passes, by name: a case of the zoo and options.
BUILDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("mlp", {}),
    "head": ("mlp", {"update": "head", "optimizer": "adam"}),
    "in parts": ("mlp", {"micro_batch": 2, "signatures": ("train", "evaluate", "infer", "infer_1")}),
    "split": ("mlp", {"state": "split"}),
    "adapters": ("mlp", {"update": "lora-2"}),
    "channels": ("mlp", {"update": "channels-50", "signatures": ("train", "infer", "fisher")}),
    "picture": ("lenet", {"update": "last-2", "target": "gpu"}),
    "integers": ("lenet", {"update": "head", "frozen": "int8", "calibration": np.ones((4, 28, 28, 1), np.float32)}),
    "attention": ("vit", {"update": "sparse", "blocks": "on"}),
    "int4": ("mlp", {"update": "lora-2", "frozen": "int4"}),
}


def dropping() -> pocketune.Model:
    def apply(params: Any, x: jax.Array) -> jax.Array:
        return pocketune.dropout(jnp.tanh(x @ params["a"]), 0.5) @ params["b"]

    params = {"a": np.eye(4, 6, dtype=np.float32), "b": np.ones((6, 2), np.float32)}
    return pocketune.Model(apply, params, [jax.ShapeDtypeStruct((1, 4), np.float32)])


def test_each_name_has_a_check() -> None:
    assert {name for one in PIPELINE for name in one.ensures} == CHECKS.keys()


@pytest.mark.parametrize("name", BUILDS)
def test_what_is_ensured_holds(name: str) -> None:
    case, options = BUILDS[name]
    with watched(Watch(checks=CHECKS)):
        pocketune.build(CASES[case].model(), **{"batch": 4, "check": False, **options})


def test_what_is_ensured_holds_where_elements_are_dropped() -> None:
    with watched(Watch(checks=CHECKS)):
        pocketune.build(dropping(), loss="mse", batch=4, dropout="train", check=False)


def test_what_is_ensured_holds_with_statistics_of_the_batch() -> None:
    rngs = nnx.Rngs(0)
    net = nnx.Sequential(
        nnx.Linear(6, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs), nnx.relu, nnx.Linear(8, 3, rngs=rngs)
    )
    inputs = [jax.ShapeDtypeStruct((1, 6), np.float32)]
    with watched(Watch(checks=CHECKS)):
        pocketune.build(net, inputs=inputs, batch=4, batch_norm="train", check=False)


def broken(name: str, change: Callable[[Compilation], Compilation]) -> None:
    """Build with a pass that does something wrong behind the one that ensures something."""
    place = next(i for i, one in enumerate(PIPELINE) if name in one.ensures) + 1
    wrong = Pass[Compilation]("wrong", change, "to be found", (), (name,))
    passes = in_order_of_need(*PIPELINE[:place], wrong, *PIPELINE[place:])
    with pytest.MonkeyPatch.context() as patch, watched(Watch(checks=CHECKS)):
        patch.setattr("converter.driver.build.PIPELINE", passes)
        pocketune.build(dropping(), loss="mse", batch=4, dropout="train", check=False)


def _without_parameters(c: Compilation) -> Compilation:
    graph = c.graphs.model.copy()
    graph.constants |= {v: np.asarray(p.model_value) for v, p in graph.parameters.items()}
    graph.parameters = {}
    return c.staged(model=graph)


def _turned(c: Compilation) -> Compilation:
    graph = c.graphs.model.copy()
    graph.outputs = {f"other {name}": value for name, value in graph.outputs.items()}
    return c.staged(model=graph, forward=graph)


#: What a wrong pass does to what is ensured.
WRONG: dict[str, Callable[[Compilation], Compilation]] = {
    "canonical": lambda c: c.staged(model=_with_dead_node(c)),
    "layouts": _turned,
    "scheme": lambda c: replace(c, resolved=c.resolved[1:]),
    "rows": lambda c: replace(c, rows=c.rows[1:]),
    "selected": _without_parameters,
    "step": lambda c: replace(c, step=replace(c.step, signature="gradients")),
    "goal": lambda c: replace(c, goal=pocketune.losses.JointLoss({"nowhere": c.goal})),
    "suffix": lambda c: c.staged(suffix=_without_parameters(c).graphs.model),
    "inference": lambda c: c.staged(inference=c.graphs.suffix),
    "scored": lambda c: c.staged(scored=c.graphs.inference),
    "signatures": lambda c: replace(c, program=c.program.mapped(lambda _, g: _still(g))),
    "builtins": lambda c: replace(c, program=c.program.including(infer=c.graphs.inference)),
    "scheduled": lambda c: replace(c, program=c.program.including(infer=c.graphs.inference)),
}


def _with_dead_node(c: Compilation) -> Any:
    graph = c.graphs.model.copy()
    node = graph.nodes[0]
    graph.nodes = [*graph.nodes, replace(node, outputs=tuple(type(v)(v.type, "dead") for v in node.outputs))]
    return graph


def _still(graph: Any) -> Any:
    still = graph.copy()
    still.updates = {}
    return still


@pytest.mark.parametrize("name", CHECKS)
def test_a_wrong_pass_is_found(name: str) -> None:
    with pytest.raises(AssertionError) as found:
        broken(name, WRONG[name])
    assert f"{name}, behind wrong" in found.value.__notes__
