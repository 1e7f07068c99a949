"""Sparse backpropagation: which parameters train, and the graph in which only they do."""

from converter.passes.frozen_prefix import cut_frozen_prefix, has_frozen_prefix, join
from converter.training.schemes.adapt import Adapter, adapt
from converter.training.schemes.channels import Channels
from converter.training.schemes.lora import LoRA
from converter.training.schemes.named import is_scheme, update_scheme
from converter.training.schemes.plain import Plain, plain
from converter.training.schemes.scheme import SchemeRow, UpdateScheme
from converter.training.schemes.select import select
from converter.training.schemes.skip import SkipLoRA

__all__ = [
    "Adapter",
    "Channels",
    "LoRA",
    "Plain",
    "SchemeRow",
    "SkipLoRA",
    "UpdateScheme",
    "adapt",
    "cut_frozen_prefix",
    "has_frozen_prefix",
    "is_scheme",
    "join",
    "plain",
    "select",
    "update_scheme",
]
