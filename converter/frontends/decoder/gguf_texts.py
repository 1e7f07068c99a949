"""Tokenizers of GGUF files, made of their words, scores and merges for the library `tokenizers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converter.frontends.decoder.chat_template import DEFAULT, ChatTemplates
from converter.frontends.decoder.gguf_file import read_gguf
from converter.frontends.decoder.names import check_words
from converter.frontends.decoder.texts import ENDS, Texts
from converter.support.errors import UsageError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
#: How a text is split before bytes are merged, one expression behind the other, by GGUF's name.
_SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "llama-bpe": (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",),
    "qwen2": (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",),
    "smollm": (r"\p{N}", _GPT2),
}
#: Kinds of tokens that a text does not spell.
_CONTROL, _OWN = 3, 4
_SPACE = "▁"
#: Names of special tokens in templates, by those of GGUF; one of these it spells so.
_SPECIAL = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "seperator": "sep_token",
    "padding": "pad_token",
    "cls": "cls_token",
    "mask": "mask_token",
}
_TEMPLATE = "tokenizer.chat_template"


def gguf_texts(path: Path) -> Texts:
    """Return the tokenizer and the chat templates of a `.gguf` file.

    Raises:
        UsageError: the file is damaged, or has no tokenizer or one of another kind.
    """
    file = read_gguf(path)
    check_words(file, path)
    metadata = file.metadata
    words, kind = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.model")
    if not isinstance(words, list) or kind not in ("gpt2", "llama"):
        raise UsageError(
            f"{path} has no tokenizer that is read here, but {kind!r}: make token ids by that of transformers",
            page="language-models",
        )
    kinds = metadata.get("tokenizer.ggml.token_type")
    kinds = np.ones(len(words), np.int32) if kinds is None else np.asarray(kinds)
    if len(kinds) != len(words):
        raise UsageError(f"{path} is damaged: {len(words)} tokens of {len(kinds)} kinds", page="language-models")
    made = (_of_bytes if kind == "gpt2" else _of_pieces)(words, metadata, path)
    _add_control(made, [w for w, k in zip(words, kinds.tolist(), strict=True) if k in (_CONTROL, _OWN)])
    ends = {metadata[key] for name in ("eos", "eot") if (key := f"tokenizer.ggml.{name}_token_id") in metadata}
    first: Any = metadata.get("tokenizer.ggml.bos_token_id")
    begins = isinstance(first, int) and bool(metadata.get("tokenizer.ggml.add_bos_token"))
    return Texts(
        made,
        _templates(path, metadata, words),
        frozenset(ends | {i for i, word in enumerate(words) if word in ENDS}),
        (int(first),) if begins else (),
        len(words),
    )


def _templates(path: Path, metadata: Mapping[str, Any], words: Sequence[str]) -> ChatTemplates:
    templates = {
        key.removeprefix(_TEMPLATE).removeprefix(".") or DEFAULT: text
        for key, text in metadata.items()
        if (key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")) and isinstance(text, str)
    }
    ids = {called: metadata.get(f"tokenizer.ggml.{name}_token_id") for name, called in _SPECIAL.items()}
    special = {called: words[i] for called, i in ids.items() if isinstance(i, int) and 0 <= i < len(words)}
    return ChatTemplates(str(path), templates, special)


def _add_control(made: Any, words: Sequence[str]) -> None:
    from tokenizers import AddedToken

    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])


def _of_bytes(words: Sequence[str], metadata: Mapping[str, Any], path: Any) -> Any:
    """Return a tokenizer that merges bytes, as GPT-2's."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    pre, merges = metadata.get("tokenizer.ggml.pre", "gpt-2"), metadata.get("tokenizer.ggml.merges")
    splits = _SPLITS.get("gpt-2" if pre == "default" else pre)
    if splits is None or not isinstance(merges, list):
        raise UsageError(
            f"{path} splits texts by {pre!r}; {', '.join(_SPLITS)} are read: make token ids by the tokenizer of "
            "transformers",
            page="language-models",
        )
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"{path} is damaged: its tokenizer has a merge that is no pair", page="language-models")
    made = _merging(path, vocab={word: i for i, word in enumerate(words)}, merges=pairs)
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    parts = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    return made


def _merging(path: Any, **options: Any) -> Any:
    """Return a tokenizer that merges pairs of tokens."""
    from tokenizers import Tokenizer, models

    try:
        return Tokenizer(models.BPE(**options))
    except Exception as error:  # the library has no class of its own for it
        raise UsageError(f"{path} is damaged: its tokenizer: {error}", page="language-models") from error


def _of_pieces(words: Sequence[str], metadata: Mapping[str, Any], path: Any) -> Any:
    """Return a tokenizer of SentencePiece's kind: the pieces with the best scores are merged first."""
    from tokenizers import decoders, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(words):
        raise UsageError(f"{path} is damaged: its tokenizer has no score for each token", page="language-models")
    known = {word: i for i, word in enumerate(words)}
    merges = []
    for word, score in zip(words, np.asarray(scores).tolist(), strict=True):
        cuts = [(word[:i], word[i:]) for i in range(1, len(word))]
        merges += [(-score, known[a], known[b], a, b) for a, b in cuts if a in known and b in known]
    merges.sort()
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    made = _merging(
        path,
        vocab=known,
        merges=[(a, b) for *_, a, b in merges],
        unk_token=words[unknown] if isinstance(unknown, int) and 0 <= unknown < len(words) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    replaced = [normalizers.Replace(" ", _SPACE)]
    made.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *replaced] if prefix else replaced)
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
    return made
