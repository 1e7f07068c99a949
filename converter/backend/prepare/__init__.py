"""Rewrites of attention and early layers before lowering: values that are read or visible, a few rows at a time.

Masks that are known when a program is made save products, and so do few queries.
"""

from converter.backend.prepare.absorbed import absorb_projections
from converter.backend.prepare.blocks import attend_in_blocks
from converter.backend.prepare.groups import with_independent_groups

__all__ = ["absorb_projections", "attend_in_blocks", "with_groups_apart"]
