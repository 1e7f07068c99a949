"""Export metadata: a program's description of the inference model in it."""
