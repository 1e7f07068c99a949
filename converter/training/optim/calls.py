"""Calls of an optax update, and updates that a compiled step cannot support."""

from __future__ import annotations

import inspect
from typing import Any

from converter.support.errors import UnsupportedError
from converter.training.optim.parts import parts

_SEARCHES = (
    "searches along its direction: it computes the loss at several weights in one step, and a compiled step computes "
    "it once. Use optax.lbfgs(learning_rate, linesearch=None), optax.polyak_sgd() or a learning rate that decays"
)
_FACTORISES = (
    "projects gradients on singular vectors, and there is no such factorisation in TFLite. Use update='lora', which "
    "trains few directions of each weight too, or optax.adafactor, which keeps little state"
)
_MEASURES = (
    "keeps figures of the training, and its state has another form after the first step. Leave it out: `fit` gives "
    "the loss of each epoch and metrics"
)
_CLIPS_ROWS = (
    "clips the gradient of each row of the batch before they are added up, and a compiled step makes their sum alone. "
    "It also needs noise that nobody can know, and that of a program follows from its file. Without that promise: "
    "optax.chain(optax.clip_by_global_norm(...), optax.add_noise(...), optax.sgd(...))"
)
#: Parts of optax that are refused, with the reason and what to use.
_REFUSED = {
    "scale_by_zoom_linesearch": _SEARCHES,
    "scale_by_backtracking_linesearch": _SEARCHES,
    "scale_by_galore": _FACTORISES,
    "monitor": _MEASURES,
    "differentially_private_aggregate": _CLIPS_ROWS,
    "lookahead": (
        "trains two sets of weights, fast and slow ones, and a program has those of the model. Use "
        "optax.contrib.schedule_free_adamw or schedule_free_sgd, which average the weights, too"
    ),
    "hutchinson_estimator_diag_hessian": (
        "takes second derivatives of the loss along random directions, and a compiled step has the first alone. Use "
        "optax.adamw or optax.contrib.adopt, or give sophia a hessian_diagonal_fn that is made of the gradients"
    ),
}
_OPAQUE = (
    "with opaque_mode=True takes gradients at several weights in one step, and a compiled step takes them at one. "
    "Leave opaque_mode out: the same steps are then made by turns, sync_period calls of `train` for one of them"
)


def call_update(tx: Any, gradients: Any, state: Any, params: Any, loss: Any) -> tuple[Any, Any]:
    """Return the updates and the next state, of an update that is given what it takes besides: `value` and `grad`.

    Args:
        tx: an optax transformation, or what has its functions.
        gradients: a tree as the parameters.
        state: of the transformation.
        params: the parameters.
        loss: what the gradients are of, [].
    """
    taken = inspect.signature(tx.update).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())
    besides = {n: v for n, v in {"value": loss, "grad": gradients}.items() if takes_any or n in taken}
    try:
        updates, after = tx.update(gradients, state, params, **besides)
    except TypeError as error:
        if not besides or "unexpected keyword argument" not in str(error):
            raise
        updates, after = tx.update(gradients, state, params)  # a part of it, as `contrib.sam`, takes nothing besides
    return updates, after


def check_traceable(optimizer: Any) -> None:
    """Raises UnsupportedError for transformations that need what a compiled step has not, with the reason."""
    for part in parts(optimizer):
        why = _REFUSED.get(part.name)
        if (
            part.name == "sam" and "batch_axis_name" in part.closed_over
        ):  # of the two updates that it has the opaque one
            why = _OPAQUE
        if why is not None and part.is_of_optax:
            raise UnsupportedError(f"The optimizer optax.{_said(part.module, part.name)} {why}.", page="optimizers")


def _said(module: str, name: str) -> str:
    return f"contrib.{name}" if module.startswith("optax.contrib") else name
