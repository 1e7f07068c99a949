"""Cost model of a training step on a target."""
