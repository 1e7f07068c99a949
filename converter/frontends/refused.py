"""Refused models: files of other tools, classes and bare weights, each with its kind and what to build instead."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.program.checksum import has_checksum
from converter.support.errors import UsageError
from converter.support.files import check_fetched
from converter.support.libraries import is_instance

_BASE = "build from the folder of transformers (config.json and .safetensors) or the .gguf file of the same model"
#: What a file is by its ending, and what to do.
_KINDS = {
    ".task": ("a bundle of MediaPipe, whose language model is packed for inference alone", _BASE),
    ".litertlm": ("a bundle of LiteRT-LM, whose language model is packed for inference alone", _BASE),
    ".onnx": (
        "a model of ONNX, which is not read",
        "build the PyTorch or Keras model that it was exported from, or convert it to .tflite (onnx2tf) and build that",
    ),
    ".pte": (
        "a program of ExecuTorch, which no longer holds the model that it was lowered from",
        "build the module itself, or what torch.export.save(torch.export.export(module, inputs), 'model.pt2') writes",
    ),
    **dict.fromkeys(
        (".pt", ".pth", ".ckpt"),
        (
            "a pickle of PyTorch, which is not opened here",
            "load it yourself, module.load_state_dict(torch.load(path, weights_only=True)), and build the module",
        ),
    ),
    ".safetensors": (
        "weights without their model",
        "of a language model pass the folder with its config.json; load others into their module, and build that",
    ),
}


def check_model(model: Any) -> None:
    """Raise UsageError for what is no model, whatever front ends there are: a pointer, a program, a class, weights."""
    if _is_file(model):
        check_fetched(Path(model))
        _check_program(Path(model))
    _check_object(model)


def check_file(model: Any) -> None:
    """Raise UsageError where a model is the path of a file that is none, as a bundle or another format."""
    if _is_file(model) and (kind := _KINDS.get(Path(model).suffix.lower())) is not None:
        raise UsageError(f"{model} is {kind[0]}: {kind[1]}", page="models")


def _check_program(model: Path) -> None:
    """Raise UsageError for the file of a training program, which has a model in it, built already."""
    if model.suffix != ".tflite" or not model.stat().st_size:
        return
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if has_checksum(data):
            raise UsageError(
                f"{model} is a training program of Pocketune, built already: `pocketune inspect {model}` shows what a "
                f"step takes, `pocketune profile {model}` times it here. Name the model that it was built from",
                page="models",
            )


def _check_object(model: Any) -> None:
    """Raise UsageError for a class in the place of a model, and for weights alone."""
    if isinstance(model, type):
        raise UsageError(
            f"{model.__name__} is a class and no model: make one of it, {model.__name__}(...), and pass that",
            page="models",
        )
    if isinstance(model, Mapping) and model and all(is_instance(value, "torch", "Tensor") for value in model.values()):
        raise UsageError(
            "a dict of weights, as state_dict() gives it, has no layers: pass the module itself, its weights loaded by "
            "module.load_state_dict(...)",
            page="models",
        )


def unknown(model: Any) -> UsageError:
    """Return what is raised of an object that no front end takes."""
    return UsageError(
        f"cannot build a {type(model).__module__}.{type(model).__qualname__}: "
        "pass a keras.Model, a torch.nn.Module, a module of Flax or Equinox, the path of a .keras, .pt2, .tflite or "
        ".gguf file, or a pocketune.Model(apply, params, inputs=[...]) of a JAX function",
        page="models",
    )


def _is_file(model: Any) -> bool:
    return isinstance(model, str | os.PathLike) and Path(model).is_file()
