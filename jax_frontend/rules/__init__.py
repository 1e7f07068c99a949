"""Import rules by subject; `jax_frontend.table` joins their tables."""
