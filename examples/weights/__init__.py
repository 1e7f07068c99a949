"""Weights of the examples: from files of their own formats, or random ones."""
