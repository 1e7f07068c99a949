"""Names of parameters: those of `transformers`, which PEFT goes by, from those of GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from converter.support.errors import UsageError
from decoder_frontend.configuration import Configuration, configuration_of
from decoder_frontend.gguf_file import GGUFFile, read_gguf
from decoder_frontend.stored import StoredTensor, in_order

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: Of architectures that normalize what a part of a layer gives.
_NORMED = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
#: Of Llama 3.1 and later: by what the speed of each rotation is divided.
FREQUENCY_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class Opened:
    """A decoder that was opened; none of its weights is read.

    Attributes:
        configuration: of the net.
        parameters: by the names and in the layout of `transformers`.
        frequency_factors: by which the speed of each rotation is divided; None: none is.
    """

    configuration: Configuration
    parameters: Mapping[str, StoredTensor]
    frequency_factors: StoredTensor | None


def open_gguf(path: Path) -> Opened:
    """Return the decoder of a `.gguf` file.

    Raises:
        UsageError: the file cannot be read or is damaged, or a tensor is missing, of another shape, or none that the
            decoder has.
    """
    file = read_gguf(path)
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise UsageError(
            f"{path} has no table of embeddings, token_embd.weight: it is no whole language model",
            page="language-models",
        )
    check_words(file, path)
    c = configuration_of(file.metadata, table.shape[0], path)
    found: dict[str, StoredTensor] = {}
    for name, tensor in file.tensors.items():
        if name == FREQUENCY_FACTORS:
            continue
        called = _called(name, c)
        if called is None:
            raise _unknown(path, c, name)
        if c.architecture == "llama" and called.rpartition(".")[0].endswith(("q_proj", "k_proj")):
            tensor = in_order(tensor, _halves_first(tensor.shape[0], c.head_width))
        found[called] = tensor
    return Opened(c, checked(path, c, found), file.tensors.get(FREQUENCY_FACTORS))


def check_words(file: GGUFFile, path: Path) -> None:
    """Raise UsageError where the tokenizer of a file has not as many words as its table of embeddings has rows."""
    words, table = file.metadata.get("tokenizer.ggml.tokens"), file.tensors.get("token_embd.weight")
    if isinstance(words, list) and table is not None and len(words) != table.shape[0]:
        raise UsageError(
            f"{path}: its tokenizer has {len(words):,} words, and its table of embeddings {table.shape[0]:,} rows: the "
            "tokenizer is that of another model. Convert the model anew, with its own",
            page="language-models",
        )


def _unknown(path: Path, c: Configuration, name: str) -> UsageError:
    return UsageError(
        f"{path}: the tensor {name} is none that a decoder of {c.architecture} has: build its module of transformers, "
        "pocketune.build(module, inputs=...)",
        page="language-models",
    )


def _called(name: str, c: Configuration) -> str | None:
    """Return the name of `transformers` for a tensor."""
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        return None
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    known = _IN_LAYER | (_NORMED if c.norms_outputs else {})
    if block != "blk" or part not in known or not (number.isdecimal() and int(number) < c.layers):
        return None
    return f"model.layers.{int(number)}.{known[part]}.{kind}"


def shapes_of(c: Configuration) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the parameters of a decoder have, but for a head of its own and biases."""
    queries, keys = c.heads * c.head_width, c.key_heads * c.head_width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocabulary, c.width)}
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (c.width,),
        "self_attn.q_proj": (queries, c.width),
        "self_attn.k_proj": (keys, c.width),
        "self_attn.v_proj": (keys, c.width),
        "self_attn.o_proj": (c.width, queries),
        "post_attention_layernorm": (c.width,),
        "mlp.gate_proj": (c.hidden, c.width),
        "mlp.up_proj": (c.hidden, c.width),
        "mlp.down_proj": (c.width, c.hidden),
    }
    if c.architecture in ("qwen3", "gemma3"):
        layer |= {"self_attn.q_norm": (c.head_width,), "self_attn.k_norm": (c.head_width,)}
    if c.norms_outputs:
        layer |= {"pre_feedforward_layernorm": (c.width,), "post_feedforward_layernorm": (c.width,)}
    for number in range(c.layers):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (c.width,)}


def checked(path: Path, c: Configuration, found: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the parameters of a decoder, whole and of the right shapes.

    Raises:
        UsageError: one is missing, has another shape, or is none of the decoder's.
    """
    if c.layers * len(_IN_LAYER) > 2 * len(found):  # a number that is wrong may be as large as it likes
        raise UsageError(
            f"{path} is damaged: its metadata tells of {c.layers:,} layers, and it has {len(found)} "
            "tensors, too few for these. Copy or download it again; of a model in several files join them first "
            "(llama-gguf-split --merge)",
            page="language-models",
        )
    wanted = shapes_of(c)
    biases = {f"{n.removesuffix('.weight')}.bias": s[:1] for n, s in wanted.items() if "_proj" in n}
    if missing := [name for name in wanted if name not in found]:
        raise UsageError(
            f"{path} is damaged: it has {len(found)} of the tensors of {c.layers} layers and lacks {missing[0]}"
            + (f" and {len(missing) - 1} more" if missing[1:] else "")
            + ". Copy or download it again; of a model in several files join them first (llama-gguf-split --merge)",
            page="language-models",
        )
    for name, tensor in found.items():
        shape = (wanted | biases | {"lm_head.weight": (c.vocabulary, c.width)}).get(name)
        if shape is None:
            raise _unknown(path, c, tensor.name)
        if tensor.shape != shape:
            raise UsageError(
                f"{path}: the tensor {tensor.name} has the shape {list(tensor.shape)}, and by the file's metadata "
                f"it is {list(shape)}: the file was put together wrongly, take another one",
                page="language-models",
            )
    return found


def _halves_first(rows: int, width: int) -> np.ndarray:
    """Return where in a file of `llama`, which has the two numbers of a pair beside each other, each row lies.

    llama.cpp's convert_hf_to_gguf.py moves them so; `transformers` has the first ones of all pairs first.
    """
    return np.arange(rows).reshape(-1, width // 2, 2).swapaxes(1, 2).reshape(rows)
