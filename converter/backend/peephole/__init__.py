"""Peephole rewriting of lowered graphs, a few operators at a time."""
