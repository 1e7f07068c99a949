"""Derivative of a while loop that ends by its data, but after a known number of steps at the latest.

It becomes a loop of that number of steps, of which those after its end hand on what they get: `lax.while_loop` has no
derivative in JAX, and this is how one writes a loop there that has one. As in `jnp.where`, a step that is not taken
must have a finite derivative.
"""

from __future__ import annotations

from collections.abc import Sequence

from converter.ir import Op, guarded, ops
from converter.passes.autodiff.reverse import RESIDUALS
from converter.passes.autodiff.scan import differentiable


def of_bounded_length(loop: ops.While, active: Sequence[bool], wanted: Sequence[bool], infinite: bool) -> Op:
    """Return the loop as a Scan that keeps what its derivative needs; the arguments are those of `RESIDUALS`."""
    if loop.most is None:
        return loop
    scan = ops.Scan(guarded(loop.condition, loop.body), loop.most, loop.carried)
    return differentiable(scan, active, wanted, infinite)


RESIDUALS[ops.While] = of_bounded_length
