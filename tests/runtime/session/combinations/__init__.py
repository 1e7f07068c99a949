"""Random combinations of what a session does with classes, beside JAX, optax and scikit-learn."""
