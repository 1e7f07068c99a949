"""Untrusted `.keras` archives: read with suspicion, before Keras loads anything of them.

A saved model is a program: its config names classes to import and functions to call. Only layers that Keras itself
defines, or that the user has registered in this process, get through.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from converter.support.errors import UnsupportedError, UsageError, nearest
from converter.support.files import check_regular

CONFIG = "config.json"
#: Where the configuration has what the model was compiled with.
COMPILED = "compile_config"
WEIGHTS = ("model.weights.h5", "model.weights.npz")

#: Caps against archives that expand to far more than they are. Keras stores members uncompressed.
MAX_MEMBERS = 10_000
MAX_CONFIG_BYTES = 16 << 20
MAX_TOTAL_BYTES = 16 << 30
MAX_LAYERS = 2_500
MAX_EXPANSION = 100
EXPANSION_FLOOR_BYTES = 16 << 20

#: Fields that Keras makes constants of when it makes the layer, before anything can be compared; and their limits.
MAX_FIELDS = {"fft_length": 1 << 16, "frame_length": 1 << 16, "num_mel_bins": 1 << 10}

#: Formats that are refused by their name or first bytes, and what they are.
_OTHER_FORMATS = {
    ".h5": "a legacy HDF5 model",
    ".hdf5": "a legacy HDF5 model",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
    ".joblib": "a pickle",
    ".pb": "a TensorFlow graph",
    ".tflite": "a TFLite model",
    ".onnx": "an ONNX model",
    ".pt": "a PyTorch pickle",
    ".pth": "a PyTorch pickle",
}
_MAGIC = {b"\x89HDF\r\n\x1a\n": "a legacy HDF5 model", b"\x80\x04": "a pickle", b"\x80\x05": "a pickle"}

_LAMBDA = "a lambda is compiled Python code"
#: Classes that run code of the file, or of another file, whatever module they claim.
_CODE_LAYERS = {
    "Lambda": "a Lambda layer holds Python code",
    "__lambda__": _LAMBDA,
    "TFSMLayer": "a TFSMLayer runs a TensorFlow SavedModel from the disk",
    "TorchModuleWrapper": "a TorchModuleWrapper holds a pickled PyTorch module",
    "JaxLayer": "a JaxLayer calls a Python function that is not in the file",
    "FlaxLayer": "a FlaxLayer calls a Python module that is not in the file",
}
#: Parts of Keras that a model is made of: others (utils, saving, export, ...) have no place in a config.
_MODEL_PARTS = {
    *("activations", "constraints", "dtype_policies", "initializers", "layers", "losses", "metrics", "models"),
    *("mixed_precision", "ops", "optimizers", "quantizers", "random", "regularizers"),
}


#: Parts of which a layer may name a function, and what `keras.activations` has: those stand there without a part.
_FUNCTION_PARTS = {"activations", "constraints", "initializers", "ops", "regularizers"}
ACTIVATIONS = {
    *("celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish"),
    *("hard_tanh", "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid"),
    *("silu", "soft_shrink", "softmax", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax"),
    *("squareplus", "swish", "tanh", "tanh_shrink", "threshold"),
}
#: Functions of these parts that make other objects.
_MAKERS = {"get", "serialize", "deserialize"}

_ADVICE = 'Save the model with `model.save("model.keras")` and pass that file.'
_AGAIN = "Save or copy it again."
#: By what else a file is.
_ADVICE_OF = {
    "a PyTorch pickle": "Pass the module itself with its weights loaded, or what "
    'torch.export.save(torch.export.export(module, inputs), "model.pt2") writes.'
}


def check_path(path: Path) -> None:
    """Refuses what is no `.keras` archive at all.

    Raises:
        UsageError: the file is missing, is a directory, or is of another format.
    """
    if not path.exists():
        folder = path.parent
        siblings = [p.name for p in folder.iterdir() if p.suffix == path.suffix] if folder.is_dir() else []
        raise UsageError(f"no such file: {path}.{nearest(path.name, siblings)}", page="keras-files")
    if path.is_dir():
        raise UsageError(
            f"{path} is a directory, and no SavedModel: it has no saved_model.pb. {_ADVICE}", page="keras-files"
        )
    check_regular(path)
    kind = _OTHER_FORMATS.get(path.suffix.lower()) or _kind_by_content(path)
    if kind:
        raise UsageError(f"{path} is {kind}, which is not read. {_ADVICE_OF.get(kind, _ADVICE)}", page="keras-files")
    if path.suffix != ".keras":
        raise UsageError(f"{path} has no .keras suffix. {_ADVICE}", page="keras-files")


def check_archive(path: Path) -> dict[str, Any]:
    """Checks a `.keras` archive without loading it; returns its config.

    Raises:
        UsageError: no archive, truncated, corrupt, or made to exhaust memory.
        UnsupportedError: it holds layers whose code is in the file or unknown here; all are named.
    """
    check_path(path)
    try:
        config = json.loads(_read_config(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: its {CONFIG} is not valid: {error}. {_AGAIN}", page="keras-files") from None
    if not isinstance(config, dict) or "class_name" not in config:
        raise UsageError(f"{path}: its {CONFIG} describes no model. {_AGAIN}", page="keras-files")
    check_config(config, str(path))
    return config


def check_config(config: dict[str, Any], where: str) -> None:
    """Refuses a serialized model that needs code from outside of Keras.

    Raises:
        UnsupportedError: layers that are code, or classes that are not registered in this process; all are named.
    """
    # A model is loaded with compile=False: its own loss and metrics are never made.
    body = {key: value for key, value in config.items() if key != COMPILED}
    problems = dict.fromkeys(f"{layer}: {why}" for layer, why in _refusals(body))
    if problems:
        raise UnsupportedError(
            f"{where} cannot be loaded safely:\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + "\nReplace these by Keras layers, or pass the live model object instead of the file.",
            page="keras-files",
        )


def _kind_by_content(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", page="keras-files") from None
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def _read_config(path: Path) -> bytes:
    """Return the config of an archive whose members are all intact."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, path)
            broken = archive.testzip()
            if broken is not None:
                raise UsageError(
                    f"{path} is corrupt: the checksum of its member {broken!r} is wrong. {_AGAIN}", page="keras-files"
                )
            return archive.read(CONFIG)
    except UsageError:
        raise
    except Exception as error:  # on damaged bytes zipfile and its decompressors raise errors of many kinds
        raise UsageError(
            f"{path} is no .keras archive, or it is truncated: {error}. {_AGAIN}", page="keras-files"
        ) from None


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuses archives with strange member names or sizes."""
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(infos) > MAX_MEMBERS or sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
        raise UsageError(f"{path} is larger than any model: {len(infos)} members. Refused.", page="keras-files")
    for info in infos:
        parts = PurePosixPath(info.filename).parts
        if info.filename.startswith("/") or ".." in parts or "\\" in info.filename or ":" in info.filename:
            raise UsageError(
                f"{path}: its member {info.filename!r} points outside of the archive. Refused.", page="keras-files"
            )
        if info.file_size > max(EXPANSION_FLOOR_BYTES, MAX_EXPANSION * info.compress_size):
            raise UsageError(
                f"{path}: its member {info.filename!r} expands from {info.compress_size} to {info.file_size} bytes: "
                "a decompression bomb. Refused.",
                page="keras-files",
            )
        if info.filename == CONFIG and info.file_size > MAX_CONFIG_BYTES:
            raise UsageError(f"{path}: its {CONFIG} has {info.file_size} bytes. Refused.", page="keras-files")
    if len(set(names)) != len(names):
        raise UsageError(f"{path} holds two members of the same name. Refused.", page="keras-files")
    if CONFIG not in names or not set(WEIGHTS) & set(names):
        raise UsageError(
            f"{path} is no .keras archive: it lacks {CONFIG} or {WEIGHTS[0]}. {_ADVICE}", page="keras-files"
        )


def _refusals(config: Any) -> Iterator[tuple[str, str]]:
    """(layer, why) for each object of a config that is not let through."""
    # An explicit stack: a config may be nested deeper than Python recurses.
    stack: list[tuple[Any, str]] = [(config, "the model")]
    layers = 0
    while stack:
        item, layer = stack.pop()
        if isinstance(item, dict):
            name = _layer_name(item)
            layers += name is not None
            if layers > MAX_LAYERS:
                yield "the model", f"it has more than {MAX_LAYERS} layers"
                return
            layer = name or layer
            why = _refusal(item)
            if why:
                yield layer, why
                continue
            stack += [(value, layer) for value in reversed(list(item.values()))]
        elif isinstance(item, list):
            stack += [(value, layer) for value in reversed(item)]


def _layer_name(item: dict[str, Any]) -> str | None:
    inner = item.get("config")
    name = inner.get("name") if isinstance(inner, dict) else None
    return f"layer {name!r}" if isinstance(name, str) and "class_name" in item else None


def _refusal(item: dict[str, Any]) -> str | None:
    """Return why a serialized object is not let through; None when it is, or is no object."""
    name, module, registered = (item.get(key) for key in ("class_name", "module", "registered_name"))
    if not isinstance(name, str):
        return _LAMBDA if _is_lambda(item) else None
    inner = item.get("config")
    fields = inner if isinstance(inner, dict) else {}
    for field, limit in MAX_FIELDS.items():
        if _exceeds(value := fields.get(field), limit):
            return f"its {field} is {str(value)[:80]}, and no model has more than {limit}"
    if name in _CODE_LAYERS:
        return f"{_CODE_LAYERS[name]}; nothing of it would run on a phone"
    if name == "function":
        return _function_refusal(item.get("config"), module)
    if isinstance(registered, str) and _is_registered(registered):
        return None
    if module is None:
        custom = isinstance(registered, str) and registered not in (name, "")
        return _unknown(registered) if custom or (registered == name and "module" in item) else None
    if not isinstance(module, str):
        return f"{name} names its module as {module!r}"
    return None if _is_model_part(module, _MODEL_PARTS) else _foreign(module, name)


def _exceeds(value: Any, limit: int) -> bool:
    return value is not None and not (isinstance(value, int) and value <= limit)


def _function_refusal(name: Any, module: Any) -> str | None:
    """Return why a function that a config names is not let through."""
    if not isinstance(name, str) or not (isinstance(module, str) or module is None):
        return f"{name!r} of {module!r} is no name of a function"
    if _is_registered(name):
        return None
    if module in ("builtins", None):
        return None if name in ACTIVATIONS else _unknown(f"the function {name!r}")
    allowed = _is_model_part(module, _FUNCTION_PARTS) and name.isidentifier() and name not in _MAKERS
    return None if allowed and not name.startswith("_") else _foreign(module, name)


def _foreign(module: str, name: str) -> str:
    return f"{module}.{name} is no part of a Keras model" if _in_keras(module) else _unknown(f"{module}.{name}")


def _is_lambda(item: dict[str, Any]) -> bool:
    """Return whether Keras wrote this for a lambda as activation: code, defaults and closure, under no name."""
    parts = item.get("value")
    return len(item) == 1 and isinstance(parts, list) and len(parts) == 3 and isinstance(parts[0], str)


def _unknown(what: Any) -> str:
    return (
        f"{what} is not defined by Keras and not registered in this process (import the module that defines it with "
        "@keras.saving.register_keras_serializable, with KERAS_BACKEND=jax)"
    )


def _in_keras(module: str) -> bool:
    return module == "keras" or module.startswith("keras.")


def _is_model_part(module: str, known: set[str]) -> bool:
    """Return whether a module is `keras` itself (of classes alone) or one of its parts."""
    parts = [part for part in module.split(".") if part not in ("src", "api")]
    return parts[:1] == ["keras"] and (known is _MODEL_PARTS if len(parts) == 1 else parts[1] in known)


def _is_registered(name: str) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and keras.saving.get_registered_object(name) is not None
