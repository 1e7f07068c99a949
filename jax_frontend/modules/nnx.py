"""Modules of flax.nnx: their state is split off, and put back with every layer in its mode of inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from converter.ir.batch_norm import BatchNorm
from jax_frontend.dropout import dropout
from jax_frontend.findings import Findings
from jax_frontend.modules import Opened
from jax_frontend.modules.normalization import batch_norm


def open_nnx(apply: Callable[..., Any] | None, module: Any, findings: Findings) -> Opened:
    """Return the function and the state of a module, which itself stays as it is."""
    definition, state = nnx.split(module)

    def call(state: Any, *inputs: Any) -> Any:
        merged = nnx.merge(definition, state)
        merged.eval()
        _mark(merged, findings)
        return merged(*inputs) if apply is None else apply(merged, *inputs)

    return Opened(call, state)


def _mark(module: Any, findings: Findings) -> None:
    """Lets the layers of a module that act otherwise in training say so as they are called."""
    for path, layer in list(nnx.iter_modules(module)):
        name = "/".join(map(str, path))
        if isinstance(layer, nnx.Dropout) and layer.rate:
            _become(layer, _dropout(layer, name))
        elif isinstance(layer, nnx.BatchNorm):
            findings.batch_norms[name] = _batch_norm(name, layer)
            _become(layer, _told_of_masks(layer, name, findings))
        elif isinstance(layer, nnx.MultiHeadAttention) and layer.dropout_rate:
            findings.leave_out_attention_dropout(name, layer.dropout_rate)


def _become(layer: Any, kind: type) -> None:
    """Changes what a layer is; nnx splits and merges it, in a scan or a remat, as what it is then."""
    object.__setattr__(layer, "__class__", kind)


def _dropout(layer: Any, name: str) -> type:
    rate, shared = float(layer.rate), tuple(layer.broadcast_dims)

    class Dropout(type(layer)):  # type: ignore[misc]
        """Returns x, marked."""

        def __call__(self, inputs: Any, *arguments: Any, **options: Any) -> Any:
            with jax.named_scope(name or "Dropout"):  # as linen calls its layers
                return dropout(inputs, rate, shared)

    return Dropout


def _told_of_masks(layer: Any, name: str, findings: Findings) -> type:
    class BatchNormalization(type(layer)):  # type: ignore[misc]
        """Calls the layer; statistics of the batch under a mask are not known to the step."""

        def __call__(self, x: Any, *arguments: Any, mask: Any = None, **options: Any) -> Any:
            if mask is not None:
                findings.batch_norms[name] = _batch_norm(name, layer, is_masked=True)
            return super().__call__(x, *arguments, mask=mask, **options)

    return BatchNormalization


def _batch_norm(name: str, layer: Any, is_masked: bool = False) -> BatchNorm:
    prefix = f"{name}/" if name else ""
    weights = [f"{prefix}{part}" for part in ("scale", "bias") if getattr(layer, part) is not None]
    return batch_norm(layer, name or "BatchNorm", f"{prefix}mean", f"{prefix}var", weights, is_masked)
