"""Modules of flax.linen: their layers are found where they are called, however the model is wrapped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flax import linen as nn

from converter.ir.batch_norm import BatchNorm
from converter.support.errors import UsageError
from jax_frontend.dropout import dropout
from jax_frontend.findings import Findings
from jax_frontend.modules import Opened
from jax_frontend.modules.normalization import batch_norm


def open_linen(apply: Callable[..., Any] | None, params: Any, findings: Findings) -> Opened:
    """Return a function with the layers of linen that it calls in view; or a bound module as one.

    Raises:
        UsageError: the module has no variables.
    """
    if isinstance(params, nn.Module):
        if params.scope is None:
            kind = type(params).__name__
            raise UsageError(
                f"a linen module holds no weights: pocketune.Model({kind}(...).apply, variables, inputs=[...]), with "
                "what init gave, or bind them: module.bind(variables)",
                page="models",
            )
        module, params = params.unbind()
        apply = module.apply if apply is None else _on_bound(apply, module)
    assert apply is not None

    def call(params: Any, *inputs: Any) -> Any:
        with nn.intercept_methods(partial(_meet, findings)):
            return apply(params, *inputs)

    return Opened(call, params)


def _on_bound(apply: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """Return a function of a bound module as one of its variables."""

    def call(variables: Any, *inputs: Any) -> Any:
        return apply(module.bind(variables), *inputs)

    return call


def _meet(findings: Findings, call: Callable[..., Any], arguments: Any, options: Any, context: Any) -> Any:
    """Return what stands for a call of a layer's method."""
    layer = context.module
    if context.method_name != "__call__":
        return call(*arguments, **options)
    if isinstance(layer, nn.Dropout) and layer.rate:
        x = arguments[0] if arguments else options["inputs"]
        return dropout(x, float(layer.rate), tuple(layer.broadcast_dims))
    if isinstance(layer, nn.BatchNorm):
        by_averages = options.get("use_running_average", arguments[1] if len(arguments) > 1 else None)
        if layer.use_running_average if by_averages is None else by_averages:
            name = "/".join(layer.path)
            known = findings.batch_norms.get(name)
            if known is None or known.problem is None:  # it may be called again
                findings.batch_norms[name] = _batch_norm(name, layer, options.get("mask") is not None)
    elif isinstance(layer, nn.MultiHeadDotProductAttention) and layer.dropout_rate:
        findings.leave_out_attention_dropout("/".join(layer.path), layer.dropout_rate)
    return call(*arguments, **options)


def _batch_norm(name: str, layer: Any, is_masked: bool) -> BatchNorm:
    used = {"scale": layer.use_scale, "bias": layer.use_bias}
    weights = [f"params/{name}/{part}" for part, is_used in used.items() if is_used]
    return batch_norm(layer, name, f"batch_stats/{name}/mean", f"batch_stats/{name}/var", weights, is_masked)
