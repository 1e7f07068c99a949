"""`pocketune.Tokenizer`, on the host: texts and conversations as token ids, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converter.frontends.decoder.chat_template import Message
from converter.frontends.decoder.folder_texts import folder_texts
from converter.frontends.decoder.gguf_texts import gguf_texts
from converter.support.errors import UsageError
from converter.support.extras import require

#: What stands for an answer where the place of it is looked for; no template knows it.
_MARK = "\uf8ffanswer\uf8ff"
#: Where in a text something begins and ends.
Span = tuple[int, int]


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
    """The tokenizer of a `.gguf` file or of a folder of `transformers`.

    Attributes:
        ends: ids after which a text or an answer is over.
        size: how many ids there are.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Read it.

        Raises:
            UsageError: a file is damaged, there is no tokenizer or one of another kind, or libraries are missing.
        """
        require("text", "a tokenizer")
        self._path = Path(path)
        self._texts = folder_texts(self._path) if self._path.is_dir() else gguf_texts(self._path)
        self.ends, self.size = self._texts.ends, self._texts.size

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._texts.templates.some

    def encode(self, text: str, begins: bool = False) -> list[int]:
        """Return the ids of a text; `begins`: with the token in front that the model's texts begin with."""
        first = self._texts.begins if begins else ()
        return [*first, *self._texts.tokenizer.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without control tokens."""
        return str(self._texts.tokenizer.decode(list(ids), skip_special_tokens=True))

    def prompt(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Return the ids of a conversation that a model is to answer: `apply_chat_template` of `transformers`.

        Args:
            messages: `{"role": "user", "content": "..."}` and the like, in order.
            **options: `tools`, `documents`, `template` (the name of one of several), and whatever else the template
                asks for: `enable_thinking=False`.

        Raises:
            UsageError: there is no such chat template, or it does not take them.
        """
        return self.encode(self._texts.templates.render(messages, True, **options).text)

    def conversation(self, messages: Sequence[Message], **options: Any) -> Conversation:
        """Return the ids of a conversation from which a model is to learn what the assistant says in it.

        That is what the template marks by `{% generation %}`; where it marks nothing, what follows the words by which
        it asks for an answer, with the token that ends it.

        Args:
            messages: as for `prompt`.
            **options: as for `prompt`.

        Raises:
            UsageError: as `prompt`, nothing is said by an assistant, or what one says is not to be found in the text.
        """
        said = self._texts.templates.render(messages, False, **options)
        coded = self._texts.tokenizer.encode(said.text, add_special_tokens=False)
        if said.generated is None:
            answers = np.zeros(len(coded.ids), bool)
            for span in self._spans(messages, said.text, options):
                answers[self._whole_answer(coded, span)] = True
        else:
            answers = np.array([_meets(place, said.generated) for place in coded.offsets], bool)
        if not answers.any():
            raise UsageError("there is nothing to learn: no message has the role assistant", page="language-models")
        return Conversation(np.array(coded.ids, np.int32), answers)

    def _spans(self, messages: Sequence[Message], text: str, options: Mapping[str, Any]) -> Iterator[Span]:
        """Yield where in a text each answer begins and ends.

        It begins after the words that ask for it and ends where the conversation with it does. Where the text goes on
        otherwise (of earlier answers, templates leave out the thoughts), it begins and ends where its content does.
        """
        for number, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before = self._part(messages[:number], True, options)
            after = self._part(messages[: number + 1], False, options)
            if before and after and text.startswith(after) and after.startswith(before):
                yield len(before), len(after)
                continue
            marked = [*messages[:number], {**message, "content": _MARK}, *messages[number + 1 :]]
            first, mark, rest = (self._part(marked, False, options) or "").partition(_MARK)
            if not mark or _MARK in rest or not (text.startswith(first) and text.endswith(rest)):
                raise UsageError(
                    f"the chat template of {self._path} changes what was said before answer {number}: learn the "
                    "answers one by one, each as the last of a conversation",
                    page="language-models",
                )
            yield len(first), len(text) - len(rest)

    def _part(self, messages: Sequence[Message], asks: bool, options: Mapping[str, Any]) -> str | None:
        """Return the text of a part of a conversation; None: the template does not take it alone."""
        try:
            return self._texts.templates.render(messages, asks, **options).text if messages else None
        except UsageError:
            return None

    def _whole_answer(self, coded: Any, span: Span) -> slice:
        """Return the tokens of an answer, up to the one that ends it and with that one."""
        inside = [number for number, place in enumerate(coded.offsets) if _meets(place, (span,))]
        if not inside:
            return slice(0, 0)
        first, last = inside[0], inside[-1]
        ends = [number for number in inside if coded.ids[number] in self.ends]
        if ends:
            return slice(first, ends[-1] + 1)
        follows = coded.ids[last + 1 : last + 2]
        return slice(first, last + 1 + (bool(follows) and follows[0] in self.ends))


def _meets(place: Span, spans: Sequence[Span]) -> bool:
    """Return whether a token stands in one of several spans, if only with a part of it."""
    return any(place[0] < end and place[1] > begin for begin, end in spans)
