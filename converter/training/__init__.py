"""What a training step is made of: losses, optimizers, update schemes, and what changes with the batch."""
