"""Files of other tools in the place of a model, each refused by what it is and what to build instead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError
from converter.support.files import is_lfs_pointer

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


def check_file(model: Any) -> None:
    """Raise UsageError where a model is the path of a file that is none, as a bundle, another format or an LFS pointer.

    Args:
        model: as for `build`.
    """
    if not isinstance(model, str | os.PathLike) or not Path(model).is_file():
        return
    if is_lfs_pointer(Path(model)):
        raise UsageError(
            f"{model} is a pointer of Git LFS and not the file itself: run `git lfs pull` in its folder", page="models"
        )
    if (kind := _KINDS.get(Path(model).suffix.lower())) is not None:
        raise UsageError(f"{model} is {kind[0]}: {kind[1]}", page="models")
