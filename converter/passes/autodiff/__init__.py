"""Reverse-mode differentiation of graphs."""

import converter.passes.autodiff.bounded  # registers the derivative of loops
from converter.passes.autodiff.linear import is_linear
from converter.passes.autodiff.reverse import differentiate, pull_back

__all__ = ["differentiate", "is_linear", "pull_back"]
