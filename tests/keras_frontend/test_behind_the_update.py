"""What Keras does with weights behind an update, and with several gradients for one: against its own training step."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import constraints, layers, optimizers

import converter
from converter.support.errors import UnsupportedError

BATCH = 6
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, 6, 6, 2)).astype(np.float32)
Y = RNG.standard_normal((BATCH, 3)).astype(np.float32)
STATES = ["variables", "stateless", "split"]


class HalfSpace(constraints.Constraint):
    """One of its author's own."""

    def __call__(self, w: Any) -> Any:
        return w - keras.ops.minimum(keras.ops.mean(w, 0, keepdims=True), 0.0)


class Shuffled(constraints.Constraint):
    """One that no program can do."""

    def __call__(self, w: Any) -> Any:
        return keras.ops.reshape(w, (-1,))


class Unknown(constraints.Constraint):
    """One that asks for numbers where there are none."""

    def __call__(self, w: Any) -> Any:
        return w * float(keras.ops.max(w))


def net(kernel: Any = None, conv: Any = None, bias: Any = None) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, activation="tanh", kernel_constraint=conv, name="conv"),
            layers.DepthwiseConv2D(2, depthwise_constraint=conv, name="depthwise"),
            layers.Flatten(),
            layers.Dense(5, activation="tanh", kernel_constraint=kernel, bias_constraint=bias, name="hidden"),
            layers.Dense(3, kernel_constraint=kernel, name="head"),
        ],
        name="net",
    )


def trained_alike(model: Any, steps: int = 5, rate: float | None = None, **options: Any) -> converter.Program:
    """So many steps of both, the last with fewer rows; the model is compiled."""
    program = converter.build(model, batch=BATCH, **options)
    with converter.runtime.TrainingSession(program.data) as session:
        for step in range(steps):
            rows = BATCH if step < steps - 1 else BATCH - 2
            expected = float(model.train_on_batch(X[:rows], Y[:rows]))
            assert session.train(X[:rows], Y[:rows], learning_rate=rate) == pytest.approx(expected, rel=2e-4), step
        found = session.parameters()
    for weight in model.weights:
        np.testing.assert_allclose(found[weight.path], weight.numpy(), rtol=1e-3, atol=2e-5, err_msg=weight.path)
    return program


@pytest.mark.parametrize(
    "given",
    [
        {"kernel": constraints.MaxNorm(0.5), "conv": constraints.MaxNorm(0.4, axis=[0, 1, 2])},
        {"kernel": constraints.NonNeg(), "conv": constraints.NonNeg(), "bias": constraints.NonNeg()},
        {
            "kernel": constraints.UnitNorm(axis=1),
            "conv": constraints.UnitNorm(axis=(0, 1)),
            "bias": constraints.MaxNorm(0.1),
        },
        {"kernel": constraints.MinMaxNorm(0.7, 0.9, rate=0.5, axis=0), "conv": constraints.MinMaxNorm(axis=[1, 3])},
        {"kernel": HalfSpace(), "conv": HalfSpace(), "bias": HalfSpace()},
    ],
    ids=["max", "nonneg", "unit", "minmax", "own"],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weights_are_projected_behind_each_step(given: dict[str, Any], optimizer: str) -> None:
    model = net(**given)
    model.compile({"sgd": optimizers.SGD(0.1), "adam": optimizers.Adam(0.02)}[optimizer], "mse")
    program = trained_alike(model, state=STATES[len(given) % 3])
    said = {note.subject: note.status for note in program.notes if "constraint" in note.why}
    assert set(said.values()) == {"as compiled"}


def test_a_constraint_is_the_models_not_the_optimizers() -> None:
    model = net(constraints.NonNeg())
    model.compile(optimizers.SGD(0.5), "mse")
    program = converter.build(model, "mse", "adam", batch=BATCH, micro_batch=2)
    with converter.runtime.TrainingSession(program.data) as session:
        session.train(X, Y, learning_rate=0.5)
        assert session.parameters()["net/hidden/kernel"].min() == 0


def test_a_constraint_on_a_part_of_a_weight() -> None:
    model = net(constraints.MaxNorm(0.5), constraints.NonNeg())
    update = {"net/head/*": 1, "net/hidden/kernel": 0.5, "net/conv/kernel": 0.5}
    program = converter.build(model, "mse", "sgd", update=update, batch=BATCH, check=False)
    said = {note.subject: (note.status, note.why) for note in program.notes if "constraint" in note.why}
    assert said["net/head/kernel"][0] == said["net/conv/kernel"][0] == "as compiled"
    assert said["net/hidden/kernel"][0] == "left out"
    assert "a part trains" in said["net/hidden/kernel"][1]
    assert "net/depthwise/kernel" not in said
    with converter.runtime.TrainingSession(program.data) as session:
        before = session.parameters()["net/conv/kernel"]
        session.train(X, Y, learning_rate=0.5)
        after = session.parameters()["net/conv/kernel"]
    moved = np.any(before != after, (0, 1, 3))
    assert moved.sum() == 1
    assert (after[:, :, moved].min(), after[:, :, ~moved].min() < 0) == (0, True)


@pytest.mark.parametrize("constraint", [Shuffled(), Unknown()])
def test_a_constraint_that_cannot_be_compiled_is_refused(constraint: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"the constraint {type(constraint).__name__} of net/hidden/kernel"):
        converter.build(net(constraint), "mse", "sgd", batch=BATCH)


OPTIMIZERS = {
    "ema": optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
    "ema adam": optimizers.Adam(0.02, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3, weight_decay=0.1),
    "accumulating": optimizers.Adam(0.02, gradient_accumulation_steps=2, clipnorm=0.5),
    "momentum": optimizers.SGD(0.1, momentum=0.9, nesterov=True, gradient_accumulation_steps=3, weight_decay=0.1),
    "both": optimizers.RMSprop(
        0.01, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2
    ),
    "lamb": optimizers.Lamb(0.02, gradient_accumulation_steps=2, weight_decay=0.01),
    "schedule": optimizers.SGD(
        optimizers.schedules.ExponentialDecay(0.3, 2, 0.5), gradient_accumulation_steps=2, global_clipnorm=1.0
    ),
    "adafactor": optimizers.Adafactor(0.02, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=1),
}
#: Each optimizer with one form of the state in the usual run, with the others in the slow one.
PAIRS = [
    pytest.param(name, state, marks=() if STATES[i % 3] == state else pytest.mark.slow)
    for i, name in enumerate(OPTIMIZERS)
    for state in STATES
]


@pytest.mark.quick
@pytest.mark.parametrize(("name", "state"), PAIRS)
def test_averages_and_accumulated_gradients_are_those_of_keras(name: str, state: str) -> None:
    optimizer = OPTIMIZERS[name]
    model = net(constraints.MaxNorm(0.8))
    model.compile(type(optimizer).from_config(optimizer.get_config()), "mse")
    program = trained_alike(model, 7, state=state, micro_batch=3 if state == "split" else None)
    assert not [note for note in program.notes if note.status == "left out"]
