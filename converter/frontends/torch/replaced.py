"""Functions of PyTorch whose own code looks at numbers, which a trace has not, as others of the same values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def gaussian_nll(
    x: torch.Tensor, y: torch.Tensor, variance: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> torch.Tensor:
    """Return what `functional.gaussian_nll_loss` does; the variances are not checked for numbers below 0."""
    if not isinstance(variance, torch.Tensor):
        variance = torch.full_like(x, float(variance))
    if variance.shape == x.shape[:-1] and variance.dim() < x.dim():
        variance = variance.unsqueeze(-1)
    # At least eps, with the slope of what it was: PyTorch raises it under no_grad.
    held = variance.detach().clamp(min=eps) + (variance - variance.detach())
    loss = 0.5 * (torch.log(held) + (x - y) ** 2 / held)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def given_causality(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Return whether a caller of `nn.TransformerEncoder` says that a mask is causal; its numbers are not looked at."""
    return is_causal is True


REPLACED: dict[Any, Callable[..., Any]] = {functional.gaussian_nll_loss: gaussian_nll}
