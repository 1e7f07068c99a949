"""Graph passes, each a pure function from Graph to Graph, one a file."""

from converter.ir.rewrite import eliminate_dead_code, map_bodies
from converter.passes.absorb_layout import absorb_layout
from converter.passes.common_subexpressions import merge_common_subexpressions
from converter.passes.fold_affine import fold_affine
from converter.passes.fold_constants import fold_constants
from converter.passes.fold_numbers import fold_numbers
from converter.passes.loops import simplify_loops
from converter.passes.outputs_first import outputs_first
from converter.passes.simplify import simplify
from converter.passes.slice_propagation import propagate_slices
from converter.passes.split_loops import split_loops

__all__ = [
    "absorb_layout",
    "eliminate_dead_code",
    "fold_affine",
    "fold_constants",
    "fold_numbers",
    "map_bodies",
    "merge_common_subexpressions",
    "propagate_slices",
    "outputs_first",
    "simplify",
    "simplify_loops",
    "split_loops",
]
