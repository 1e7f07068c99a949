"""Attention that computes what its mask lets through: masks that are known when a program is made save products."""

from converter.attention.blocks import attend_in_blocks

__all__ = ["attend_in_blocks"]
