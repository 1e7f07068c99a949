"""Canonicalization and specialization: the two sequences of passes that every graph goes through."""

from __future__ import annotations

from converter.ir import Graph
from converter.ir.rewrite import eliminate_dead_code
from converter.passes.common_subexpressions import merge_common_subexpressions
from converter.passes.fold_affine import fold_affine
from converter.passes.fold_constants import fold_constants
from converter.passes.fold_numbers import fold_numbers
from converter.passes.loops import simplify_loops
from converter.passes.simplify import simplify
from converter.passes.slice_propagation import propagate_slices


def canonicalize(graph: Graph) -> Graph:
    """Return a graph with one form of each thing: constants folded, neutral ops gone."""
    return simplify(fold_constants(simplify_loops(eliminate_dead_code(graph))))


def specialize(graph: Graph) -> Graph:
    """Uses that frozen weights are constants: folds them, scales and shifts into convolutions.

    What is read in part is computed in part, what is not read is dropped.
    """
    # Merging before folding: a shared weight behind the same scale is stored once.
    closed = simplify_loops(fold_constants(graph))
    folded = fold_constants(propagate_slices(merge_common_subexpressions(fold_affine(closed))))
    return merge_common_subexpressions(fold_numbers(simplify(folded)))
