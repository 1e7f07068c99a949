"""Declared size of a file, counted before it is read: shared tables let few bytes declare very much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from converter.program.flatbuffer.schema import generated

#: So many tables, numbers and characters a file may stand for, at most. The largest that phones load have a tenth.
_MOST_TABLES, _MOST_NUMBERS = 1 << 17, 1 << 24
#: So many operators, those counted again that operators run.
MOST_OPERATORS = 1 << 14


class _Scale:
    """Counts tables, and the numbers and characters in them. Raises ValueError where there are too many."""

    def __init__(self) -> None:
        self._tables, self._numbers = 0, 0

    def tables(self, *counts: int) -> None:
        self._tables += sum(counts)
        if self._tables > _MOST_TABLES:
            raise ValueError(f"more than {_MOST_TABLES} tables")

    def numbers(self, *counts: int) -> None:
        self._numbers += sum(counts)
        if self._numbers > _MOST_NUMBERS:
            raise ValueError(f"more than {_MOST_NUMBERS} numbers besides those of constants")


def check_declared_size(model: Any) -> None:
    """Raise ValueError where a file (`Model`) stands for far more than any that is meant.

    The data of constants, which nobody copies, is not counted.
    """
    scale = _Scale()
    scale.tables(model.OperatorCodesLength(), model.SubgraphsLength(), model.BuffersLength())
    scale.tables(model.MetadataLength(), model.SignatureDefsLength())
    for i in range(model.OperatorCodesLength()):
        scale.numbers(_length(model.OperatorCodes(i).CustomCode()))
    for i in range(model.MetadataLength()):
        scale.numbers(_length(model.Metadata(i).Name()))
    for i in range(model.SignatureDefsLength()):
        _signature(scale, model.SignatureDefs(i))
    for i in range(model.SubgraphsLength()):
        graph = model.Subgraphs(i)
        scale.tables(graph.TensorsLength(), graph.OperatorsLength(), graph.InputsLength(), graph.OutputsLength())
        scale.numbers(_length(graph.Name()))
        if graph.OperatorsLength() > MOST_OPERATORS:
            raise ValueError(f"more than {MOST_OPERATORS} operators")
        for j in range(graph.TensorsLength()):
            _tensor(scale, graph.Tensors(j))
        for j in range(graph.OperatorsLength()):
            _operator(scale, graph.Operators(j))


def _signature(scale: _Scale, signature: Any) -> None:
    scale.numbers(_length(signature.SignatureKey()))
    for of in ("Inputs", "Outputs"):
        count = getattr(signature, f"{of}Length")()
        scale.tables(count)
        for i in range(count):
            scale.numbers(_length(getattr(signature, of)(i).Name()))


def _tensor(scale: _Scale, tensor: Any) -> None:
    scale.numbers(tensor.ShapeLength(), tensor.ShapeSignatureLength(), _length(tensor.Name()))
    if (said := tensor.Quantization()) is not None:
        scale.numbers(said.ScaleLength(), said.ZeroPointLength(), said.MinLength(), said.MaxLength())
    if (sparsity := tensor.Sparsity()) is not None:
        count = sparsity.DimMetadataLength()
        scale.tables(count)
        levels = generated.SparsityParametersT.InitFromObj(sparsity).dimMetadata or () if count else ()
        vectors = [part.values for level in levels for part in (level.arraySegments, level.arrayIndices) if part]
        scale.numbers(sparsity.TraversalOrderLength(), sparsity.BlockMapLength(), *map(_length, vectors))


def _operator(scale: _Scale, operator: Any) -> None:
    scale.numbers(operator.InputsLength(), operator.OutputsLength(), operator.CustomOptionsLength())
    scale.numbers(operator.MutatingVariableInputsLength(), operator.IntermediatesLength())
    if operator.BuiltinOptionsType() or operator.BuiltinOptions2Type():
        said = generated.OperatorT.InitFromObj(operator)
        fields: Iterable[Any] = (v for o in (said.builtinOptions, said.builtinOptions2) if o for v in vars(o).values())
        scale.numbers(*map(_length, fields))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, bytes | str | list | np.ndarray) else 0
