"""Choices of trained weights by the structure of a model; their names are in `named.py`."""
