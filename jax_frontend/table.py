"""Import rule table: the rule of each jaxpr primitive."""

from converter.support.registry import collect
from jax_frontend import dropout, lookup, mask
from jax_frontend.rules import (
    bits,
    control,
    conv,
    elementwise,
    functions,
    indexing,
    linear,
    ordering,
    random,
    reduction,
    scatter,
    shape,
    threefry,
    window,
)

RULES = collect(
    bits.rule,
    control.rule,
    conv.rule,
    dropout.rule,
    elementwise.rule,
    functions.rule,
    indexing.rule,
    linear.rule,
    lookup.rule,
    mask.rule,
    ordering.rule,
    random.rule,
    reduction.rule,
    scatter.rule,
    shape.rule,
    threefry.rule,
    window.rule,
)
