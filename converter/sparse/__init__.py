"""Sparse backpropagation: which parameters train, and the graph in which only they do."""

from converter.sparse.prefix import cut_frozen_prefix, has_frozen_prefix, join
from converter.sparse.scheme import Row, UpdateScheme, update_scheme
from converter.sparse.select import select

__all__ = ["Row", "UpdateScheme", "cut_frozen_prefix", "has_frozen_prefix", "join", "select", "update_scheme"]
