"""An untrusted TFLite file: its tensors and operators, checked before anything is computed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from converter.frontends.tflite.reading.declared_size import MOST_OPERATORS, check_declared_size
from converter.frontends.tflite.reading.quantization import quantization_of
from converter.frontends.tflite.reading.sparse import densified
from converter.ir import Quantization
from converter.program.flatbuffer.associated import associated_files
from converter.program.flatbuffer.damage import DAMAGED
from converter.program.flatbuffer.operators import kind_of
from converter.program.flatbuffer.parts import bodies_of
from converter.program.flatbuffer.schema import FILE_IDENTIFIER, buffer_data, generated, unpacked
from converter.support.errors import UsageError
from converter.support.files import open_regular

#: No file that a phone loads is larger.
MAX_BYTES = 2**31 - 1
#: No tensor has more axes, and no shape more numbers.
_MOST_AXES, _MOST_NUMBERS = 8, 1 << 31
#: Constants may share bytes of the file, and sparse ones have more: so many times all of it, and so many, at most.
_TIMES, _BYTES = 4, 1 << 24
#: No loop stands in more loops.
_MOST_DEEP = 8
_DTYPES: dict[int, np.dtype] = {
    generated.TensorType.FLOAT32: np.dtype(np.float32),
    generated.TensorType.FLOAT16: np.dtype(np.float16),
    generated.TensorType.INT32: np.dtype(np.int32),
    generated.TensorType.INT64: np.dtype(np.int64),
    generated.TensorType.INT16: np.dtype(np.int16),
    generated.TensorType.INT8: np.dtype(np.int8),
    generated.TensorType.INT4: np.dtype(np.int8),
    generated.TensorType.UINT8: np.dtype(np.uint8),
    generated.TensorType.BOOL: np.dtype(np.bool_),
    generated.TensorType.COMPLEX64: np.dtype(np.complex64),
}
_TYPE_NAMES = {value: name for name, value in vars(generated.TensorType).items() if isinstance(value, int)}


@dataclass(frozen=True)
class FileTensor:
    """A tensor of the file.

    Attributes:
        name: as the converter of the author named it.
        shape: as the file says it.
        signature: the same with -1 where an axis is open.
        dtype: NumPy's type, int8 for numbers of 4 bits, None for one that there is none of here.
        kind: the file's name of the type.
        array: what it holds where it is a constant.
        quantization: how its integers stand for real numbers; None where they do not.
        is_variable: whether it keeps what it holds from one call to the next.
    """

    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    dtype: np.dtype | None
    kind: str
    array: np.ndarray | None
    quantization: Quantization | None = None
    is_variable: bool = False

    @property
    def is_quantized(self) -> bool:
        """Whether its integers stand for real numbers."""
        return self.quantization is not None


@dataclass(frozen=True)
class FileOperator:
    """An operator of the file.

    Attributes:
        kind: the builtin's name; the name of a custom operator.
        number: its place in the file.
        inputs: numbers of its operands; -1 is one that is left out.
        outputs: numbers of its results.
        options: the fields of its options table, in the schema's spelling.
        version: the version of the operator that the file asks for.
        is_custom: whether the runtime knows it by its name alone.
        table: all that the file says of it (`OperatorT`).
    """

    kind: str
    number: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    is_custom: bool = False
    table: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class Body:
    """A subgraph that operators of another run.

    Attributes:
        tensors: all of it.
        operators: in order.
        inputs: numbers of the tensors that it is given.
        outputs: of those that it gives.
        size: how many operators run, in those that they run too.
    """

    tensors: Sequence[FileTensor]
    operators: Sequence[FileOperator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class File:
    """One signature of a file.

    Attributes:
        path: where it lies.
        tensors: all of its subgraph.
        operators: in order.
        inputs: name and tensor of each input.
        outputs: name and tensor of each output.
        tables: the whole file, and the subgraph of the signature, as flatbuffers has them.
        folders: what the names of all layers begin with, which says nothing.
        subgraph: the number of the subgraph.
        associated: files that are appended, by name (TFLite Metadata has labels so).
        metadata: TFLite Metadata to be written, where the file has none; empty for none.
    """

    path: str
    tensors: Sequence[FileTensor]
    operators: Sequence[FileOperator]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    tables: tuple[Any, Any] = field(repr=False)
    folders: str = ""
    subgraph: int = 0
    associated: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    metadata: bytes = field(default=b"", repr=False)
    _bodies: dict[int, Body] = field(default_factory=dict, repr=False)
    _opening: list[int] = field(default_factory=list, repr=False)

    @property
    def has_float16(self) -> bool:
        """Whether operators read float16 numbers."""
        return any(self.tensors[i].kind == "FLOAT16" for o in self.operators for i in o.inputs if i >= 0)

    def layer(self, number: int) -> str:
        """Return the layer that a tensor belongs to, by its name."""
        return self.layer_of(self.tensors[number])

    def layer_of(self, tensor: FileTensor) -> str:
        """Return the layer that a tensor of any subgraph belongs to, by its name."""
        return layer_of(tensor.name).removeprefix(self.folders)

    def within(self, body: Body) -> File:
        """Return the file as an operator sees it that stands in a subgraph that others run."""
        return replace(self, tensors=body.tensors, operators=body.operators)

    def body(self, number: int) -> Body:
        """Return a subgraph that operators run. Raise a DAMAGED error where it is missing, or runs itself."""
        model, _ = self.tables
        if number not in self._bodies:
            if not 0 <= number < model.SubgraphsLength() or number in self._opening or len(self._opening) > _MOST_DEEP:
                raise ValueError("subgraph")
            self._opening.append(number)
            graph = model.Subgraphs(number)
            tensors, operators = _contents(model, graph)
            inputs, outputs = (tuple(getattr(graph, f"{of}AsNumpy")().tolist()) for of in ("Inputs", "Outputs"))
            if not all(0 <= i < len(tensors) for i in (*inputs, *outputs)):
                raise IndexError("tensor")
            self._bodies[number] = Body(tensors, operators, inputs, outputs, self.size(operators))
            self._opening.pop()
        return self._bodies[number]

    def size(self, operators: Iterable[FileOperator]) -> int:
        """Return how many operators run, those in subgraphs too. Raise a DAMAGED error where that is no net."""
        size = 0
        for operator in operators:
            size += 1 + sum(self.body(number).size for number in bodies_of(operator.table).values())
            if size > MOST_OPERATORS:
                raise ValueError(f"more than {MOST_OPERATORS} operators that run each other")
        return size


def read_file(path: str | os.PathLike, signature: str | None = None) -> File:
    """Read a TFLite file.

    Args:
        path: of the file.
        signature: which of its signatures; None: the only one, or the first subgraph.

    Raises:
        UsageError: it cannot be read, is no TFLite file, is damaged, or has no such signature.
    """
    data = _contents_of(path := Path(path))
    with reading(str(path)):
        model = generated.Model.GetRootAs(data, 0)
        check_declared_size(model)
        _check_variables(path, model)
        return replace(_parsed(str(path), model, signature), associated=associated_files(data))


def signatures_of(path: str | os.PathLike) -> list[str]:
    """Return the names of a file's signatures. Raise UsageError where it cannot be read or is no TFLite file."""
    data = _contents_of(Path(path))
    with reading(str(path)):
        return list(_signatures(generated.Model.GetRootAs(data, 0)))


def _contents_of(path: Path) -> bytes:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", page="tflite-files") from None
    if len(data) > MAX_BYTES or data[4:8] != FILE_IDENTIFIER:
        raise UsageError(f"{path} is no TFLite file", page="tflite-files")
    return data


def _signatures(model: Any) -> dict[str, Any]:
    """Return the signatures by name."""
    found = (model.SignatureDefs(i) for i in range(model.SignatureDefsLength()))
    return {signature.SignatureKey().decode(): signature for signature in found}


def _check_variables(path: Path, model: Any) -> None:
    """Raise UsageError where a variable has contents: LiteRT opens no such file, whichever subgraph it stands in."""
    for graph in (model.Subgraphs(i) for i in range(model.SubgraphsLength())):
        for tensor in (graph.Tensors(i) for i in range(graph.TensorsLength())):
            if tensor.IsVariable() and buffer_data(model._tab.Bytes, model.Buffers(tensor.Buffer())).size:
                name = (tensor.Name() or b"").decode(errors="replace")
                raise UsageError(
                    f"{path}: the tensor {name} is a variable and has contents, which LiteRT reads from no file: "
                    "convert the model again",
                    page="tflite-files",
                )


def _parsed(path: str, model: Any, asked: str | None) -> File:
    signatures = _signatures(model)
    if asked is not None and asked not in signatures:
        raise UsageError(
            f"{path} has no signature {asked!r}: it has {', '.join(signatures) or 'none'}", page="tflite-files"
        )
    if asked is None and len(signatures) > 1:
        raise UsageError(
            f"{path} has several signatures, {', '.join(signatures)}: name one (signature=)", page="tflite-files"
        )
    chosen = signatures.get(asked) if asked is not None else next(iter(signatures.values()), None)
    subgraph = chosen.SubgraphIndex() if chosen is not None else 0
    graph = model.Subgraphs(subgraph)
    tensors, operators = _contents(model, graph)
    inputs, outputs = (_named(chosen, graph, tensors, of) for of in ("Inputs", "Outputs"))
    if not inputs or not outputs:
        raise UsageError(f"{path} has no inputs or no outputs", page="tflite-files")
    weights = [t for t in tensors if t.array is not None and len(t.shape) > 1 and t.kind not in ("INT32", "INT64")]
    folders = common_path([layer_of(t.name) for t in weights])
    return File(path, tensors, operators, inputs, outputs, (model, graph), folders, subgraph)


def _contents(model: Any, graph: Any) -> tuple[list[FileTensor], list[FileOperator]]:
    """Return tensors and operators of a subgraph."""
    tensors, left = list[FileTensor](), _TIMES * len(model._tab.Bytes) + _BYTES
    for i in range(graph.TensorsLength()):
        tensors.append(_tensor(model, graph.Tensors(i)))
        left -= 0 if (array := tensors[-1].array) is None else array.nbytes
        if left < 0:
            raise ValueError("constants that overlap")
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    operators = [_operator(codes, graph.Operators(i), i, len(tensors)) for i in range(graph.OperatorsLength())]
    _check_order(operators)
    return tensors, operators


def _check_order(operators: Sequence[FileOperator]) -> None:
    """Raise ValueError where an operator reads what it or a later one makes, or where two make the same tensor."""
    late = Counter(number for operator in operators for number in operator.outputs)
    if any(count > 1 for count in late.values()):
        raise ValueError("a tensor that is made twice")
    for operator in operators:
        if any(number in late for number in operator.inputs):
            raise ValueError("an operator that reads what is made later")
        for number in operator.outputs:
            del late[number]


def _named(signature: Any, graph: Any, tensors: Sequence[FileTensor], of: str) -> dict[str, int]:
    """Return inputs or outputs in the subgraph's order, by the signature's names, else by those of tensors."""
    numbers = [getattr(graph, of)(i) for i in range(getattr(graph, f"{of}Length")())]
    names = {number: tensors[number].name for number in numbers}
    if signature is not None:
        maps = [getattr(signature, of)(i) for i in range(getattr(signature, f"{of}Length")())]
        names |= {entry.TensorIndex(): entry.Name().decode() for entry in maps}
    alike = Counter(names[number] for number in numbers)
    return {names[n] if alike[names[n]] == 1 else f"{names[n]}_{n}": n for n in numbers}


def _tensor(model: Any, tensor: Any) -> FileTensor:
    shape = tuple(int(tensor.Shape(i)) for i in range(tensor.ShapeLength()))
    signature = shape
    if tensor.ShapeSignatureLength() == len(shape) and shape:
        signature = tuple(int(tensor.ShapeSignature(i)) for i in range(len(shape)))
    if len(shape) > _MOST_AXES or any(size < -1 for size in (*shape, *signature)):
        raise ValueError("shape")
    if np.prod([max(size, 1) for size in shape], dtype=float) > _MOST_NUMBERS:
        raise ValueError("size")
    dtype: np.dtype | None = _DTYPES.get(tensor.Type())
    array: np.ndarray | None = None
    data = buffer_data(model._tab.Bytes, model.Buffers(tensor.Buffer()))
    if data.size and dtype is not None:
        is_packed = tensor.Type() == generated.TensorType.INT4
        size = prod(shape)
        stored = unpacked(data, size) if is_packed else data.view(dtype.newbyteorder("<"))
        sparsity = tensor.Sparsity()
        array = stored.reshape(shape) if sparsity is None else densified(sparsity, shape, stored)
    name = (tensor.Name() or b"").decode(errors="replace")
    kind = _TYPE_NAMES.get(tensor.Type(), "?")
    quantization = quantization_of(name, tensor.Quantization(), shape, dtype)
    return FileTensor(name, shape, signature, dtype, kind, array, quantization, bool(tensor.IsVariable()))


def _operator(codes: Sequence[Any], table: Any, number: int, tensors: int) -> FileOperator:
    inputs = tuple(int(table.Inputs(i)) for i in range(table.InputsLength()))
    outputs = tuple(int(table.Outputs(i)) for i in range(table.OutputsLength()))
    if not all(-1 <= i < tensors for i in inputs) or not all(0 <= i < tensors for i in outputs):
        raise IndexError("operand")
    said = generated.OperatorT.InitFromObj(table)
    options = said.builtinOptions if said.builtinOptions is not None else said.builtinOptions2
    fields = {} if options is None else dict(vars(options))
    if said.customOptions is not None:
        fields["custom"] = bytes(bytearray(said.customOptions))
    code = codes[table.OpcodeIndex()]
    kind, is_custom = kind_of(code), code.CustomCode() is not None
    if is_custom and kind in vars(generated.BuiltinOperator):
        raise ValueError("a custom operator that is called like a builtin")
    return FileOperator(kind, number, inputs, outputs, fields, code.Version(), is_custom, said)


def layer_of(name: str) -> str:
    """Return the layer that a tensor's name speaks of: `net/conv_1/Conv2D;net/bn/mul` is `net/conv_1`.

    Where a normalization was folded into what stands before it, the name begins with the normalization.
    """
    parts = [part.split(":")[0].strip("/") for part in name.split(";")]
    folded = "FusedBatchNorm" in parts[0] and len(parts) > 1
    words = [word for word in parts[folded].split("/") if word]
    return "/".join(words[:-1] or words) or "layer"


def common_path(names: Sequence[str]) -> str:
    """Return the folders that all layers lie in, with the slash after them; empty for none."""
    shared: list[str] = []
    for folders in zip(*(name.split("/")[:-1] for name in names), strict=False):
        if len(set(folders)) > 1:
            break
        shared.append(f"{folders[0]}/")
    return "".join(shared)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise UsageError for what damaged or hostile files raise where they are read late."""
    try:
        yield
    except DAMAGED as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UsageError(
            f"{path} is damaged, or has a form that is not known here ({said}): copy it again, or convert it again",
            page="tflite-files",
        ) from None


def needed(file: File, wanted: Collection[int]) -> list[FileOperator]:
    """Return the operators that some tensors depend on, in order."""
    missing, kept = set(wanted), []
    for operator in reversed(file.operators):
        if not missing.isdisjoint(operator.outputs):
            missing.update(i for i in operator.inputs if i >= 0)
            kept.append(operator)
    return kept[::-1]
