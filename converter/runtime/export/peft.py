"""Adapters as the library PEFT has them: `adapter_model.safetensors` and `adapter_config.json` in a folder."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converter.ir.view import View
from converter.program.adapters import LowRank, factors, magnitudes, read_adapters
from converter.program.file import ProgramFile, read_program
from converter.program.parameters import check_tensors
from converter.runtime.export.export import State, state_tensors
from converter.runtime.interchange import StateSpec
from converter.runtime.saved import save_state
from converter.support.errors import UsageError, nearest
from converter.support.extras import require
from converter.support.files import open_regular, write_together
from converter.support.strict_json import parse_json

#: A program that is open, its file or its bytes.
ProgramPath = ProgramFile | str | os.PathLike | bytes
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
#: What the lengths of a weight's columns are called, behind its module, and the three kinds of tensors.
_LENGTHS = ".lora_magnitude_vector"
_TENSORS = (".lora_A.weight", ".lora_B.weight", _LENGTHS)
#: In the header of our files: checksums of weights that no build rounds, which tell one base from another.
_BASE = "pocketune.base"
#: Options of PEFT under which a product is another one, and what each has where it is off.
_OTHER_PRODUCTS = {
    "fan_in_fan_out": False,
    "lora_bias": False,
    "use_qalora": False,
    "bias": "none",
    "modules_to_save": None,
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
}


def export_adapter(program: ProgramPath, folder: str | os.PathLike, state: State = None, base: str = "") -> None:
    """Write the low-rank adapters of a state as PEFT's `PeftModel.from_pretrained` reads them.

    Args:
        program: that was trained; its weights have the names of `transformers`.
        folder: where to; it is made.
        state: whose; see `export_inference`.
        base: what PEFT is to call the base, as `Qwen/Qwen2.5-0.5B`; the program's name where it is empty.

    Raises:
        UsageError: the program has no such adapters, the state is not one of it, or the folder cannot be written.
    """
    require("safetensors", "adapters of PEFT")
    from safetensors.numpy import save

    program = opened(program)
    adapters, tensors = _adapters(program), dict[str, np.ndarray]()
    numbers = state_tensors(program, state)
    found, lengths = factors(program, numbers), magnitudes(program, numbers)
    for adapter in adapters:
        a, b = found[adapter.weight]
        tensors[f"{_PREFIX}{module_of(adapter)}.lora_A.weight"] = np.ascontiguousarray(a.T)
        tensors[f"{_PREFIX}{module_of(adapter)}.lora_B.weight"] = np.ascontiguousarray(b.T)
        if adapter.weight in lengths:
            tensors[f"{_PREFIX}{module_of(adapter)}{_LENGTHS}"] = np.ascontiguousarray(lengths[adapter.weight])
    data = save(tensors, {"format": "pt", _BASE: json.dumps(_unrounded(program), separators=(",", ":"))})
    config = json.dumps(_config(adapters, base or program.manifest.name), indent=2) + "\n"
    write_together(folder, {_WEIGHTS: data, _CONFIG: config.encode()})


def import_adapter(program: ProgramPath, folder: str | os.PathLike, state: str | os.PathLike) -> tuple[str, ...]:
    """Write a state of a program with the adapters that PEFT or `export_adapter` wrote; its optimizer begins anew.

    `session.restore` takes it, on a phone too.

    Args:
        program: that is to go on with them.
        folder: of the adapter.
        state: the file to write.

    Returns:
        Names of the program's weights that the folder has no adapter for: theirs are as they were built.

    Raises:
        UsageError: the folder holds no adapter, or one of another base, rank or kind (of LoRA for a program of DoRA,
            and the other way round), or of weights that have none in the program.
    """
    require("safetensors", "adapters of PEFT")
    program, folder = opened(program), Path(folder)
    config, (found, base) = _read_config(folder), _read_weights(folder)
    _check_base(program, base, folder)
    built = {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
    changed, left = dict(built), list[str]()
    pieces = {p.name: p.pieces for p in program.manifest.parameters}
    by_module = {module_of(adapter): adapter for adapter in _adapters(program)}
    _check_kind(by_module.values(), config, found, folder)
    for key in found:
        module = key.removeprefix(_PREFIX).rpartition(".lora_")[0]
        if module not in by_module:
            raise UsageError(
                f"{folder}: the program has no adapter for {module or key}.{nearest(module, by_module)} Build it with "
                "one: update={'*" + module.rpartition(".")[2] + ".weight': pocketune.LoRA(...)}",
                page="adapters",
            )
    for module, adapter in by_module.items():
        if f"{_PREFIX}{module}.lora_B.weight" not in found:
            left.append(adapter.weight)
            continue
        a, b = (found.get(f"{_PREFIX}{module}.lora_{which}.weight") for which in "AB")
        a, b = _fitting(adapter, a, b, _scale(config, module), folder)
        arrays = {adapter.a: a, adapter.b: b}
        if adapter.magnitude is not None:
            arrays[adapter.magnitude] = _fitting_lengths(adapter, found.get(f"{_PREFIX}{module}{_LENGTHS}"), folder)
        for name, array in arrays.items():
            for piece in pieces.get(name, ()):
                changed[piece.tensor] = View.from_json(list(piece.view)).apply(array)
        if not adapter.trains_a and not np.array_equal(a, factors(program, built)[adapter.weight][0]):
            raise UsageError(
                f"{folder}: the program keeps A of {adapter.weight} as it was drawn (train_a=False), and this adapter "
                "has another: build with LoRA(train_a=True)",
                page="adapters",
            )
    check_tensors(program.manifest, changed, os.fspath(folder))
    save_state(state, StateSpec.of(program), changed)
    return tuple(left)


def opened(program: ProgramPath) -> ProgramFile:
    """Return a program, opened where it is not. Raise UsageError as `read_program`."""
    return program if isinstance(program, ProgramFile) else read_program(program)


def _adapters(program: ProgramFile) -> tuple[LowRank, ...]:
    """Return the adapters of a program, of matrices.

    Raises:
        UsageError: it has none, or one of a convolution.
    """
    adapters = read_adapters(program)
    if not adapters:
        raise UsageError(
            f"{program.manifest.name} has no low-rank adapters: build it with update='lora-8', or with rules of "
            "pocketune.LoRA",
            page="adapters",
        )
    for adapter in adapters:
        if len(adapter.shape) != 2 or len(adapter.a_shape) != 2:
            raise UsageError(
                f"PEFT's file has matrices, and {adapter.weight} is {list(adapter.shape)}: export the merged model",
                page="adapters",
            )
    if len({adapter.magnitude is None for adapter in adapters}) > 1:
        raise UsageError(
            "some of the program's adapters are of DoRA and some of LoRA, and a folder of PEFT has one kind: build "
            "with one, or export the merged model",
            page="adapters",
        )
    return adapters


def module_of(adapter: LowRank) -> str:
    """Return what PEFT calls the layer of a weight."""
    name = adapter.weight.replace("/", ".")
    return name.removesuffix(".weight").removesuffix(".kernel")


def _unrounded(program: ProgramFile) -> dict[str, str]:
    """Return checksums of frozen vectors (norms, biases), which are the same however the base is quantised."""
    identity = program.manifest.identity
    return {} if identity is None else {w.name: w.digest for w in identity.frozen if len(w.shape) == 1}


def _config(adapters: tuple[LowRank, ...], base: str) -> dict[str, Any]:
    """Return PEFT's configuration: the usual rank and scale, and by module those that differ."""
    sizes = {module_of(one): (one.a_shape[-1], one.scale * one.a_shape[-1]) for one in adapters}
    (rank, alpha), _ = Counter(sizes.values()).most_common(1)[0]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": _plain(alpha),
        "target_modules": sorted(sizes),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": adapters[0].magnitude is not None,
        "rank_pattern": {name: r for name, (r, _) in sizes.items() if r != rank},
        "alpha_pattern": {name: _plain(a) for name, (_, a) in sizes.items() if a != alpha},
    }


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of an adapter.

    Raises:
        UsageError: it is missing, no JSON, or asks for another product than W + scale * A B.
    """
    path = folder / _CONFIG
    try:
        config = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"{folder} is no adapter of PEFT: {_CONFIG}: {said}", page="adapters") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UsageError(f"{path}: it is no LoRA, and no other adapter is read", page="adapters")
    for option, off in _OTHER_PRODUCTS.items():
        if config.get(option) not in (None, off, [], {}):
            raise UsageError(
                f"{path}: {option} is {config[option]!r}, which a program's adapters do not compute", page="adapters"
            )
    return config


def _scale(config: Mapping[str, Any], module: str) -> float:
    """Return what PEFT multiplies A B of a module by."""

    def of(pattern: str, usual: str) -> float:
        given = config.get(pattern) or {}
        if odd := next((n for n in given if not re.fullmatch(r"[\w.]+", n)), None):
            raise UsageError(
                f"{_CONFIG}: {pattern} has the expression {odd!r}, and only names are read", page="adapters"
            )
        matching = [n for n in given if module == n or module.endswith(f".{n}")]
        number = given[matching[0]] if matching else config.get(usual)
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise UsageError(f"{_CONFIG}: {usual} is {number!r}, not a positive number", page="adapters")
        return float(number)

    rank, alpha = of("rank_pattern", "r"), of("alpha_pattern", "lora_alpha")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


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


def _check_kind(adapters: Iterable[LowRank], config: Mapping[str, Any], found: Iterable[str], folder: Path) -> None:
    """Raise where one of folder and program is of DoRA and the other is not."""
    (dora,) = {adapter.magnitude is not None for adapter in adapters}
    if (bool(config.get("use_dora")) or any(key.endswith(_LENGTHS) for key in found)) != dora:
        theirs, own = ("LoRA", "DoRA") if dora else ("DoRA", "LoRA")
        raise UsageError(
            f"{folder}: the adapters are of {theirs}, and the program's of {own}: build it with update='"
            f"{theirs.lower()}-8:...', or with rules of pocketune.LoRA(..., dora={not dora})",
            page="adapters",
        )


def _fitting_lengths(adapter: LowRank, lengths: np.ndarray | None, folder: Path) -> np.ndarray:
    """Return the lengths of columns of an adapter of DoRA."""
    if lengths is None or lengths.shape != adapter.b_shape[-1:]:
        found = "none" if lengths is None else f"of shape {list(lengths.shape)}"
        raise UsageError(
            f"{folder}: {adapter.weight} has {adapter.b_shape[-1]} outputs, and the lengths of columns "
            f"(lora_magnitude_vector) are {found}",
            page="adapters",
        )
    return lengths


def _check_base(program: ProgramFile, base: Mapping[str, str], folder: Path) -> None:
    """Raise where an adapter of ours was trained on another base than the program's."""
    own = _unrounded(program)
    for name in own.keys() & base.keys():
        if own[name] != base[name]:
            raise UsageError(
                f"{folder}: the adapters are of another base than {program.manifest.name}, whose {name} has other "
                "numbers: build the program from the file that they were trained on",
                page="adapters",
            )


def _fitting(
    adapter: LowRank, a: np.ndarray | None, b: np.ndarray | None, scale: float, folder: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B in the program's layout and by its scale."""
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise UsageError(f"{folder}: the two factors of {adapter.weight} do not fit each other", page="adapters")
    (rank, inputs), outputs = a.shape, b.shape[0]
    if (inputs, outputs) != (adapter.a_shape[0], adapter.b_shape[1]):
        raise UsageError(
            f"{folder}: the adapter of {adapter.weight} is of {inputs} inputs and {outputs} outputs, and the program's "
            f"layer has {adapter.a_shape[0]} and {adapter.b_shape[1]}: it was trained on another base",
            page="adapters",
        )
    if rank != adapter.a_shape[1]:
        raise UsageError(
            f"{folder}: the adapter of {adapter.weight} has the rank {rank}, and the program's {adapter.a_shape[1]}: "
            f"build it with pocketune.LoRA({rank})",
            page="adapters",
        )
    return np.ascontiguousarray(a.T), np.ascontiguousarray(b.T) * np.float32(scale / adapter.scale)
