"""Random Keras set-ups: a random model, compiled with a random loss, optimizer, schedule and metrics, and data for it.

Each is trained by Keras on JAX and by the program, and what comes out is compared. Keras trains it again with weights
and data that differ in the last bit: how far that leads apart says how exactly a case can be compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, losses, optimizers

import converter
from converter.support.errors import NumericError
from tests.keras_frontend.random_nets import BATCH, ROWS, Drawing, draw

#: Rows of each step, and a last one of fewer rows, for which Keras compiles anew.
STEPS, SHORT = [slice(0, BATCH), slice(BATCH, 2 * BATCH), slice(0, BATCH)], slice(2 * BATCH, ROWS)
CLASSES = 3
#: What rounding may make of a number that is known exactly, and how many times what it makes of Keras itself.
_ROUNDING, _AS_KERAS = 1e-5, 50.0

#: Labels of a head, by the shape of its output and a generator.
Labels = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Head:
    """What a model ends in.

    Attributes:
        loss: makes the loss; gets its reduction.
        metrics: names of metrics that both sides know.
        activation: of the last layer, one of these.
        units: of the last layer.
        labels: makes targets.
    """

    loss: Callable[[str], Any]
    labels: Labels
    metrics: tuple[str, ...] = ("mae", "mse")
    activation: tuple[str | None, ...] = (None,)
    units: int = CLASSES


def _numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.5, 2, shape).astype(np.float32)


def _bits(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 2, shape).astype(np.float32)


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 2 * _bits(rng, shape) - 1


def _kinds(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)


def _one_hot(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.eye(shape[-1], dtype=np.float32)[_kinds(rng, shape)]


def _ignored(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    labels = _kinds(rng, shape)
    return np.where(rng.random(labels.shape) < 0.3, -1, labels).astype(np.int32)


_SPARSE, _CATEGORICAL = ("sparse_categorical_accuracy",), ("categorical_accuracy",)
HEADS: dict[str, Head] = {
    "mse": Head(lambda r: losses.MeanSquaredError(r), _numbers),
    "mae": Head(lambda r: losses.MeanAbsoluteError(r), _numbers),
    "huber": Head(lambda r: losses.Huber(0.7, r), _numbers),
    "log cosh": Head(lambda r: losses.LogCosh(r), _numbers),
    "cosine": Head(lambda r: losses.CosineSimilarity(reduction=r), _numbers),
    "percentages": Head(lambda r: losses.MeanAbsolutePercentageError(r), _positive),
    "logarithms": Head(lambda r: losses.MeanSquaredLogarithmicError(r), _positive, activation=("relu", "softplus")),
    "poisson": Head(lambda r: losses.Poisson(r), _positive, activation=("softplus", "exponential")),
    "hinge": Head(lambda r: losses.Hinge(r), _signs, (), (None, "tanh")),
    "squared hinge": Head(lambda r: losses.SquaredHinge(r), _signs, (), (None, "tanh")),
    "categorical hinge": Head(lambda r: losses.CategoricalHinge(r), _one_hot, _CATEGORICAL),
    "divergence": Head(lambda r: losses.KLDivergence(r), _one_hot, (), ("softmax",)),
    "binary": Head(
        lambda r: losses.BinaryCrossentropy(label_smoothing=0.1, reduction=r),
        _bits,
        ("binary_accuracy", "mse"),
        ("sigmoid",),
        1,
    ),
    "binary of logits": Head(lambda r: losses.BinaryCrossentropy(True, reduction=r), _bits, ()),
    "binary focal": Head(
        lambda r: losses.BinaryFocalCrossentropy(gamma=1.5, reduction=r), _bits, ("binary_accuracy",), ("sigmoid",), 1
    ),
    "sparse": Head(lambda r: losses.SparseCategoricalCrossentropy(reduction=r), _kinds, _SPARSE, ("softmax",)),
    "sparse of logits": Head(lambda r: losses.SparseCategoricalCrossentropy(True, reduction=r), _kinds, _SPARSE),
    "sparse, some ignored": Head(
        lambda r: losses.SparseCategoricalCrossentropy(True, ignore_class=-1, reduction=r), _ignored, ()
    ),
    "categorical": Head(
        lambda r: losses.CategoricalCrossentropy(label_smoothing=0.1, reduction=r), _one_hot, _CATEGORICAL, ("softmax",)
    ),
    "categorical focal": Head(
        lambda r: losses.CategoricalFocalCrossentropy(reduction=r), _one_hot, _CATEGORICAL, ("softmax",)
    ),
    "generalized": Head(
        lambda r: losses.CategoricalGeneralizedCrossEntropy(0.6, reduction=r), _kinds, _SPARSE, ("softmax",)
    ),
    "dice": Head(lambda r: losses.Dice(axis=-1), _bits, (), ("sigmoid",)),
    "tversky": Head(lambda r: losses.Tversky(0.3, 0.7, axis=-1), _bits, (), ("sigmoid",)),
}


def _schedule(d: Drawing, rate: float) -> Any:
    kinds = optimizers.schedules
    return d.pick(
        rate,
        rate,
        rate,
        kinds.ExponentialDecay(rate, 2, 0.5, staircase=d.chance(0.5)),
        kinds.InverseTimeDecay(rate, 2, 0.5),
        kinds.PiecewiseConstantDecay([1, 2], [rate, rate / 3, rate / 2]),
        kinds.PolynomialDecay(rate, 9, rate / 10, power=d.pick(1.0, 2.0)),
        kinds.CosineDecay(rate / 10, 7, warmup_target=rate, warmup_steps=2),
        kinds.CosineDecayRestarts(rate, 2, t_mul=d.pick(1.0, 2.0)),
    )


def _optimizer(d: Drawing) -> Any:
    """One of Keras', of any settings; rates are so small that little is made of what rounding does."""
    rate = float(d.rng.uniform(0.002, 0.01))
    options: dict[str, Any] = {}
    if d.chance(0.3):
        options[d.pick("clipnorm", "global_clipnorm", "clipvalue")] = float(d.rng.uniform(0.05, 1))
    if d.chance(0.2):
        options["weight_decay"] = 0.1
    if d.chance(0.15):
        options |= {"use_ema": True, "ema_momentum": 0.6, "ema_overwrite_frequency": d.pick(1, 2)}
    if d.chance(0.15):
        options["gradient_accumulation_steps"] = 2
    kind = d.pick("SGD", "SGD", "Adam", "AdamW", "Nadam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Lion", *_RARE)
    d.said.append(f"{kind} {options}")
    match kind:
        case "SGD":
            options |= {"momentum": d.pick(0.0, 0.8), "nesterov": d.chance(0.5)}
        case "RMSprop":
            options |= {"momentum": d.pick(0.0, 0.8), "centered": d.chance(0.3)}
        case "Adam" | "AdamW":
            options |= {"amsgrad": d.chance(0.3), "beta_1": d.pick(0.9, 0.6)}
    # A large epsilon: gradients that are 0 but for rounding are no steps of full length.
    if kind not in ("SGD", "Lion", "Ftrl"):
        options["epsilon_1" if kind == "Adafactor" else "epsilon"] = 1e-3
    return getattr(optimizers, kind)(_schedule(d, rate), **options)


_RARE = ("Lamb", "Muon", "Adafactor", "Ftrl", "ScheduleFreeAdamW")


@dataclass
class Case:
    """A set-up.

    Attributes:
        model: compiled.
        x: what it takes, one array or a dict of them by input.
        y: the targets, one array or a dict of them by output.
        options: of the build.
        metrics: by output, or those of the only one; None where nothing is evaluated.
        steps: the rows of each step.
        summed: whether a loss is a sum of rows.
        is_file: whether the program is built from a file.
        said: the set-up in words.
    """

    model: Any
    x: Any
    y: Any
    options: dict[str, Any]
    metrics: Any
    steps: list[slice]
    summed: bool
    is_file: bool
    said: str


def random_case(seed: int) -> Case:
    """The set-up of a seed."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    d = Drawing(np.random.default_rng(seed))
    inputs, x, features = draw(d)
    if d.chance(0.15) and len(features.shape) == 2:
        more = keras.Input((2,), name="more")
        features = layers.Concatenate()([features, more])
        inputs, x = [inputs, more], [x, _numbers(d.rng, (ROWS, 2))]
    count = 2 if d.chance(0.2) else 1
    reduction = "sum" if d.chance(0.1) else "sum_over_batch_size"
    heads: dict[str, Head] = {}
    outputs: dict[str, Any] = {}
    for i in range(count):
        kind = d.pick(*HEADS)
        d.said.append(f"-> {kind}")
        heads[f"head_{i}"] = head = HEADS[kind]
        options = d.options()
        outputs[f"head_{i}"] = layers.Dense(
            head.units, activation=d.pick(*head.activation), name=f"head_{i}", **options
        )(features)
    model = keras.Model(inputs, list(outputs.values()) if count > 1 else outputs["head_0"])
    if count == 1 and d.chance(0.2) and not isinstance(inputs, list):
        d.said.append("in a Sequential")
        model = keras.Sequential([keras.Input(inputs.shape[1:], dtype=inputs.dtype), model])
    _freeze(d, model)
    y = {name: head.labels(d.rng, (ROWS, *outputs[name].shape[1:])) for name, head in heads.items()}
    loss = {name: head.loss(reduction) for name, head in heads.items()}
    metrics = {name: list(head.metrics) for name, head in heads.items()}
    weights = {name: float(d.rng.uniform(0.3, 2)) for name in heads} if d.chance(0.3) else None
    if count == 1:
        y, loss, metrics = y["head_0"], loss["head_0"], metrics["head_0"]
        weights = None if weights is None else weights["head_0"]
    model.compile(_optimizer(d), loss, loss_weights=weights, metrics=metrics)
    norms = any(isinstance(layer, layers.BatchNormalization) for layer in model._flatten_layers())
    building: dict[str, Any] = {"batch_norm": "train"} if norms else {}
    building["state"] = d.pick("variables", "stateless", "split")
    is_file = d.chance(0.3) and not any(getattr(one, "name", "") == "huber_loss" for one in [loss])
    d.said.append(f"{reduction} {weights} {building} {'file' if is_file else ''}")
    steps = [*STEPS, SHORT] if d.chance(0.3) else STEPS
    metrics = metrics if d.chance(0.4) else None
    return Case(model, x, y, building, metrics, steps, reduction == "sum", is_file, f"{seed}: " + ", ".join(d.said))


def _freeze(d: Drawing, model: Any) -> None:
    """Some layers train and some do not; a head always does.

    Of regularized activities the program leaves out those before which nothing trains: a constant of the loss.
    """
    if any(getattr(layer, "activity_regularizer", None) for layer in model._flatten_layers()):
        return
    for layer in model.layers[:-1]:
        if d.chance(0.1):
            layer.trainable = False
            d.said.append(f"{layer.name} frozen")


@dataclass
class Training:
    """What came out of a training: losses of its steps, the weights behind it, and what `evaluate` then gives."""

    losses: list[float]
    weights: dict[str, np.ndarray]
    scores: dict[str, float]


def _rows(tree: Any, rows: slice) -> Any:
    return keras.tree.map_structure(lambda array: array[rows], tree)


def _scored(case: Case) -> tuple[Any, Any]:
    """What is evaluated: whole batches, as each other number of rows costs Keras a compilation."""
    rows = slice(0, 2 * BATCH)
    return _rows(case.x, rows), _rows(case.y, rows)


def _rounded_otherwise(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Numbers that differ in their last bits; whole ones as they are."""
    return (
        array if array.dtype.kind == "i" else (array * (1 + 2e-7 * rng.uniform(-1, 1, array.shape))).astype("float32")
    )


def by_keras(case: Case) -> list[Training]:
    """The training by Keras, and the same with weights and data that differ in their last bits, several times."""
    model = case.model
    model.optimizer.build(model.trainable_variables)
    kept = [(v, np.array(v)) for v in (*model.variables, *model.optimizer.variables)]
    rng = np.random.default_rng(0)
    found = []
    others = [keras.tree.map_structure(lambda array: _rounded_otherwise(rng, array), case.x) for _ in range(3)]
    for x in (case.x, *others):
        for variable, value in kept:
            variable.assign(value)
        if x is not case.x:
            for v in model.trainable_variables:
                v.assign(_rounded_otherwise(rng, np.array(v)))
        steps = [float(np.ravel(model.train_on_batch(_rows(x, r), _rows(case.y, r)))[0]) for r in case.steps]
        weights = {v.path: np.array(v) for v in model.weights}
        scores = {}
        if case.metrics is not None:
            scores = model.evaluate(*_scored(case), batch_size=BATCH, verbose=0, return_dict=True)
        found.append(Training(steps, weights, {name: float(value) for name, value in scores.items()}))
    for variable, value in kept:
        variable.assign(value)
    return found


def by_program(case: Case) -> Training:
    """The training by the program that is built of the model as it stands."""
    with tempfile.TemporaryDirectory() as folder:
        source: Any = case.model
        if case.is_file:
            source = Path(folder) / "model.keras"
            case.model.save(source)
        program = converter.build(source, batch=BATCH, check=False, **case.options)
    with converter.runtime.TrainingSession(program.data) as session:
        steps = [session.train(_rows(case.x, rows), _rows(case.y, rows)) for rows in case.steps]
        scores = {} if case.metrics is None else session.evaluate(*_scored(case), metrics=case.metrics)
        return Training(steps, dict(session.parameters()), scores)


def differences(expected: Training, others: list[Training], found: Training, summed: bool) -> list[str]:
    """Where a training differs from that of Keras by more than rounding makes of it.

    Args:
        expected: that of Keras.
        others: those of Keras with weights and data that differ in their last bits.
        found: that of the program.
        summed: whether the loss is a sum of rows, of which Keras' `evaluate` is a mean over batches.
    """
    said = []
    for i, (want, have) in enumerate(zip(expected.losses, found.losses, strict=True)):
        said += _difference(f"loss {i}", want, [other.losses[i] for other in others], have)
    for name, have in found.weights.items():
        within = [p for p in expected.weights if p.endswith(f"/{name}")]
        (path,) = [name] if name in expected.weights else within
        said += _difference(name, expected.weights[path], [other.weights[path] for other in others], have)
    for name, value in expected.scores.items():
        if not (summed and "loss" in name):
            said += _difference(name, value, [other.scores[name] for other in others], found.scores[name])
    return said


def _difference(name: str, want: Any, others: list[Any], have: Any) -> list[str]:
    of_keras = max(np.abs(np.asarray(other, np.float64) - want).max() for other in others)
    largest = np.abs(want).max()
    allowed = _ROUNDING * max(largest, 0.1) + _AS_KERAS * of_keras
    off = np.abs(np.asarray(have, np.float64) - want).max()
    return [] if off <= allowed else [f"{name}: off by {off:.2e} of {largest:.2e}, allowed {allowed:.2e}"]


def judged(seed: int) -> list[str]:
    """What is wrong with the program of a seed's set-up; nothing where its training is no training in Keras either.

    Raises:
        PocketuneError: the set-up is refused.
    """
    case = random_case(seed)
    expected, *others = by_keras(case)
    is_training = np.isfinite(expected.losses).all()
    try:
        found = by_program(case)
    except NumericError as error:
        return [f"{case.said}: {error}"] if is_training else []
    said = differences(expected, others, found, case.summed) if is_training else []
    return [f"{case.said}: {'; '.join(said)}"] if said else []
