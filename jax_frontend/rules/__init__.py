"""Import rules by subject. Importing this package fills the table `jax_frontend.registry.RULES`."""

from jax_frontend.rules import control, conv, elementwise, indexing, linear, reduction, shape, window
