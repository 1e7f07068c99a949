"""Custom losses: a JAX function of the outputs and the targets, traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from converter.ir import TensorType, Value
from converter.passes.idioms import with_idioms
from converter.program.manifest import TARGET, gathered
from converter.support.errors import UsageError
from converter.training.losses.loss import Loss, traced_loss
from converter.training.losses.named import labels_of

#: How people call the two arguments of a loss.
_TARGETS = ("y", "y_true", "true", "truth", "target", "label", "labels")
_OUTPUTS = ("y_pred", "y_hat", "yhat", "pred", "output", "logit", "prob")


def own_loss(function: Callable[..., Any], outputs: Mapping[str, Value], targets: Any) -> Loss:
    """Traces a function `(outputs, targets) -> per-example loss [B]`, or of the outputs alone.

    Args:
        function: the user's; one of a single argument takes no targets.
        outputs: the model's outputs by name.
        targets: what one row of the targets is, as for `build`; None for as the first output.

    Raises:
        UsageError: it takes the targets first, or does not return one number an example.
        UnsupportedError: it uses what cannot be compiled.
        Exception: what it raises itself, with a note that says how it was called.
    """
    import jax_frontend

    name = getattr(function, "__name__", type(function).__name__)
    _check_order(function, name)
    types = {name: v.type for name, v in outputs.items()}
    argument = gathered(types)
    order = sorted(types) if isinstance(argument, dict) else list(types)  # as JAX flattens them
    first = next(iter(types.values()))
    y = first if targets is None else target_types(targets, first.shape[:1])
    takes_y = not _takes_outputs_alone(function)
    given, called = ([argument, y], ["outputs", TARGET]) if takes_y else ([argument], ["outputs"])
    try:
        graph = with_idioms(jax_frontend.trace_function(function, given, called))
        return traced_loss(graph, name, [list(types).index(name) for name in order], _names(y) if takes_y else [])
    except Exception as error:
        if not takes_y:
            error.add_note("Your loss takes one argument: it was given the outputs of the model, and no y.")
        elif targets is None:
            error.add_note(
                f"Your loss was given y of the type of the model's output, {y}. If y is something else, say "
                "what one example's is: y=jax.ShapeDtypeStruct((1,), 'int32') for labels (--y int32)."
            )
        else:
            error.add_note(f"Your loss was given y as {y}: the first axis of what y= says is the batch.")
        if len(types) > 1:
            how = f"a dict with the keys {', '.join(types)}" if isinstance(argument, dict) else "a tuple"
            error.add_note(f"It was given the {len(types)} outputs of the model as {how}.")
        raise


def ctc_loss(outputs: Mapping[str, Value], targets: Any) -> Loss:
    """Return the connectionist temporal classification loss (Graves et al., 2006); `targets` gives the label length.

    Raises:
        UsageError: `targets` gives no length.
    """
    from jax_frontend.losses import ctc

    if targets is None or len(getattr(targets, "shape", ())) != 2:
        raise UsageError(
            "the loss ctc needs to know how long the labels are: y=jax.ShapeDtypeStruct((1, 20), 'int32') "
            "(--y 'int32[20]'); shorter ones are filled with 0, which is the blank",
            page="models",
        )
    return replace(own_loss(ctc, outputs, targets), link="softmax", outputs=1, counts=False, labels=labels_of(TARGET))


def _takes_outputs_alone(function: Callable[..., Any]) -> bool:
    """Return whether a function cannot be called with two arguments, but with one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables of C have no signature
        return False
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return not several and sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 1


def _names(y: Any, root: str = TARGET) -> list[str]:
    """Return the names of the targets in a program, in the order in which they are described."""
    if isinstance(y, Mapping):
        return [name for key, part in y.items() for name in _names(part, f"{root}/{key}")]
    if isinstance(y, tuple):
        return [name for i, part in enumerate(y) for name in _names(part, f"{root}/{i}")]
    return [root]


def _check_order(function: Callable[..., Any], name: str) -> None:
    """Raises UsageError where the names of a function's arguments say that it takes the targets first."""
    try:
        arguments = [argument.lower() for argument in inspect.signature(function).parameters][:2]
    except (TypeError, ValueError):  # some callables of C have no signature
        return
    if len(arguments) < 2:
        return
    first, second = arguments
    if first in (*_TARGETS, "targets") and second.startswith(_OUTPUTS) and second not in _TARGETS:
        raise UsageError(
            f"the loss {name}({first}, {second}) takes the targets first, as Keras calls it; here it is called as "
            f"loss(outputs, targets): swap them, or pass lambda outputs, targets: {name}(targets, outputs)",
            page="losses",
        )


def target_types(targets: Any, batch: tuple[int, ...]) -> Any:
    """Return what a user says of the targets, a type or a dict or tuple of them, for a batch.

    A type has a shape and a dtype: a `jax.ShapeDtypeStruct`, or an array of NumPy, JAX or PyTorch.

    Raises:
        UsageError: it says no type, one without a batch axis, or one of an element type that programs do not have.
    """
    from jax_frontend.dtypes import ir_dtype
    from jax_frontend.unsupported import NotImportable

    if isinstance(targets, Mapping) and targets:
        return {name: target_types(kind, batch) for name, kind in targets.items()}
    if isinstance(targets, list | tuple):
        return tuple(target_types(kind, batch) for kind in targets)
    if not (hasattr(targets, "shape") and hasattr(targets, "dtype")):
        raise UsageError(
            f"y= describes y, for example jax.ShapeDtypeStruct((1,), 'int32'); it is {targets!r}", page="losses"
        )
    if not targets.shape:
        raise UsageError(
            f"targets: the first axis is the batch, and {targets!r} has none: jax.ShapeDtypeStruct((1,), "
            f"{str(targets.dtype)!r}) is one number for each example",
            page="losses",
        )
    try:
        dtype = ir_dtype(str(targets.dtype).removeprefix("torch."))
    except NotImportable:
        raise UsageError(
            f"y= describes y: a program takes float32, int32 or bool, and it is {targets.dtype}", page="losses"
        ) from None
    return TensorType((*batch, *targets.shape[1:]), dtype)
