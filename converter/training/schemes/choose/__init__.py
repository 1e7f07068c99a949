"""Choices of what trains, by the structure of a model; the names that stand for them are in `named.py`."""
