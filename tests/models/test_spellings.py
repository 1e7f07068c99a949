"""A batch norm costs and trains the same however it is written."""

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import optax
import pytest

import converter
from converter.ir import dependents
from tests.models import spellings
from tests.models.oracle import Oracle
from tests.models.spellings import NORMS, SIZE

BATCH, STEPS = 4, 10
#: With the usual eps of 1e-8 Adam moves an element whose gradient is a rounding error as far as any other.
OPTIMIZERS = {"momentum": (optax.sgd(1.0, momentum=0.9), 0.02), "adam": (optax.adam(1.0, eps=1e-5), 2e-3)}
NETS: dict[str, Callable[[], Any]] = {
    **{name: lambda norm=norm: spellings.plain_net(norm) for name, norm in NORMS.items()},
    "plain without bias": lambda: spellings.plain_net(NORMS["shift_then_scale"], bias=False),
    "flax": spellings.flax_net,
    "flax without bias": lambda: spellings.flax_net(bias=False),
    "keras": spellings.keras_net,
    "keras without bias": lambda: spellings.keras_net(bias=False),
    "before the products": lambda: spellings.scaled_before(NORMS["shift_then_scale"]),
    "before the products, one by one": lambda: spellings.scaled_before(NORMS["one_by_one"]),
}
#: What trains: everything; scales and shifts only; the later layers and all shifts; kernels only, one of them in part.
UPDATES: dict[str, dict[str, float]] = {
    "full": {"*": 1},
    "norms": {"*": 0, "*gamma": 1, "*beta": 1, "*scale": 1, "*bias": 1, "*gain": 1, "*head/*": 1},
    "later": {"*": 0, "*transposed/*": 1, "*up*": 1, "*beta": 1, "*bias": 1, "*head/*": 1},
    "kernels": {"*": 0, "*kernel": 1, "*stem/kernel": 0.34},
}
STATISTICS = ("*mean", "*variance", "*/var")
THOROUGHLY = ("one_by_one", "plain without bias", "flax", "before the products")


def rules(model: Any, update: str) -> dict[str, float]:
    """The rules that a model has parameters for; the statistics of a batch norm never train."""
    names = Oracle(model, {}, optax.sgd(1.0)).whole
    wanted = {**UPDATES[update], **dict.fromkeys(STATISTICS, 0)}
    return {pattern: fraction for pattern, fraction in wanted.items() if fnmatch.filter(names, pattern)}


def program(model: Any, update: Any, optimizer: Any = "sgd", **options: Any) -> converter.Program:
    return converter.build(model, optimizer=optimizer, update=update, batch=BATCH, **options)


@pytest.mark.parametrize(
    ("name", "update"), [(name, u) for name in NETS for u in UPDATES if u == "full" or name in THOROUGHLY]
)
def test_ten_steps_equal_jax_and_optax(name: str, update: str) -> None:
    model = NETS[name]()
    optimizer, rate = OPTIMIZERS["adam" if update == "later" else "momentum"]
    built = program(model, rules(model, update), optimizer)
    oracle = Oracle(model, {row.parameter: row.fraction for row in built.table}, optimizer)
    rng, weight = np.random.default_rng(0), np.linspace(0.5, 1.5, BATCH, dtype=np.float32)
    with converter.runtime.TrainingSession(built.data) as session:
        for _ in range(STEPS):
            x = rng.standard_normal((BATCH, SIZE, SIZE, 3)).astype(np.float32)
            y = rng.integers(0, spellings.CLASSES, BATCH).astype(np.int32)
            wanted = oracle.train(x, y, rate, weight)
            np.testing.assert_allclose(session.train(x, y, rate, weight), wanted, rtol=1e-4)
        found = session.parameters()
    parameters = oracle.parameters()
    assert found.keys() == parameters.keys()
    for parameter, array in parameters.items():
        assert np.abs(found[parameter] - array).max() <= 1e-4 * np.abs(array).max(), parameter
        assert np.abs(array - oracle.whole[parameter]).max() > 1e-3, f"{parameter} does not move"


def operators(built: converter.Program) -> Counter[str]:
    """Builtin operators of a step. Addition and subtraction are one: x - mean is x + (-mean)."""
    kinds = Counter(n.op.code for n in built.signatures["train"].nodes)
    kinds["ADD"] += kinds.pop("SUB", 0)
    return kinds


@pytest.mark.parametrize(
    ("update", "norms"),
    [
        ("head", NORMS),
        pytest.param("sparse", NORMS, marks=pytest.mark.slow),
        ("full", ["shift_then_scale", "scale_then_shift"]),
    ],
)
def test_mobilenetv2_is_the_same_program_in_every_spelling(update: str, norms: Iterable[str]) -> None:
    models = {name: spellings.mobilenetv2(NORMS[name]) for name in norms}
    blocks = {f"block_{i}/expand/{part}": 1 for i in range(10, 17) for part in ("kernel", "norm/beta")}
    trained = {"head": {}, "sparse": blocks, "full": rules(models["shift_then_scale"], "full")}[update]
    built = {
        name: program(model, {"*": 0, **trained, "head/*": 1}, signatures=("train",), check=False)
        for name, model in models.items()
    }
    counts = {name: operators(each) for name, each in built.items()}
    wanted = counts.pop("shift_then_scale")
    # The model's own `beta - mean * scale` has the derivative of a subtraction.
    negations = counts["scale_then_shift"].pop("NEG", 0)
    assert negations <= 52
    assert all(count == wanted for count in counts.values())
    arenas = [each.costs["arena_bytes"] for each in built.values()]
    assert max(arenas) <= 1.01 * min(arenas)


@pytest.mark.parametrize("name", NETS)
def test_nothing_of_a_frozen_norm_is_left(name: str) -> None:
    """Multiplications, divisions and subtractions of activations; the scales before a padded convolution fold too."""
    step = program(NETS[name](), {"*": 0, "*head/kernel": 1}, signatures=("train",), check=False).signatures["train"]
    trained = dependents(step, step.parameters)
    frozen = [n for n in step.nodes if n.origin.phase == "forward" and n.output.shape[:1] == (BATCH,)]
    left = Counter(n.op.code for n in frozen if n.output not in trained and len(n.output.shape) == 4)
    assert not {"MUL", "DIV", "SUB", "NEG"} & left.keys(), left
