"""Optimizers of `torch.optim`, read with their parameter groups, and their schedulers as functions of the step."""

from converter.frontends.torch.optimizers.reading import is_optimizer, optimized, read_optimizer

__all__ = ["is_optimizer", "optimized", "read_optimizer"]
