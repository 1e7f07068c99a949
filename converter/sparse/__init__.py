"""Sparse backpropagation: which parameters train, and the graph in which only they do."""

from converter.sparse.adapt import Adapter, adapt
from converter.sparse.channels import Channels
from converter.sparse.lora import LoRA
from converter.sparse.plain import Plain, plain
from converter.sparse.prefix import cut_frozen_prefix, has_frozen_prefix, join
from converter.sparse.scheme import Row, UpdateScheme, update_scheme
from converter.sparse.select import select

__all__ = [
    "Adapter",
    "Channels",
    "LoRA",
    "Plain",
    "Row",
    "UpdateScheme",
    "adapt",
    "cut_frozen_prefix",
    "has_frozen_prefix",
    "join",
    "plain",
    "select",
    "update_scheme",
]
