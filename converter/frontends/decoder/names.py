"""Names and shapes of parameters: those of `transformers`, which PEFT goes by, from those of GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from converter.frontends.decoder.architectures import Architecture
from converter.frontends.decoder.configuration import Configuration
from converter.frontends.decoder.gguf_file import GGUFFile, read_gguf
from converter.frontends.decoder.keys import OTHERWISE
from converter.frontends.decoder.metadata import OF_CONFIGURATION, card_of, configuration_of, row_of
from converter.frontends.decoder.stored import StoredTensor, in_order
from converter.program.gguf_names import Names, StoredAs
from converter.support.errors import UsageError
from converter.support.gguf import halves_first
from converter.support.notes import Note

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
#: Tensors of older files that the configuration tells, too.
_TOLD = ("attn_rot_embd",)
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@dataclass(frozen=True)
class Opened:
    """A decoder that was opened; none of its weights is read.

    Attributes:
        configuration: of the net.
        parameters: by the names and in the layout of `transformers`.
        notes: what is left out of the model.
        card: what the file says of the model for people, by names as of a model card.
    """

    configuration: Configuration
    parameters: Mapping[str, StoredTensor]
    notes: tuple[Note, ...] = ()
    card: Mapping[str, str] = field(default_factory=dict)


def open_gguf(path: Path) -> Opened:
    """Return the decoder of a `.gguf` file.

    Raises:
        UsageError: the file cannot be read or is damaged, or a tensor is missing, of another shape, or none that the
            decoder has.
    """
    file = read_gguf(path)
    row = row_of(file.metadata, path)
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise UsageError(
            f"{path} has no table of embeddings, token_embd.weight: it is no whole language model",
            page="language-models",
        )
    check_words(file, path)
    found: dict[str, StoredTensor] = {}
    for name, tensor in file.tensors.items():
        if name in OF_CONFIGURATION or any(f".{told}." in name for told in _TOLD):
            continue
        if (called := _called(name, row)) is None:
            raise _unknown(path, row, name)
        found[called] = tensor
    c = configuration_of(file.metadata, file.tensors, _biases(found), path)
    found = checked(path, c, found)
    for name, tensor in found.items():
        if is_paired(row, name):
            found[name] = in_order(tensor, halves_first(tensor.shape[0], c.head_width))
    return Opened(c, found, card=card_of(file.metadata))


def check_words(file: GGUFFile, path: Path) -> None:
    """Raise UsageError where the tokenizer of a file has not as many words as its table of embeddings has rows."""
    words, table = file.metadata.get("tokenizer.ggml.tokens"), file.tensors.get("token_embd.weight")
    if isinstance(words, list) and table is not None and len(words) != table.shape[0]:
        raise UsageError(
            f"{path}: its tokenizer has {len(words):,} words, and its table of embeddings {table.shape[0]:,} rows: the "
            "tokenizer belongs to another model. Convert the model again, with its own",
            page="language-models",
        )


def _unknown(path: Path, row: Architecture, name: str) -> UsageError:
    return UsageError(
        f"{path}: the tensor {name} is none that a decoder of {row.name} has here: {OTHERWISE}",
        page="language-models",
    )


def names_in_layer(row: Architecture) -> dict[str, str]:
    """Return the names of GGUF by those of `transformers`, of what a layer of an architecture has."""
    norms = [n for n in vars(row.norms).values() if n is not None]
    return dict(row.products) | dict(norms) | (_HEAD_NORMS if row.head_norm else {})


def names_in_gguf(c: Configuration) -> Names | None:
    """Return the names that llama.cpp has for the matrices of a decoder; None: it has no such decoders."""
    row, inside, outside = c.architecture, names_in_layer(c.architecture), {o: t for t, o in _OUTSIDE.items()}
    if row.in_gguf is None:
        return None
    found = dict[str, StoredAs]()
    for weight, shape in shapes_of(c).items():
        stem, _, kind = weight.rpartition(".")
        if kind != "weight" or len(shape) != 2:
            continue
        _, _, place = stem.partition("layers.")
        number, _, part = place.partition(".")
        tensor = outside[stem] if stem in outside else f"blk.{number}.{inside[part]}"
        found[weight] = StoredAs(f"{tensor}.weight", c.head_width if is_paired(row, weight) else 0)
    return Names(row.in_gguf, found)


def is_paired(row: Architecture, name: str) -> bool:
    """Return whether GGUF has the rows of a parameter in another order than `transformers`; see `halves_first`."""
    return row.pairs and name.rpartition(".")[0].endswith(("q_proj", "k_proj"))


def _called(name: str, row: Architecture) -> str | None:
    """Return the name of `transformers` for a tensor of GGUF."""
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        return None
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    known = {theirs: ours for ours, theirs in names_in_layer(row).items()}
    if block != "blk" or part not in known or not number.isdecimal():
        return None
    return f"model.layers.{int(number)}.{known[part]}.{kind}"


def _biases(found: Mapping[str, StoredTensor]) -> frozenset[str]:
    """Return the products that have a bias in any layer; one of q, k and v tells of all three."""
    biases = {
        name.split(".", 3)[3].removesuffix(".bias")
        for name in found
        if name.endswith("_proj.bias") and name.startswith("model.layers.")
    }
    return frozenset(biases | (set(_ATTENTION) if biases & set(_ATTENTION) else set()))


def shapes_of(c: Configuration) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a decoder, all of which it has."""
    row, queries, keys = c.architecture, c.heads * c.head_width, c.kv_heads * c.head_width
    products: dict[str, tuple[int, int]] = {
        "self_attn.q_proj": (queries, c.width),
        "self_attn.k_proj": (keys, c.width),
        "self_attn.v_proj": (keys, c.width),
        "self_attn.qkv_proj": (queries + 2 * keys, c.width),
        "self_attn.o_proj": (c.width, queries),
        "mlp.gate_proj": (c.hidden, c.width),
        "mlp.up_proj": (c.hidden, c.width),
        "mlp.gate_up_proj": (2 * c.hidden, c.width),
        "mlp.down_proj": (c.width, c.hidden),
    }
    layer: dict[str, tuple[int, ...]] = {f"{name}.weight": products[name] for name in row.products}
    layer |= {f"{name}.bias": products[name][:1] for name in row.products if name in c.biases}
    layer |= {f"{norm[0]}.weight": (c.width,) for norm in vars(row.norms).values() if norm is not None}
    if row.head_norm:
        sizes = (queries, keys) if row.head_norm == "all" else (c.head_width, c.head_width)
        layer |= {f"{name}.weight": (size,) for name, size in zip(_HEAD_NORMS, sizes, strict=True)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocabulary, c.width)}
    for number in range(c.layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes |= {"model.norm.weight": (c.width,)}
    return shapes if c.tied else shapes | {"lm_head.weight": (c.vocabulary, c.width)}


def checked(path: Path, c: Configuration, found: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the parameters of a decoder, whole and of the right shapes.

    Raises:
        UsageError: one is missing, has another shape, or is none of the decoder's.
    """
    wanted = shapes_of(c)
    if len(wanted) > 2 * len(found):  # a number of layers that is wrong, or one file of several
        raise UsageError(
            f"{path} is damaged: its metadata tells of {c.layers:,} layers, and it has {len(found)} "
            "tensors, too few for these. Copy or download it again; of a model in several files join them first "
            "(llama-gguf-split --merge)",
            page="language-models",
        )
    if missing := [name for name in wanted if name not in found]:
        raise UsageError(
            f"{path} is damaged: it has {len(found)} of the tensors of {c.layers} layers and lacks {missing[0]}"
            + (f" and {len(missing) - 1} more" if missing[1:] else "")
            + ", which its configuration asks for. Copy or download it again; of a model in several files join them "
            "first (llama-gguf-split --merge)",
            page="language-models",
        )
    for name, tensor in found.items():
        shape = wanted.get(name)
        if shape is None:
            raise _unknown(path, c.architecture, tensor.name)
        if tensor.shape != shape:
            raise UsageError(
                f"{path}: the tensor {tensor.name} has the shape {list(tensor.shape)}, and by the file's metadata "
                f"it is {list(shape)}: the file was put together wrongly, take another one",
                page="language-models",
            )
    return found
