"""Modules of Flax (nnx, linen) and Equinox as functions of their parameters.

A module is traced as it infers; what its layers do in training alone is marked for the step (dropout), known by name
(batch normalization) or noted. The libraries are never imported here: whose module it is has imported them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from converter.support.libraries import is_instance, loaded
from jax_frontend.findings import Findings


class Opened(NamedTuple):
    """A model as a function.

    Attributes:
        apply: `apply(params, *inputs) -> outputs`; what it meets while it is traced goes to the findings.
        params: a pytree of arrays.
    """

    apply: Callable[..., Any]
    params: Any


def is_module(candidate: Any) -> bool:
    """Return whether an object is a module of nnx, linen or Equinox, which holds its layers itself."""
    return any(is_instance(candidate, library, "Module") for library in ("flax.nnx", "flax.linen", "equinox"))


def open_module(apply: Callable[..., Any] | None, params: Any, findings: Findings) -> Opened:
    """Return the function and the parameters of a model.

    Args:
        apply: a function `(params, *inputs)`; a method `apply` of a linen module; None to call `params`, a module.
        params: a pytree of arrays, or a module that holds them.
        findings: takes what is found while the function is traced.

    Raises:
        UsageError: a linen module has no variables.
    """
    if (nnx := loaded("flax.nnx")) is not None and isinstance(params, nnx.Module):
        from jax_frontend.modules.nnx import open_nnx

        return open_nnx(apply, params, findings)
    if (equinox := loaded("equinox")) is not None and isinstance(params, equinox.Module):
        from jax_frontend.modules.equinox import open_equinox

        return open_equinox(apply, params)
    if (linen := loaded("flax.linen")) is not None:
        from jax_frontend.modules.linen import open_linen

        if isinstance(params, linen.Module) or apply is not None:
            return open_linen(apply, params, findings)
    assert apply is not None
    return Opened(apply, params)
