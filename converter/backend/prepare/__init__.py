"""Attention and early layers before lowering: what is read, what its mask lets through, a few rows at a time.

Masks that are known when a program is made save products, and so do few queries.
"""

from converter.backend.prepare.absorbed import absorb_projections
from converter.backend.prepare.blocks import attend_in_blocks
from converter.backend.prepare.groups import with_independent_groups

__all__ = ["absorb_projections", "attend_in_blocks", "with_groups_apart"]
