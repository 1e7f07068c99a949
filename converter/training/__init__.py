"""Training step construction: losses, optimizers, update schemes, and what changes with the batch."""
