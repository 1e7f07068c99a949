"""Losses of PyTorch: recognised, called as PyTorch does, and traced."""
