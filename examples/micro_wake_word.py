"""A wake word on a microcontroller that learns its owner: a small DS-CNN, pretrained on synthetic people.

First the net learns to tell twenty words in front of nineteen others by everybody of a group, then its head the
word by the same; these layers stay as they are, in int8, and on the board the head learns how its owner says it.
The head is one layer or two: a small dense net on an embedding that stays as it is, as openWakeWord has for each word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import pocketune
from examples.data.micro_speech import BANDS, FRAMES, Rows, Speaker, features, rows, utterance

WORD = "pocket tune"
#: What the net is pretrained on: every word in front with every one behind, the wake word among them.
_FIRST = (
    *("pocket", "rocket", "packet", "open", "good", "turn", "play", "set", "next", "call", "seven", "yellow", "my"),
    *("two", "kitchen", "never", "park", "a cup of", "picked a", "twenty"),
)
_SECOND = (
    *("tune", "tuna", "tool", "ten", "time", "moon", "door", "light", "morning", "book", "day", "mother", "timer"),
    *("noon", "to", "it", "money", "tea", "two"),
)
#: What an owner says ten times beside ten times the word, so that the net knows her voice from the word.
OF_THE_OWNER = (
    *("see you later", "what is that", "in my pocket", "pocket call", "soon enough"),
    *("yes please", "tune the radio", "where are you", "dinner time", "park it"),
)
#: What nobody said before she is judged.
JUDGED = (
    *("rocky road", "fine tune", "locket", "tomorrow", "good night", "pick it up", "too soon", "the garden"),
    *("come here", "a cup of tea", "not today", "twenty two", "hello there", "tuner", "socket"),
)
_WIDTH, _BLOCKS, _SEGMENTS, _BATCH = 24, 3, 5, 32


class Pretrained(NamedTuple):
    """Weights of the net, and rows that it was pretrained on, float32 [N, 49, 40, 1]."""

    params: Mapping[str, Any]
    calibration: np.ndarray


def parameters(seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Return new weights, with a head that tells the words in front and behind."""
    rng = np.random.default_rng(seed)

    def layer(*shape: int) -> dict[str, np.ndarray]:
        weights = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))
        return {"w": weights.astype(np.float32), "b": np.zeros(shape[-1], np.float32)}

    found = {"conv": layer(10, 8, 1, _WIDTH)}
    for k in range(_BLOCKS):
        found |= {f"deep{k}": layer(3, 3, 1, _WIDTH), f"point{k}": layer(1, 1, _WIDTH, _WIDTH)}
    return found | {"head": layer(_WIDTH * _SEGMENTS, len(_FIRST) + len(_SECOND))}


def apply(params: Mapping[str, Any], x: Any) -> Any:
    """float32 [B, 49, 40, 1] -> logits [B, classes], of means over each fifth of the time."""

    def conv(x: Any, name: str, strides: tuple[int, int] = (1, 1), groups: int = 1) -> Any:
        layer, axes = params[name], ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(
            x, layer["w"], strides, "SAME", dimension_numbers=axes, feature_group_count=groups
        )
        return jax.nn.relu(y + layer["b"])

    x = conv(x, "conv", (2, 4))
    for k in range(_BLOCKS):
        x = conv(conv(x, f"deep{k}", groups=_WIDTH), f"point{k}")
    rows, time, bands, width = x.shape
    parts = x.reshape(rows, _SEGMENTS, time // _SEGMENTS, bands, width).mean((2, 3))
    embedding = parts.reshape(rows, -1)
    if "hidden" in params:
        embedding = jax.nn.relu(embedding @ params["hidden"]["w"] + params["hidden"]["b"])
    return embedding @ params["head"]["w"] + params["head"]["b"]


def model(params: Mapping[str, Any]) -> pocketune.Model:
    """Return the net with weights."""
    return pocketune.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, FRAMES, BANDS, 1), np.float32)])


def both_words(logits: Any, words: Any) -> Any:
    """Return the loss [B] of logits [B, 39] by the numbers of the words in front and behind, int32 [B, 2]."""
    pairs = zip(jax.numpy.split(logits, [len(_FIRST)], axis=-1), words.T, strict=True)
    return sum(-(jax.nn.log_softmax(part) * jax.nn.one_hot(word, part.shape[-1])).sum(-1) for part, word in pairs)


def pretrained(
    speakers: Sequence[Speaker], epochs: int = 15, said: int = 96, seed: int = 0, hidden: int = 0
) -> Pretrained:
    """Return the net as the maker of a device pretrains it, in a minute or two.

    Args:
        speakers: whose voices; see `people`.
        epochs: passes over what they say.
        said: how many texts each of them says, the wake word one in eight times.
        seed: of texts, noise and weights; what eSpeak's voices say depends on what they have said before, too.
        hidden: width of a dense layer in front of the last one; 0: the head is the last one alone.

    Raises:
        UsageError: a package is not here yet.
    """
    rng = np.random.default_rng(seed)
    words = np.stack([rng.integers(0, len(part), (len(speakers), said)) for part in (_FIRST, _SECOND)], -1)
    words[:, ::8] = 0
    words = words.reshape(-1, 2).astype(np.int32)
    turns = zip([speaker for speaker in speakers for _ in range(said)], words, strict=True)
    x = np.stack([features(utterance(who, f"{_FIRST[a]} {_SECOND[b]}", rng)) for who, (a, b) in turns])
    of_two: dict[str, Any] = {"loss": both_words, "y": jax.ShapeDtypeStruct((_BATCH, 2), np.int32)}
    params = _fitted(parameters(seed), Rows(x, words), "full", epochs, 3e-3, **of_two)
    params |= _head(hidden, seed)
    is_word = Rows(x, (words == 0).all(1).astype(np.int32))
    return Pretrained(_fitted(params, is_word, _trained(params), 10, 3e-3), x[::24])


def program(net: Pretrained, **options: Any) -> pocketune.Program:
    """Return what a board runs: the head trains, a row at a time, on features that int8 makes of it."""
    settings: dict[str, Any] = {"update": _trained(net.params), "optimizer": "sgd", "batch": 1, "frozen": "int8"}
    settings = settings | {"signatures": ("train", "features", "infer")} | options
    labels = ["other", WORD]
    return pocketune.build(
        model(net.params), target="tflm", calibration=net.calibration, labels=labels, check=False, **settings
    )


def of_an_owner(speaker: Speaker, seed: int) -> tuple[Rows, Rows]:
    """Return 20 utterances to learn from, ten of the word, in the order they are said; and 100 others to judge by."""
    taught = [text for other in OF_THE_OWNER for text in (WORD, other)]
    judged = [*[WORD] * 40, *JUDGED * 4]
    return rows([speaker], taught, WORD, seed), rows([speaker], judged, WORD, seed + 1)


def scores(session: pocketune.TrainingSession, x: np.ndarray) -> np.ndarray:
    """Return how far rows are on the side of the word: its logit beyond the other one, [N]."""
    logits = session.infer(x)
    return logits[:, 1] - logits[:, 0]


def _head(hidden: int, seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Return a new head that tells the word: zeros, behind a layer of `hidden` numbers where it has one."""
    width = _WIDTH * _SEGMENTS
    head = {"w": np.zeros((hidden or width, 2), np.float32), "b": np.zeros(2, np.float32)}
    if not hidden:
        return {"head": head}
    weights = np.random.default_rng(seed + 1).standard_normal((width, hidden)) * np.sqrt(2 / width)
    return {"hidden": {"w": weights.astype(np.float32), "b": np.zeros(hidden, np.float32)}, "head": head}


def _trained(params: Mapping[str, Any]) -> Any:
    """Return what trains on a board, as an update scheme."""
    return {f"{name}/*": 1 for name in ("hidden", "head") if name in params}


def _fitted(params: Mapping[str, Any], data: Rows, update: Any, epochs: int, rate: float, **options: Any) -> Any:
    """Return weights that were trained by a program, at a rate that falls to nothing."""
    built = pocketune.build(model(params), update=update, batch=_BATCH, optimizer="adam", check=False, **options)
    steps = epochs * len(data.x) / _BATCH
    with pocketune.TrainingSession(built.data) as session:
        falling = lambda step: rate * max(0.02, 1 - step / steps)  # noqa: E731
        session.fit(*data, epochs=epochs, learning_rate=falling, seed=0, progress=False)
        learned = session.parameters()
    return {
        name: {key: learned.get(f"{name}/{key}", value) for key, value in layer.items()}
        for name, layer in params.items()
    }
