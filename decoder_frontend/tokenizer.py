"""Tokenizers and chat templates of GGUF files, on the host: texts and conversations as token ids, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converter.support.errors import UsageError
from converter.support.extras import require
from decoder_frontend.gguf_file import read_gguf
from decoder_frontend.names import check_words

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


@dataclass(frozen=True)
class Conversation:
    """Token ids of a conversation, and which of them are the answers that a model is to learn.

    Attributes:
        ids: int32 [tokens].
        answers: bool [tokens].
    """

    ids: np.ndarray
    answers: np.ndarray


class Tokenizer:
    """The tokenizer of a `.gguf` file.

    Attributes:
        ends: ids behind which a text or an answer is over.
        size: how many ids there are.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Read it.

        Raises:
            UsageError: the file is damaged, has no tokenizer or one of another kind, or libraries are missing.
        """
        require("text", "a tokenizer")
        self._path, file = Path(path), read_gguf(Path(path))
        check_words(file, self._path)
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
        self._words, self._metadata = words, metadata
        made = _of_bytes if kind == "gpt2" else _of_pieces
        self._tokenizer = made(words, metadata, path)
        self._add_control([w for w, k in zip(words, kinds.tolist(), strict=True) if k in (_CONTROL, _OWN)])
        self.size = len(words)
        named = ("eos_token_id", "eot_token_id")
        ends = {metadata[key] for name in named if (key := f"tokenizer.ggml.{name}") in metadata}
        self.ends = frozenset(ends | {i for i, w in enumerate(words) if w in ("<|im_end|>", "<end_of_turn>")})

    def encode(self, text: str, begins: bool = False) -> list[int]:
        """Return the ids of a text; `begins`: with the token in front that the model's texts begin with."""
        first = self._metadata.get("tokenizer.ggml.bos_token_id")
        begins = begins and first is not None and bool(self._metadata.get("tokenizer.ggml.add_bos_token"))
        return [*([first] if begins else []), *self._tokenizer.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without control tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a conversation that a model is to answer.

        Args:
            messages: `{"role": "user", "content": "..."}` and the like, in order.

        Raises:
            UsageError: the file has no chat template, or that does not take them.
        """
        return self.encode(self._rendered(messages, True))

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> Conversation:
        """Return the ids of a conversation from which a model is to learn what the assistant says in it.

        Raises:
            UsageError: as `prompt`, nothing is said by an assistant, or the template changes what was said before.
        """
        parts: list[str] = []
        for number, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            for said in (self._rendered(messages[:number], True), self._rendered(messages[: number + 1], False)):
                before = "".join(parts)
                if not said.startswith(before):
                    raise UsageError(
                        f"the chat template of {self._path} changes what was said before answer {number}: learn the "
                        "answers one by one, each as the last of a conversation",
                        page="language-models",
                    )
                parts.append(said[len(before) :])
        if not parts:
            raise UsageError("there is nothing to learn: no message has the role assistant", page="language-models")
        coded = [self.encode(part) for part in parts]
        answers = np.concatenate([np.full(len(ids), bool(number % 2)) for number, ids in enumerate(coded)])
        return Conversation(np.concatenate(coded).astype(np.int32), answers)

    def _rendered(self, messages: Sequence[Mapping[str, str]], asks: bool) -> str:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        template = self._metadata.get("tokenizer.chat_template")
        if not isinstance(template, str):
            raise UsageError(
                f"{self._path} has no chat template: encode texts that are written as the model knows them",
                page="language-models",
            )

        def refuse(said: str) -> None:
            raise TemplateError(said)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        first = self._word("bos_token_id")
        try:
            made = environment.from_string(template)
            return made.render(
                messages=list(messages),
                add_generation_prompt=asks,
                bos_token=first,
                eos_token=self._word("eos_token_id"),
            )
        except (TemplateError, TypeError, ValueError, LookupError, OverflowError) as error:
            raise UsageError(
                f"the chat template of {self._path} does not take these messages: {error}", page="language-models"
            ) from error

    def _word(self, name: str) -> str:
        number = self._metadata.get(f"tokenizer.ggml.{name}")
        return self._words[number] if isinstance(number, int) and 0 <= number < len(self._words) else ""

    def _add_control(self, words: Sequence[str]) -> None:
        from tokenizers import AddedToken

        self._tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])


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
