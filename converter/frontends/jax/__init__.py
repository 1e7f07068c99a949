"""JAX as a front end: functions of arrays, modules of Flax and Equinox. What traces them is `jax_frontend`."""
