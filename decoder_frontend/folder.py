"""Folders of `transformers`: `config.json` and weights in safetensors, of which rows are read as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.files import check_regular
from converter.support.strict_json import parse_json
from decoder_frontend.configuration import ARCHITECTURES, Configuration
from decoder_frontend.names import Opened, checked, shapes_of
from decoder_frontend.stored import StoredTensor, plus_one

CONFIG = "config.json"
#: Architectures by what `config.json` calls them, and the activation of each.
_KINDS = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
_ACTIVATIONS = {"llama": "silu", "qwen2": "silu", "qwen3": "silu", "gemma3": "gelu_pytorch_tanh"}
_FLOATS = ("F32", "F16", "BF16")
#: Of so many layers of Gemma 3 the last looks back on all tokens.
_EVERY = 6
#: Of a folder without weights, which would tell how many there are.
_MOST_LAYERS = 1000


def open_folder(path: Path) -> Opened:
    """Return the decoder of a folder; of its weights nothing is read yet.

    One with `config.json` alone can be planned, and not built.

    Raises:
        UsageError: a file is missing or damaged, or the model is none that is computed.
    """
    require("safetensors", "weights in safetensors")
    try:
        config = parse_json((path / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path / CONFIG}: {said}", page="language-models") from error
    if not isinstance(config, dict) or config.get("model_type") not in _KINDS:
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise UsageError(
            f"{path} holds a model of the architecture {kind!r}; decoders are read of {', '.join(ARCHITECTURES)}. "
            "Build others from their module of transformers: pocketune.build(module, inputs=...)",
            page="language-models",
        )
    c = _configuration(config, path)
    tensors = _tensors(path) or _without_weights(path, c, config)
    if config.get("tie_word_embeddings", c.architecture == "gemma3"):
        tensors.pop("lm_head.weight", None)
    elif "lm_head.weight" not in tensors:
        raise UsageError(
            f"{path} lacks lm_head.weight, and {CONFIG} does not say tie_word_embeddings: copy or download it again",
            page="language-models",
        )
    if c.architecture == "gemma3":  # its norms are what is added to 1
        norms = [name for name in tensors if name.endswith(("norm.weight", "layernorm.weight"))]
        tensors |= {name: plus_one(tensors[name]) for name in norms}
    return Opened(c, checked(path, c, tensors), None)


def _configuration(config: Mapping[str, Any], path: Path) -> Configuration:
    """Return the configuration that `config.json` tells."""
    architecture = _KINDS[config["model_type"]]

    def number(name: str, otherwise: Any = None) -> Any:
        value = config.get(name, otherwise)
        value = otherwise if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise UsageError(f"{path / CONFIG}: {name} is {value!r}, not a positive number", page="language-models")
        return value

    heads, gemma = int(number("num_attention_heads")), architecture == "gemma3"
    each = int(number("head_dim", int(number("hidden_size")) // heads))
    base, scale = _rotation(config, "full_attention" if gemma else None, 1e6 if gemma else 1e4, path)
    local, _ = _rotation(config, "sliding_attention", 1e4, path) if gemma else (1e4, 1.0)
    _refuse(config, architecture, each, path)
    return Configuration(
        architecture,
        int(number("num_hidden_layers")),
        int(number("hidden_size")),
        int(number("intermediate_size")),
        heads,
        int(number("num_key_value_heads", heads)),
        each,
        int(number("vocab_size")),
        float(number("rms_norm_eps", 1e-6)),
        base,
        int(number("max_position_embeddings")),
        scale,
        int(number("sliding_window")) if gemma else None,
        _EVERY if gemma else 1,
        local,
    )


def _rotation(config: Mapping[str, Any], kind: str | None, usual: float, path: Path) -> tuple[float, float]:
    """Return the base of rotations and what positions are divided by, as older and newer files say it."""
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    said = said.get(kind, said) if kind is not None else said
    form = said.get("rope_type", said.get("type", "default"))
    if form not in ("default", "linear"):
        raise _not_computed(path, f"rotations that are stretched by {form}")
    old = "rope_local_base_freq" if kind == "sliding_attention" else "rope_theta"
    base = said.get("rope_theta", config.get(old, usual))
    scale = said.get("factor", 1.0) if form == "linear" and kind != "sliding_attention" else 1.0
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and n > 0 for n in (base, scale)):
        raise UsageError(f"{path / CONFIG}: rotations of base {base!r} and factor {scale!r}", page="language-models")
    return float(base), float(scale)


def _refuse(config: Mapping[str, Any], architecture: str, each: int, path: Path) -> None:
    """Raise where a model asks for what is not computed."""
    activation = config.get("hidden_act", config.get("hidden_activation", _ACTIVATIONS[architecture]))
    if activation != _ACTIVATIONS[architecture]:
        raise _not_computed(path, f"the activation {activation}")
    layers = config.get("layer_types")
    every = _EVERY if architecture == "gemma3" else 1
    if layers and any((kind == "full_attention") != ((i + 1) % every == 0) for i, kind in enumerate(layers)):
        raise _not_computed(path, "windows in other layers than its architecture has them")
    if architecture != "gemma3" and config.get("use_sliding_window"):
        raise _not_computed(path, "a sliding window")
    if config.get("query_pre_attn_scalar", each) != each:
        raise _not_computed(path, f"scores that are divided by the root of {config['query_pre_attn_scalar']}")
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "partial_rotary_factor"):
        if config.get(name) not in (None, 1.0):
            raise _not_computed(path, name)


def _not_computed(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{path} asks for {what}, which a program of a folder does not compute: build its module of transformers, "
        "pocketune.build(module, inputs=...)",
        page="language-models",
    )


def _tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the weights of all files of a folder by name; none where it has no such file."""
    from safetensors import SafetensorError, safe_open

    files = sorted(path.glob("*.safetensors"))
    found: dict[str, StoredTensor] = {}
    for each in files:
        check_regular(each)
        try:
            opened = safe_open(each, "numpy").__enter__()
            for name in opened.keys():  # noqa: SIM118 (it is no dictionary)
                if name.endswith("rotary_emb.inv_freq"):  # which older files hold, and the configuration tells
                    continue
                part = opened.get_slice(name)
                if part.get_dtype() not in _FLOATS:
                    raise UsageError(
                        f"{each}: the tensor {name} is stored as {part.get_dtype()}; {', '.join(_FLOATS)} are read",
                        page="language-models",
                    )
                if name in found:
                    raise UsageError(f"{path}: two files hold the tensor {name}", page="language-models")
                found[name] = StoredTensor(name, tuple(part.get_shape()), part.get_dtype(), _reader(part))
        except (OSError, SafetensorError, ValueError) as error:
            raise UsageError(
                f"{each} is damaged: {error}. Copy or download it again", page="language-models"
            ) from error
    return found


def _without_weights(path: Path, c: Configuration, config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Return weights that have shapes and no numbers, which is enough for a plan."""
    if c.layers > _MOST_LAYERS:
        raise UsageError(f"{path / CONFIG}: {c.layers:,} layers, and no weights of them", page="language-models")

    def read(start: int, stop: int) -> np.ndarray:
        raise UsageError(
            f"{path} has no weights: there is no .safetensors in it. `pocketune schemes` and `estimate` plan it so; to "
            "build it copy its weights there",
            page="language-models",
        )

    shapes = shapes_of(c) | {"lm_head.weight": (c.vocabulary, c.width)}
    if c.architecture == "qwen2" or config.get("attention_bias"):
        parts = ("q_proj", "k_proj", "v_proj", *(("o_proj",) if c.architecture != "qwen2" else ()))
        ends = tuple(f"{part}.weight" for part in parts)
        shapes |= {f"{n.removesuffix('.weight')}.bias": s[:1] for n, s in list(shapes.items()) if n.endswith(ends)}
    return {name: StoredTensor(name, shape, "F32", read) for name, shape in shapes.items()}


def _reader(part: Any) -> Any:
    return lambda start, stop: np.asarray(part[start:stop], np.float32)
