"""Sizes that depend on values: known where these are constants, as of a mask that is a buffer."""

from __future__ import annotations

from typing import Any

import torch

from converter.frontends.torch.registry import NotImportable

_OPEN = ("a result whose size depends on values", "use torch.where, or multiply by the mask")


class Sizes:
    """Numbers for the symbols by which an export calls sizes that it could not know."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def learned(self, node: Any, made: Any) -> Any:
        """Return what was computed for a node; its sizes are those of the symbols that the node's type has alone."""
        value = node.meta.get("val")
        pairs = zip(value, made, strict=False) if isinstance(value, list | tuple) else [(value, made)]
        for kind, array in pairs:
            for size, number in zip(getattr(kind, "shape", ()), getattr(array, "shape", ()), strict=False):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    self._numbers.setdefault(size.node.expr, int(number))
        self.settle(node)
        return made

    def settle(self, node: Any) -> None:
        """Put numbers into the type of a node, where its sizes are known, or where the node makes none of them.

        Raises:
            NotImportable: a size depends on values.
        """
        value = node.meta.get("val")
        if isinstance(value, list | tuple):
            node.meta["val"] = [self._settled(node, part) for part in value]
        else:
            node.meta["val"] = self._settled(node, value)

    def _settled(self, node: Any, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not any(isinstance(size, torch.SymInt) for size in value.shape):
            return value
        shape = [self._number(size) for size in value.shape]
        if None not in shape:
            return torch.empty(shape, dtype=value.dtype, device="meta")
        if "unbacked_bindings" in node.meta:  # the rule says what there is
            return value
        raise NotImportable(*_OPEN)

    def _number(self, size: Any) -> int | None:
        if not isinstance(size, torch.SymInt):
            return int(size)
        found = size.node.expr.subs(self._numbers)
        return int(found) if found.is_Integer else None
