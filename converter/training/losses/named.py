"""Named losses: the table of them, their options and targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from math import isfinite
from typing import Any, NamedTuple

from converter.ir import FLOAT32, INT32, Builder, TensorType, Value
from converter.program.manifest import TARGET, TargetLabels
from converter.support.errors import UsageError, nearest
from converter.training.losses import row_losses
from converter.training.losses.links import Link
from converter.training.losses.loss import Labels, Loss, PerExample, Targets
from converter.training.losses.row_losses import RowLoss


def _like_output(outputs: list[TensorType]) -> dict[str, TensorType]:
    return {TARGET: outputs[0]}


def _labels(outputs: list[TensorType]) -> dict[str, TensorType]:
    return {TARGET: TensorType(outputs[0].shape[:-1], INT32)}


def _labels_and_teacher(outputs: list[TensorType]) -> dict[str, TensorType]:
    return {f"{TARGET}/label": TensorType(outputs[0].shape[:-1], INT32), f"{TARGET}/teacher": outputs[0]}


def labels_of(target: str, masked: bool = False, ignored: int | None = None) -> Labels:
    """Labels of the classes along the last axis of the only output."""
    return lambda outputs: {target: TargetLabels(outputs[0].shape[-1], masked, ignored)}


def _no_labels(outputs: list[TensorType]) -> dict[str, TargetLabels]:
    return {}


def _numbers(
    least: float | None = None, most: float | None = None, only: tuple[float, ...] = (), advice: str = ""
) -> Labels:
    """Return numbers like the only output."""
    return lambda outputs: {TARGET: TargetLabels(least=least, most=most, only=only, advice=advice)}


def _shares(most: float | None = None) -> Labels:
    """Return numbers from 0 on, one for each of the classes along the last axis of the only output."""
    return lambda outputs: {TARGET: TargetLabels(outputs[0].shape[-1], least=0.0, most=most)}


_PROBABILITIES, _AMOUNTS = _numbers(0.0, 1.0), _numbers(0.0)
_SIGNS = _numbers(only=(-1.0, 1.0), advice="for labels that are 0 or 1 pass 2 * y - 1")


def _number(outputs: list[TensorType]) -> dict[str, TensorType]:
    return {TARGET: TensorType(outputs[0].shape[:-1], FLOAT32)}


def _nothing(outputs: list[TensorType]) -> dict[str, TensorType]:
    return {}


def _one(make: Callable[..., RowLoss]) -> Callable[..., PerExample]:
    """Of one output and one target."""

    @wraps(make)
    def made(**options: float) -> PerExample:
        emit = make(**options)

        def per_example(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
            (output,), (y,) = outputs, targets
            return emit(b, output, y)

        return per_example

    return made


class _Named(NamedTuple):
    """How a loss with a name is made.

    Attributes:
        make: its emitter; the arguments are options of the loss.
        link: as for `Loss`.
        targets: as for `Loss`, from the options.
        outputs: how many it reads.
        mask: as for `Loss`, from the options.
        labels: as for `Loss`, from the options.
        places: as for `Loss`, from the options.
        aside: options that are not the emitter's, but of what the other fields make.
    """

    make: Callable[..., PerExample]
    link: Link | None = None
    targets: Callable[..., Targets] = lambda **_: _like_output
    outputs: int = 1
    mask: Callable[..., Callable[[Builder, Value], Value]] | None = None
    labels: Callable[..., Labels] = lambda **_: _no_labels
    places: Callable[..., Callable[[Builder, Value], Value] | None] = lambda **_: None
    aside: tuple[str, ...] = ()


_NAMED: dict[str, _Named] = {
    "sparse_categorical_crossentropy": _Named(
        _one(row_losses.sparse_cross_entropy),
        "softmax",
        lambda **_: _labels,
        labels=lambda ignore=None, **_: labels_of(TARGET, ignored=None if ignore is None else int(ignore)),
        places=lambda ignore=None, **_: None if ignore is None else row_losses.all_labels_but(ignore),
        aside=("ignore",),
    ),
    "categorical_crossentropy": _Named(_one(row_losses.cross_entropy), "softmax", labels=lambda **_: _shares()),
    "categorical_focal_crossentropy": _Named(
        _one(row_losses.focal_cross_entropy), "softmax", labels=lambda **_: _shares()
    ),
    "next_token": _Named(
        _one(row_losses.next_token),
        "softmax",
        lambda **_: _labels,
        mask=lambda ignore=None, **_: row_losses.mask_of_labels(ignore),
        labels=lambda ignore=None, **_: labels_of(TARGET, masked=True, ignored=None if ignore is None else int(ignore)),
    ),
    "kl_divergence": _Named(_one(row_losses.kl_divergence), "softmax"),
    "distillation": _Named(
        row_losses.distillation,
        "softmax",
        lambda alpha=1, **_: _like_output if alpha == 1 else _labels_and_teacher,
        labels=lambda alpha=1, **_: _no_labels if alpha == 1 else labels_of(f"{TARGET}/label"),
    ),
    "binary_crossentropy": _Named(_one(row_losses.binary_cross_entropy), "sigmoid", labels=lambda **_: _PROBABILITIES),
    "binary_focal_crossentropy": _Named(
        _one(row_losses.binary_focal_cross_entropy), "sigmoid", labels=lambda **_: _PROBABILITIES
    ),
    "mse": _Named(_one(row_losses.squared_error)),
    "mae": _Named(_one(row_losses.absolute_error)),
    "mape": _Named(_one(row_losses.absolute_percentage_error)),
    "msle": _Named(_one(row_losses.squared_logarithmic_error), labels=lambda **_: _AMOUNTS),
    "poisson": _Named(_one(row_losses.poisson), labels=lambda **_: _AMOUNTS),
    "huber": _Named(_one(row_losses.huber)),
    "quantile": _Named(_one(row_losses.quantile)),
    "log_cosh": _Named(_one(row_losses.log_cosh)),
    "cosine_similarity": _Named(_one(row_losses.cosine_similarity)),
    "hinge": _Named(_one(row_losses.hinge), labels=lambda **_: _SIGNS),
    "squared_hinge": _Named(_one(row_losses.squared_hinge), labels=lambda **_: _SIGNS),
    "categorical_hinge": _Named(_one(row_losses.categorical_hinge), labels=lambda **_: _shares(1.0)),
    "categorical_generalized_cross_entropy": _Named(
        _one(row_losses.generalized_cross_entropy), "softmax", lambda **_: _labels, labels=lambda **_: labels_of(TARGET)
    ),
    "dice": _Named(_one(row_losses.dice), labels=lambda **_: _PROBABILITIES),
    "tversky": _Named(_one(row_losses.tversky), labels=lambda **_: _PROBABILITIES),
    "contrastive": _Named(row_losses.contrastive, None, lambda **_: _number, 2),
    "triplet": _Named(row_losses.triplet, None, lambda **_: _nothing, 3),
}
LOSSES = tuple(_NAMED)
#: The option that is a label, and the one that is axes.
_LABEL, _AXES = "ignore", "axis"


def _is_axes(value: Any) -> bool:
    several = value if isinstance(value, list | tuple) else [value]
    return value is None or all(isinstance(n, int) and not isinstance(n, bool) for n in several)


def named_loss(name: str, **options: Any) -> Loss:
    """Return a loss by name.

    Args:
        name: one of `LOSSES`. Those with "crossentropy", `kl_divergence`, `next_token` and `distillation` are from
            logits; of a model that ends in the softmax (sigmoid) they read what stands before it.
        **options: `label_smoothing` (0) of the cross entropies and `next_token`, `gamma` (2) and `alpha` of the focal
            ones, `delta` (1) of `huber`, as in Keras; `ignore`, a label that is left out, of
            `sparse_categorical_crossentropy`, and of `next_token` beside those below 0; `temperature` (2) and `alpha`
            (1) of `distillation`; `margin` (1) of `contrastive` and `triplet`; `q` (0.5) of
            `categorical_generalized_cross_entropy` and `quantile`; `axis` (all, the batch too) of `dice` and `tversky`,
            as in Keras, an axis or a list of them, and `alpha` and `beta` (0.5) of `tversky`.

    Raises:
        UsageError: an unknown name or option, or an option that is no number.
    """
    if name not in _NAMED:
        names = (*LOSSES, "ctc")  # which is traced for a length of y, see `own_loss.ctc_loss`
        raise UsageError(f"unknown loss {name!r}.{nearest(name, names)} Known: {', '.join(names)}.", page="losses")
    kind = _NAMED[name]
    known = (*inspect.signature(kind.make).parameters, *kind.aside)
    for option, value in options.items():
        if option not in known:
            raise UsageError(f"the loss {name} has no option {option!r}.{nearest(option, known)}", page="losses")
        number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
        if option == _LABEL and not (number and value == int(value) and abs(value) < 1 << 31):
            raise UsageError(f"the loss {name}: {option} is a label, an int32, got {value!r}", page="losses")
        if option == _AXES and not _is_axes(value):
            raise UsageError(
                f"the loss {name}: axis is a number or a list of numbers of axes, got {value!r}", page="losses"
            )
        if option not in (_LABEL, _AXES) and not (number and value >= 0):
            raise UsageError(
                f"the loss {name}: {option} is a number that is not negative, got {value!r}", page="losses"
            )
    return Loss(
        name,
        kind.targets(**options),
        kind.make(**{option: value for option, value in options.items() if option not in kind.aside}),
        kind.link,
        outputs=kind.outputs,
        mask=None if kind.mask is None else kind.mask(**options),
        labels=kind.labels(**options),
        places=kind.places(**options),
    )


def loss_from_table(table: Mapping[str, Any]) -> Loss:
    """Return a loss from `{"name": ..., options}`. Raises UsageError as `named_loss`."""
    options = dict(table)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(
            f"loss: expected a name, or a table with a name and options, got {dict(table)!r}", page="losses"
        )
    return named_loss(name, **options)
