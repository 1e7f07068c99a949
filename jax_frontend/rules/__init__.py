"""Import rules by subject. Importing this package fills the table `jax_frontend.registry.RULES`."""

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
