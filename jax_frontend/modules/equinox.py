"""Modules of Equinox: written for one example, called for a batch of them, in their mode of inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox
import jax

from jax_frontend.dropout import dropout
from jax_frontend.modules import Opened


def open_equinox(apply: Callable[..., Any] | None, module: Any) -> Opened:
    """Return the function of a module, which is its own tree of parameters.

    Without a function of the user's the module is called for each example by `jax.vmap`, as Equinox does.
    """

    def call(module: Any, *inputs: Any) -> Any:
        return jax.vmap(module)(*inputs) if apply is None else apply(module, *inputs)

    return Opened(call, _in_inference(module))


def _in_inference(module: Any) -> Any:
    """Return the module with a mark for the step in the place of each dropout."""

    def is_dropout(node: Any) -> bool:
        return isinstance(node, equinox.nn.Dropout)

    quiet = equinox.nn.inference_mode(module)
    return jax.tree_util.tree_map(
        lambda node: _Marked(float(node.p)) if is_dropout(node) else node, quiet, is_leaf=is_dropout
    )


class _Marked:
    """Dropout as the step knows it."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, x: Any, *, key: Any = None, inference: bool | None = None) -> Any:
        """Returns x, marked; a key and a mode of the user's own are not needed."""
        return dropout(x, self.rate)
