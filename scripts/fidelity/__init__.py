"""How far programs are from JAX's own training, in each runtime."""
