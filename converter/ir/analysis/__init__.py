"""Analyses of whole graphs: whether they are sound, and how often their loops run."""
