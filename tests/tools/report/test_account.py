"""The account of a build against the manifest, the file's own operators, and builds of other schemes."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import converter
from converter.backend import schedule
from converter.backend.lowering.state import with_variables
from converter.backend.targets import target
from converter.driver.build_report import KINDS, parts, read_account
from converter.driver.models import import_model
from converter.program.file import read_program
from converter.program.flatbuffer.metadata import ACCOUNT
from converter.support.errors import UsageError
from converter.support.words import count
from converter.tools.report.contents import contents_of
from converter.tools.report.page import render
from converter.tools.report.tree import groups
from examples import llama
from jax_frontend import Model
from tests.models.zoo import CASES
from tests.tools.report.programs import program


def looping(length: int = 40) -> Model:
    """A scan that is too long to be unrolled."""
    rng = np.random.default_rng(0)
    params = {"cell": {"w": rng.standard_normal((4, 4)).astype(np.float32) / 4}, "head": np.eye(4, 3, dtype=np.float32)}

    def apply(params: Any, x: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            return jnp.tanh(state @ params["cell"]["w"] + row), None

        return jax.lax.scan(step, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))[0] @ params["head"]

    return Model(apply, params, [jax.ShapeDtypeStruct((1, length, 4), np.float32)])


BUILDS = {
    "mlp": lambda: program("mlp"),
    "vit": lambda: program("mobilenetv2-0.35"),
    "encoder": lambda: program("encoder"),
    "micro-batches": lambda: converter.build(CASES["lenet"].model(), batch=8, micro_batch=2, check=False),
    "stateless": lambda: converter.build(CASES["lenet"].model(), batch=4, state="stateless", check=False),
    "split": lambda: converter.build(
        CASES["lenet"].model(), batch=4, micro_batch=2, state="split", target="tflite-2.16", check=False
    ),
    "adapters": lambda: converter.build(CASES["encoder"].model(), update="lora", batch=2, check=False),
    "loop": lambda: converter.build(looping(), batch=2, check=False),
}


@pytest.mark.parametrize("name", BUILDS)
def test_it_agrees_with_what_inspect_says(name: str) -> None:
    file = read_program(BUILDS[name]().data)
    account, costs = read_account(file), file.manifest.costs
    contents = contents_of(file)
    for call, made in account.calls.items():
        assert len(made.flops) == len(contents.operators[call])
        assert max(made.memory.alive(len(made.flops))) <= made.memory.arena + made.memory.workspace
    held = sum(c.memory.arena for c in account.calls.values()) + max(c.memory.workspace for c in account.calls.values())
    if file.manifest.state == "variables":
        assert held == costs["arena_bytes"]
    else:  # there the state lies in the arena, and is counted apart
        assert held == (costs["arena_bytes"] or 0) + (costs["state_bytes"] or 0)
    by_phase: Counter[str] = Counter()
    for layer in contents.layers.values():
        by_phase.update(layer.flops)
    assert all(by_phase[phase] == costs[f"flops_{phase}"] for phase in ("forward", "backward", "update"))
    assert set(account.weights) <= {row.parameter for row in file.manifest.update.table} | set(contents.fractions)


@pytest.mark.parametrize("name", ["vit", "encoder"])
def test_pieces_are_those_of_the_plan(name: str) -> None:
    """The memory planner's own allocations, operator by operator."""
    made = program(name)
    graph = with_variables(made.signatures["train"])
    run = schedule.timeline(graph, target("litert-2").lanes)
    assert run.order == tuple(range(len(graph.nodes)))
    tensors = [p for p in run.pieces if p.kind in ("tensor", "scratch")]
    inside = [p for p in run.pieces if p.kind == "workspace"]
    most = max(sum(p.nbytes for p in tensors if p.first <= i <= p.last) for i in run.order)
    assert 0.7 * run.planned.arena <= most <= run.planned.arena
    most = max(sum(p.nbytes for p in inside if p.first <= i <= p.last) for i in run.order)
    assert 0.7 * run.planned.workspace <= most <= run.planned.workspace
    for piece in inside:  # it never leaves its partition
        assert len({run.partitions[i] for i in range(piece.first, piece.last + 1)}) == 1
    for piece in run.pieces:  # it begins where its operator runs, or where the partition of that does
        if piece.maker is not None:
            assert piece.first <= piece.maker <= piece.last
            assert piece.first == piece.maker or run.partitions[piece.first] == run.partitions[piece.maker]


@pytest.mark.parametrize("update", ["full", "head", "lora", "bias-only"])
@pytest.mark.parametrize(
    "name", [pytest.param("mobilenetv2-0.35", marks=pytest.mark.slow), "encoder", "frozen base", "two heads"]
)
def test_what_can_train_is_what_a_full_build_trains(name: str, update: str) -> None:
    """Not moving statistics, layers that the model freezes, or what only an output without a loss needs."""
    model, options = _partly_trainable(name)
    full = converter.build(model, update="full", batch=2, check=False, **options)
    try:
        built = converter.build(model, update=update, batch=2, check=False, **options)
    except UsageError:  # LoRA is for dense layers
        return
    for each in (full, built):
        contents = contents_of(read_program(each.data))
        assert contents.account.trainable == full.costs["trained_parameters"]
    said = f"{count(built.costs['trained_parameters'])} numbers train; of the model "
    assert said + f"{count(full.costs['trained_parameters'])} can" in render(contents)


def _partly_trainable(name: str) -> tuple[Any, dict[str, Any]]:
    if name in CASES:
        return CASES[name].model(), {"loss": CASES[name].loss}
    base = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, name="a"), keras.layers.BatchNormalization()])
    base.trainable = name != "frozen base"
    inputs = keras.Input((6,))
    hidden = base(inputs)
    first = keras.layers.Dense(3, name="first")(hidden)
    second = keras.layers.Dense(5, name="second")(hidden)
    if name == "frozen base":
        return keras.Model(inputs, first), {"loss": "sparse_categorical_crossentropy"}
    model = keras.Model(inputs, {"first": first, "second": second})
    return model, {"loss": {"first": "sparse_categorical_crossentropy", "second": None}}


def test_what_trains_is_told_of_each_part() -> None:
    """By hand: a net whose middle layer trains, with frozen ones on both sides."""
    params = {name: np.eye(4, dtype=np.float32) for name in ("first", "middle", "last")}

    def apply(params: Any, x: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ params["first"]) @ params["middle"]) @ params["last"]

    model = Model(apply, params, [jax.ShapeDtypeStruct((1, 4), np.float32)])
    built = converter.build(model, update={"middle": 1}, batch=2, check=False)
    contents = contents_of(read_program(built.data))
    assert [part.layer for part in contents.account.model] == ["first", "middle", "last"]
    assert contents.statuses == ["frozen", "trained", "passed"]
    cut = converter.build(model, update={"middle": 0.5, "last": 0}, batch=2, check=False)
    assert contents_of(read_program(cut.data)).statuses == ["frozen", "cut", "passed"]


def test_groups_are_the_paths_of_layers() -> None:
    model = parts(import_model(llama.build(layers=4, width=32, heads=4, length=16, vocabulary=64), 2).graph)
    found = groups(model)
    assert {group[:2] for group in found if group} == {("layers", str(i)) for i in range(4)} | {("layers",)}
    # The sum around an attention is said to be of the embedding that it began with; it is drawn in its layer.
    sums = [group for part, group in zip(model, found, strict=True) if part.layer == "tokens"]
    assert ("layers", "3") in sums


def test_a_plain_model_carries_none(tmp_path: Path) -> None:
    assert ACCOUNT.encode() in program("mlp").data
    assert ACCOUNT.encode() not in program("mlp").export_inference(tmp_path / "plain.tflite").read_bytes()


def damaged(change: Any) -> Any:
    """A program file whose account says something else."""
    file = read_program(program("mlp").data)
    said = json.loads(zlib.decompress(file.metadata[ACCOUNT]))
    change(said)
    return replace(file, metadata={**file.metadata, ACCOUNT: memoryview(zlib.compress(json.dumps(said).encode()))})


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said["calls"]["train"]["memory"]["last"].pop(),
        lambda said: said["calls"]["train"]["memory"]["last"].__setitem__(0, 10**6),
        lambda said: said["calls"]["train"]["memory"]["maker"].__setitem__(0, -5),
        lambda said: said["calls"]["train"]["memory"]["kinds"].__setitem__(0, len(KINDS)),
        lambda said: said["calls"]["train"]["costs"].pop(),
        lambda said: said["calls"]["train"].update(order=[0, 0]),
        lambda said: said["model"][0]["reads"].append(1),
        lambda said: said.update(model=7),
        lambda said: said.update(more=1),
    ],
)
def test_a_damaged_account_is_refused(change: Any) -> None:
    with pytest.raises(UsageError, match="account"):
        read_account(damaged(change))


def test_other_bytes_are_refused() -> None:
    file = read_program(program("mlp").data)
    bomb = zlib.compress(bytes(40 << 20))
    for data in (b"", b"{}", b"\x00" * 9, bytes(file.metadata[ACCOUNT])[:-9], bomb):
        with pytest.raises(UsageError, match="account"):
            read_account(replace(file, metadata={**file.metadata, ACCOUNT: memoryview(data)}))
    with pytest.raises(UsageError, match="build it again"):
        read_account(replace(file, metadata={}))
