"""Export metadata: what a program says of the inference model in it."""
