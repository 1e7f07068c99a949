"""Idiom recognition: what front ends spell out becomes the op that it means."""
