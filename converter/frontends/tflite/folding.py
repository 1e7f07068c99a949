"""Folding of untrusted constants: a few numbers in a file do not become many in memory."""

from __future__ import annotations

from converter.ir import Builder, Op, TensorType, Value
from converter.ir.folding import FoldingBuilder
from converter.support.errors import NotImportable

#: So many numbers may be computed of constants, whatever these are; and of many so many times as many.
_MANY, _TIMES = 1 << 20, 4
#: So many in all of a file.
_MOST = 1 << 25


class CautiousBuilder(FoldingBuilder):
    """A FoldingBuilder that refuses to make far more constants than it is given.

    Args:
        outer: the builder of the graph in which one stands that this builds; what both make is limited together.
    """

    def __init__(self, outer: CautiousBuilder | None = None) -> None:
        super().__init__()
        self._made: list[int] = [0] if outer is None else outer._made

    def _folds(self, op: Op, values: list[Value]) -> bool:
        if not super()._folds(op, values):
            return False
        made = op.infer(*(v.type for v in values))
        if isinstance(made, TensorType):
            given = sum(v.type.size for v in values)
            self._made[0] += made.size
            if made.size > _MANY + _TIMES * given or self._made[0] > _MOST:
                raise NotImportable(f"{op.name} that makes {made.size} numbers of {given}")
        return True


def checked_size(b: Builder, what: str, size: int) -> None:
    """Raise NotImportable where a constant of a rule, or all of them, would have more numbers than any file needs."""
    assert isinstance(b, CautiousBuilder)
    b._made[0] += size
    if b._made[0] > _MOST:
        raise NotImportable(f"{what} of {size} numbers")
