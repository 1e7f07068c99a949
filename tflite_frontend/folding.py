"""Folding of what strangers wrote: a few numbers in a file do not become many in memory."""

from __future__ import annotations

from converter.ir import Op, TensorType, Value
from converter.ir.folding import FoldingBuilder
from tflite_frontend.registry import NotImportable

#: So many numbers may be computed of constants, whatever these are; and of many so many times as many.
_MANY, _TIMES = 1 << 20, 4


class CautiousBuilder(FoldingBuilder):
    """A FoldingBuilder that refuses to make far more constants than it is given."""

    def _folds(self, op: Op, values: list[Value]) -> bool:
        if not super()._folds(op, values):
            return False
        made = op.infer(*(v.type for v in values))
        if isinstance(made, TensorType) and made.size > _MANY + _TIMES * sum(v.type.size for v in values):
            raise NotImportable(f"{op.name} that makes {made.size} numbers of {sum(v.type.size for v in values)}")
        return True


def checked_size(what: str, size: int) -> None:
    """Raise NotImportable where a constant of a rule would have more numbers than any file needs."""
    if size > 1 << 26:
        raise NotImportable(f"{what} of {size} numbers")
