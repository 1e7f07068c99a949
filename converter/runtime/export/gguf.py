"""Adapters as llama.cpp has them: a `.gguf` file with the two factors of each tensor of the base.

What llama.cpp adds to a weight is alpha over the rank times B A, with one alpha for the whole file,
`adapter.lora.alpha`; where that is 0 or missing, B A once. Factors are called `blk.0.attn_q.weight.lora_a`
[rank, inputs] and `.lora_b` [outputs, rank], whose rows lie as those of the base's tensor do
(https://github.com/ggml-org/llama.cpp, src/llama-adapter.cpp).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from converter.program.adapters import read_adapters
from converter.program.file import ProgramFile
from converter.program.gguf_names import Names, read_names
from converter.runtime.export.low_rank import Factors, matrices, unrounded
from converter.support.errors import UsageError, nearest
from converter.support.files import write_atomically
from converter.support.gguf import Block, Tensor, container_bytes, halves_first, open_container
from converter.support.strict_json import parse_json

SUFFIX = ".gguf"
_ALPHA, _BASE = "adapter.lora.alpha", "pocketune.base"
#: Before the name of a tensor whose B carries another alpha than the file's: its own, which llama.cpp overlooks.
_OWN_ALPHA = "pocketune.alpha."
#: Entries that change no number, by their beginnings.
_SAYS_NOTHING = ("general.", "adapter.lora.task_name", "adapter.lora.prompt_prefix", "pocketune.")
_A, _B = ".lora_a", ".lora_b"
#: Kinds that llama.cpp's convert_lora_to_gguf.py writes: float32, float16, bfloat16, and eight bits with a scale.
_F32, _F16, _Q8_0, _BF16 = 0, 1, 8, 30
_BLOCKS = {
    _F32: Block("F32", 1, 4),
    _F16: Block("F16", 1, 2),
    _Q8_0: Block("Q8_0", 32, 34),
    _BF16: Block("BF16", 1, 2),
}


def write_file(program: ProgramFile, found: Mapping[str, Factors], path: str | os.PathLike, base: str) -> None:
    """Write adapters by module as llama.cpp's `--lora` reads them.

    Of several alphas the most frequent is the file's; B of the others is multiplied by what is left.

    Raises:
        UsageError: they are of DoRA, or of a model that llama.cpp has no names for, or the file cannot be written.
    """
    names, weights = _names(program), {module: one.weight for module, one in matrices(program).items()}
    ((alpha, _),) = Counter(one.alpha for one in found.values()).most_common(1)
    metadata: dict[str, str | float | int] = {
        "general.architecture": names.architecture,
        "general.type": "adapter",
        "general.name": program.manifest.name,
        "adapter.type": "lora",
        _ALPHA: float(alpha),
        _BASE: json.dumps(unrounded(program), separators=(",", ":")),
    }
    if base:
        metadata["general.base_model.0.name"] = base
    tensors = dict[str, np.ndarray]()
    for module, one in found.items():
        stored, b = names.weights[weights[module]], one.b
        if one.lengths is not None:
            raise UsageError(
                f"llama.cpp's adapters are low-rank only, and that of {weights[module]} is a DoRA adapter, whose "
                "column norms the file cannot hold: build with lora- instead of dora-, or export for PEFT",
                page="adapters",
            )
        if one.alpha != alpha:
            metadata[_OWN_ALPHA + stored.tensor] = float(one.alpha)
            b = b * np.float32(one.scale * one.rank / alpha)
        if stored.paired:
            moved = np.empty_like(b)
            moved[halves_first(len(b), stored.paired)] = b
            b = moved
        tensors[stored.tensor + _A], tensors[stored.tensor + _B] = one.a, b
    write_atomically(path, container_bytes(metadata, tensors))


def read_file(program: ProgramFile, path: Path) -> tuple[dict[str, Factors], dict[str, str]]:
    """Return the adapters of a file by the modules of a program, and what our own files say of their base.

    Raises:
        UsageError: it is damaged, no such adapter, of another architecture, or of tensors that no program has.
    """
    names = _names(program)
    file = open_container(path)
    alpha = _check(file.metadata, names, path)
    modules = {stored.tensor: (weight.removesuffix(".weight"), stored) for weight, stored in names.weights.items()}
    pairs: dict[str, dict[str, np.ndarray]] = {}
    for tensor in file.tensors(_BLOCKS, "no adapter has: convert it again, in f32, f16, bf16 or q8_0"):
        stem, kind = tensor.name[: -len(_A)], tensor.name[-len(_A) :]
        if kind not in (_A, _B):
            raise UsageError(
                f"{path}: the tensor {tensor.name} is no factor of an adapter: merge it into the base by llama.cpp "
                "(llama-export-lora) and build the program of that",
                page="adapters",
            )
        pairs.setdefault(stem, {})[kind] = _numbers(tensor, path)
    if not pairs:
        raise UsageError(f"{path}: it holds no adapter", page="adapters")
    found = dict[str, Factors]()
    for stem, pair in pairs.items():
        a, b = pair.get(_A), pair.get(_B)
        if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
            raise UsageError(f"{path}: the two factors of {stem} do not fit each other", page="adapters")
        if stem not in modules:
            raise UsageError(
                f"{path}: the program's model has no matrix {stem}.{nearest(stem, modules)} The adapter was trained on "
                "another model",
                page="adapters",
            )
        module, stored = modules[stem]
        if stored.paired and len(b) % stored.paired == 0:
            b = b[halves_first(len(b), stored.paired)]
        one = Factors(a, b, alpha / len(a) if alpha else 1.0)
        own = file.metadata.get(_OWN_ALPHA + stem)
        if isinstance(own, float) and isfinite(own) and own > 0 and alpha:
            one = replace(one, b=b / np.float32(own / alpha), scale=own / len(a))
        found[module] = one
    return found, _base(file.metadata.get(_BASE))


def _names(program: ProgramFile) -> Names:
    """Return what llama.cpp calls the weights of a program."""
    names, adapted = read_names(program), {one.weight for one in read_adapters(program)}
    if names is None or adapted - names.weights.keys():
        raise UsageError(
            f"{program.manifest.name} does not say what llama.cpp calls its weights: adapters as .gguf are of programs "
            "that are built from a .gguf file or a folder of transformers of an architecture that llama.cpp has. Build "
            "it from one again, or take a folder for PEFT",
            page="adapters",
        )
    return names


def _check(said: Mapping[str, Any], names: Names, path: Path) -> float:
    """Return alpha, of a file that is an adapter for such models. Raise UsageError otherwise."""
    kind, architecture = said.get("general.type", "model"), said.get("general.architecture")
    if kind != "adapter" or said.get("adapter.type") != "lora":
        what = f"adapter.type is {said.get('adapter.type')!r}" if kind == "adapter" else f"general.type is {kind!r}"
        raise UsageError(f"{path} is no LoRA adapter: its {what}", page="adapters")
    if architecture != names.architecture:
        raise UsageError(
            f"{path}: the adapter is of a model of the architecture {architecture!r}, and the program's is "
            f"{names.architecture!r}: build the program from the model that it was trained on",
            page="adapters",
        )
    for key in said:
        if key not in (_ALPHA, "adapter.type") and not key.startswith(_SAYS_NOTHING):
            acts = ": the adapter acts behind these tokens alone" if key.startswith("adapter.alora") else ""
            raise UsageError(
                f"{path}: the entry {key} is not known{acts}. Merge the adapter into its base by llama.cpp "
                "(llama-export-lora) and build the program of that",
                page="adapters",
            )
    alpha: Any = said.get(_ALPHA, 0.0)
    if not isinstance(alpha, float) or not isfinite(alpha) or alpha < 0:
        raise UsageError(f"{path} is damaged: {_ALPHA} is {alpha!r}", page="adapters")
    return float(f"{alpha:.7g}")  # a decimal that was rounded to float32


def _numbers(tensor: Tensor, path: Path) -> np.ndarray:
    """Return a tensor in float32."""
    data = tensor.data
    if tensor.number == _Q8_0:
        blocks = data.reshape(-1, tensor.block.size)
        scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
        numbers = scales * blocks[:, 2:].copy().view(np.int8)
    elif tensor.number == _BF16:
        numbers = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = data.view("<f4" if tensor.number == _F32 else "<f2").astype(np.float32)
    if not np.isfinite(numbers).all():
        raise UsageError(f"{path}: {tensor.name} holds NaN or infinity", page="adapters")
    return np.ascontiguousarray(numbers.reshape(tensor.shape), np.float32)


def _base(said: Any) -> dict[str, str]:
    """Return the checksums of a base that a file of ours has; of others, and where they make no sense, none."""
    try:
        found = parse_json(said.encode()) if isinstance(said, str) else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
