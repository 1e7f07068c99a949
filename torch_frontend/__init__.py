"""PyTorch front end: modules and exported programs, computed with JAX and traced to the IR by that front end."""

# ruff: noqa: E402 (what is missing is said before it is imported)
from converter.support.extras import require

require("torch", "a PyTorch module")

from torch_frontend.importer import Imported, import_torch
from torch_frontend.losses import loss_of
from torch_frontend.model import Model
from torch_frontend.optimizers import is_optimizer, optimized, read_optimizer
from torch_frontend.recognition import is_loss

__all__ = ["Imported", "Model", "import_torch", "is_loss", "is_optimizer", "loss_of", "optimized", "read_optimizer"]
