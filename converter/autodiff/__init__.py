"""Reverse-mode differentiation of graphs."""

import converter.autodiff.bounded  # registers the derivative of loops
from converter.autodiff.linear import is_linear
from converter.autodiff.reverse import differentiate, pull_back

__all__ = ["differentiate", "is_linear", "pull_back"]
