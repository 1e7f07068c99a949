"""PyTorch front end: modules and exported programs, computed with JAX and traced to the IR by that front end."""

# ruff: noqa: E402 (what is missing is said before it is imported)
from converter.support.extras import require

require("torch", "a PyTorch module")

from converter.frontends.torch.importer import import_torch
from converter.frontends.torch.losses.recognition import is_loss
from converter.frontends.torch.losses.taken import loss_of
from converter.frontends.torch.model import Model
from converter.frontends.torch.optimizers import is_optimizer, optimized, read_optimizer

__all__ = ["Model", "import_torch", "is_loss", "is_optimizer", "loss_of", "optimized", "read_optimizer"]
