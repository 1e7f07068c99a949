"""`.pt2` files: exported programs, read without unpickling anything.

`torch.export.load` unpickles weights, constants and sample inputs that are stored so, evaluates the guards and the
expressions of open sizes, and finds operators by any path of Python. So the file is checked before: it holds raw
tensors, and operators of ATen on them.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer, deserialize_scalar_type
from torch._export.serde.serialize import _dict_to_dataclass as made_of

from converter.support.errors import UnsupportedError, UsageError, nearest
from converter.support.files import check_regular

MAX_GRAPH_BYTES = 256 << 20
_OPERATOR = re.compile(
    r"torch\.ops\.(aten\.\w+\.\w+|higher_order\.\w+|pocketune\.\w+\.\w+)"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|not_)"
    r"|math\.(ceil|floor|sqrt|trunc)|torch\.sym_(max|min|not|int|float|sum|ite)"
)
#: Expressions of open sizes: their names, plain or as SymPy writes them, functions of torch on them, numbers and signs.
_EXPRESSION = re.compile(
    r"(\b[suz]\w*\d+\b|'[suz]\w*\d+'|\b(positive|integer|nonnegative|negative)=|\b[A-Z][A-Za-z]+\b"
    r"|\d+|\.\d+|[ +\-*/%(),<>=&|~!])*"
)
_POWERS = re.compile(r"\*\*\s*(?!\d\b)|\*\*.*\*\*")
#: What of a node's metadata is read: where it stands in the author's module.
_KEPT = ("stack_trace", "nn_module_stack")
_ADVICE = "Save it again: torch.export.save(torch.export.export(module, (x,)), path)"


def load_archive(path: Path) -> torch.export.ExportedProgram:
    """Return the program of a `.pt2` file.

    Raises:
        UsageError: there is no such file, it is no archive of an exported program, or it is damaged.
        UnsupportedError: it holds what only unpickling, or code of the file, could read.
    """
    if not path.exists():
        folder = path.parent
        siblings = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        raise UsageError(f"no such file: {path}.{nearest(path.name, siblings)}", page="pytorch")
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _loaded(archive, path)
    except (UsageError, UnsupportedError):
        raise
    except Exception as error:  # whatever a foreign file makes the reader raise: the file is the cause
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(
            f"{path} is no exported program that can be read: {said}. {_ADVICE}", page="pytorch"
        ) from error


def _loaded(archive: zipfile.ZipFile, path: Path) -> torch.export.ExportedProgram:
    members = {name.partition("/")[2]: info for info in archive.infolist() if (name := info.filename)}
    models = [name for name in members if re.fullmatch(r"models/[\w.-]+\.json", name)]
    if len(models) != 1:
        raise UsageError(f"{path} holds {len(models)} exported programs, not one. {_ADVICE}", page="pytorch")
    name = models[0].removeprefix("models/").removesuffix(".json")

    def read(member: str) -> bytes:
        info = members[member]
        if info.compress_type != zipfile.ZIP_STORED:
            raise UsageError(f"{path}: {member} is compressed, which PyTorch never does. {_ADVICE}", page="pytorch")
        return archive.read(info)

    if members[models[0]].file_size > MAX_GRAPH_BYTES:
        raise UsageError(f"{path}: its graph is larger than any model's. {_ADVICE}", page="pytorch")
    graph = json.loads(read(models[0]))
    _check(graph, path)
    graph["guards_code"] = []  # Python, which torch would run; the rows are checked by the graph that is made anew
    weights = _tensors(json.loads(read(f"data/weights/{name}_weights_config.json")), "data/weights", read, path)
    constants = _tensors(json.loads(read(f"data/constants/{name}_constants_config.json")), "data/constants", read, path)
    program = made_of(schema.ExportedProgram, graph)
    return ExportedProgramDeserializer().deserialize(program, weights, constants, None)


def _tensors(config: Mapping[str, Any], folder: str, read: Any, path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a table of the archive; those that share memory there do so here."""
    stored: dict[str, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, entry in config["config"].items():
        meta, file = entry["tensor_meta"], entry["path_name"]
        if entry["use_pickle"] or meta is None or not re.fullmatch(r"(weight|tensor)_\d+", file):
            raise UnsupportedError(
                f"{path}: {name} is stored as a pickle, which may run code and is not read. Make it a plain dense "
                "tensor and export the module again",
                page="pytorch",
            )
        if file not in stored:
            data = bytearray(read(f"{folder}/{file}"))
            dtype = deserialize_scalar_type(schema.ScalarType(meta["dtype"]))
            stored[file] = torch.frombuffer(data, dtype=dtype) if data else torch.zeros(0, dtype=dtype)
        size, stride = ([int(d["as_int"]) for d in meta[key]] for key in ("sizes", "strides"))
        if math.prod(size) > max(stored[file].numel(), 1) and 0 not in stride:
            raise UsageError(f"{path}: {name} is larger than what the file holds of it. {_ADVICE}", page="pytorch")
        tensor = torch.as_strided(stored[file], size, stride, int(meta["storage_offset"]["as_int"]))
        requires = bool(meta["requires_grad"])
        found[name] = torch.nn.Parameter(tensor, requires_grad=requires) if entry["is_param"] else tensor
    return found


def _check(graph: Any, path: Path) -> None:
    """Refuse what is not an operator of ATen, an expression of sizes, or a plain tree; drop what is not read."""
    for key, value in _entries(graph):
        if key in ("target", "as_operator") and isinstance(value, str) and not _OPERATOR.fullmatch(value):
            raise UnsupportedError(
                f"{path} calls {value[:80]!r}, which is no operator of ATen: only these are read from a file",
                page="pytorch",
            )
        if key == "expr_str" and (len(value) > 200 or not _EXPRESSION.fullmatch(value) or _POWERS.search(value)):
            raise UnsupportedError(f"{path} has a size {value[:80]!r}, which is not read from a file", page="pytorch")
        if key in ("as_custom_obj", "custom_obj", "as_opaque") and value is not None:
            raise UnsupportedError(f"{path} holds an object of a class, which is not read from a file", page="pytorch")
        if isinstance(value, str) and ("__enum__" in value or "default_factory_module" in value):
            raise UnsupportedError(
                f"{path}: its inputs or outputs are of a class that names a module of Python, which is not read from a "
                "file. Return tensors, tuples or dicts",
                page="pytorch",
            )


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """All entries of dicts in a tree, at any depth. Metadata of nodes loses what is not read."""
    stack = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if "target" in part and "inputs" in part:
                part["metadata"] = {k: v for k, v in part.get("metadata", {}).items() if k in _KEPT}
            yield from part.items()
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
