"""Adapters as the library PEFT has them: `adapter_model.safetensors` and `adapter_config.json` in a folder."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converter.program.file import ProgramFile
from converter.runtime.export.low_rank import Factors, matrices, unrounded
from converter.runtime.export.peft_config import CONFIG, PeftConfig, read_config
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.files import open_regular, write_together
from converter.support.strict_json import parse_json

_WEIGHTS, _PICKLED = "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."
#: What the lengths of a weight's columns are called, behind its module, and the three kinds of tensors.
_LENGTHS = ".lora_magnitude_vector"
_TENSORS = (".lora_A.weight", ".lora_B.weight", _LENGTHS)
#: In the header of our files: checksums of weights that no build rounds, which tell one base from another.
_BASE = "pocketune.base"


def write_folder(program: ProgramFile, found: Mapping[str, Factors], folder: str | os.PathLike, base: str) -> None:
    """Write adapters by module as PEFT's `PeftModel.from_pretrained` reads them.

    Raises:
        UsageError: the folder cannot be written.
    """
    require("safetensors", "an adapter of PEFT")
    from safetensors.numpy import save

    tensors = dict[str, np.ndarray]()
    for module, one in found.items():
        tensors[f"{_PREFIX}{module}.lora_A.weight"] = one.a
        tensors[f"{_PREFIX}{module}.lora_B.weight"] = one.b
        if one.lengths is not None:
            tensors[f"{_PREFIX}{module}{_LENGTHS}"] = np.ascontiguousarray(one.lengths)
    data = save(tensors, {"format": "pt", _BASE: json.dumps(unrounded(program), separators=(",", ":"))})
    config = json.dumps(_config(program, found, base or program.manifest.name), indent=2) + "\n"
    write_together(folder, {_WEIGHTS: data, CONFIG: config.encode()})


def read_folder(folder: Path) -> tuple[PeftConfig, dict[str, Factors], dict[str, str]]:
    """Return the configuration of an adapter, its factors by module, and what our own files say of their base.

    Raises:
        UsageError: it is none, or one that trains or computes otherwise than a program's.
    """
    require("safetensors", "an adapter of PEFT")
    config, (tensors, base) = read_config(folder), _read_weights(folder)
    return config, _factors(config, tensors, folder), base


def _config(program: ProgramFile, found: Mapping[str, Factors], base: str) -> dict[str, Any]:
    """Return PEFT's configuration: the usual rank and scale, and by module those that differ."""
    sizes = {module: (one.rank, one.alpha) for module, one in found.items()}
    (rank, alpha), _ = Counter(sizes.values()).most_common(1)[0]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(sizes),
        "lora_dropout": Counter(one.dropout for one in matrices(program).values()).most_common(1)[0][0],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": any(one.lengths is not None for one in found.values()),
        "rank_pattern": {name: r for name, (r, _) in sizes.items() if r != rank},
        "alpha_pattern": {name: a for name, (_, a) in sizes.items() if a != alpha},
    }


def _factors(config: PeftConfig, tensors: Mapping[str, np.ndarray], folder: Path) -> dict[str, Factors]:
    """Return the adapters of a folder by module.

    Raises:
        UsageError: tensors and configuration do not belong together.
    """
    found: dict[str, Factors] = {}
    for module in dict.fromkeys(key.removeprefix(_PREFIX).rpartition(".lora_")[0] for key in tensors):
        a, b = (tensors.get(f"{_PREFIX}{module}.lora_{which}.weight") for which in "AB")
        lengths = tensors.get(f"{_PREFIX}{module}{_LENGTHS}")
        if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
            raise UsageError(f"{folder}: the two factors of {module} do not fit each other", page="adapters")
        if not config.targets(module):
            raise UsageError(
                f"{folder}: there are factors of {module}, which target_modules and the options beside it leave out, "
                "so that PEFT overlooks them: name it there, or take its tensors out",
                page="adapters",
            )
        if len(a) != config.rank(module):
            raise UsageError(
                f"{folder}: the factors of {module} have the rank {len(a)}, and by {CONFIG} it is "
                f"{config.rank(module):g}: copy or download both files again",
                page="adapters",
            )
        if (lengths is not None) != config.dora:
            raise UsageError(
                f"{folder}: use_dora is {str(config.dora).lower()}, and the lengths of columns of {module} "
                f"(lora_magnitude_vector) are {'none' if lengths is None else 'there'}: copy or download both files "
                "again",
                page="adapters",
            )
        found[module] = Factors(a, b, config.scale(module), lengths)
    return found


def _read_weights(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors of an adapter in float32, and what our own files say of their base.

    Raises:
        UsageError: the file is missing, damaged, or holds something else.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / _WEIGHTS
    try:
        os.close(open_regular(path))
        with safe_open(path, "numpy") as file:
            said = (file.metadata() or {}).get(_BASE)
            found = {key: file.get_tensor(key).astype(np.float32) for key in file.keys()}  # noqa: SIM118
        base = {} if said is None else parse_json(said.encode())
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        if not path.exists() and (folder / _PICKLED).exists():
            raise UsageError(
                f"{folder} has {_PICKLED}, which is pickled and may run code: save the adapter by PEFT once more, as "
                "safetensors: model.save_pretrained(folder)",
                page="adapters",
            ) from error
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {said}", page="adapters") from error
    for key, array in found.items():
        if not key.startswith(_PREFIX) or not key.endswith(_TENSORS):
            raise UsageError(f"{path}: {key} is no factor of a LoRA of a dense layer", page="adapters")
        if not np.isfinite(array).all():
            raise UsageError(f"{path}: {key} holds NaN or infinity", page="adapters")
    if not found:
        raise UsageError(f"{path}: it holds no adapter", page="adapters")
    return found, base if isinstance(base, dict) else {}
