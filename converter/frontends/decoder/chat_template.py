"""Chat templates of a model: selection, variables, and the text of a conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.support.errors import UsageError

#: The name of a template that stands alone, and of one for conversations with tools.
DEFAULT, WITH_TOOLS = "default", "tool_use"
#: What a message's thoughts are called; templates read the first, or that of gpt-oss.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    """A conversation as one text.

    Attributes:
        text: of it.
        generated: where what the template marks by `{% generation %}` begins and ends; None: it marks nothing.
    """

    text: str
    generated: tuple[tuple[int, int], ...] | None


class ChatTemplates:
    """The chat templates of a model, rendered as `transformers` renders them."""

    def __init__(self, where: str, templates: Mapping[str, str], words: Mapping[str, str]) -> None:
        """Keep them; they are compiled when they are asked for.

        Args:
            where: the file, for sentences.
            templates: by name.
            words: special tokens by the names that templates have for them: `bos_token`.
        """
        self.where = where
        self._templates, self._words = dict(templates), dict(words)
        self._compiled: dict[str, Any] = {}

    @property
    def some(self) -> bool:
        """Whether there is any."""
        return bool(self._templates)

    def render(
        self,
        messages: Sequence[Message],
        asks: bool,
        template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> Rendered:
        """Return a conversation as a model reads it.

        Args:
            messages: with `role` and `content`, in order.
            asks: whether the model is to answer: `add_generation_prompt`.
            template: its name; None: that for tools where there are some, or the default.
            tools: JSON schemas of functions that the model may call.
            documents: with `title` and `text`.
            **others: what the template asks for besides: `enable_thinking`.

        Raises:
            UsageError: there is no such template, or it does not take these.
        """
        from converter.frontends.decoder.chat_sandbox import FAILURES, compiled, run

        text = self._text(template, tools)
        given = {
            **self._words,
            **{key: _plain(value) for key, value in others.items()},
            "messages": [_with_thoughts(_plain(message)) for message in messages],
            "tools": _plain(tools),
            "documents": _plain(documents),
            "add_generation_prompt": asks,
        }
        try:
            made = self._compiled.get(text) or compiled(text)
            self._compiled[text] = made
            said, spans = run(made, given)
        except FAILURES as error:
            raise UsageError(
                f"the chat template of {self.where} does not take these messages: {error}", page="language-models"
            ) from error
        marks = re.search(r"\{%-?\s*generation\s*-?%\}", text) is not None
        return Rendered(said, spans if marks else None)

    def _text(self, name: str | None, tools: Any) -> str:
        """Return the template of a name, or the one that is meant where there is none."""
        if not self._templates:
            raise UsageError(
                f"{self.where} has no chat template: encode texts that are written as the model knows them",
                page="language-models",
            )
        wanted = name or (WITH_TOOLS if tools is not None and WITH_TOOLS in self._templates else DEFAULT)
        if wanted not in self._templates:
            raise UsageError(
                f"{self.where} has no chat template called {wanted!r}, but {', '.join(sorted(self._templates))}: "
                "template=... says which",
                page="language-models",
            )
        return self._templates[wanted]


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without fields of None, and with its thoughts under each name that templates read."""
    message = {key: value for key, value in message.items() if value is not None}
    thoughts = next((message[key] for key in _THOUGHTS if key in message), None)
    return message if thoughts is None else {"thinking": thoughts, **message, "reasoning_content": thoughts}


def _plain(value: Any) -> Any:
    """Return values of JSON alone: others have methods that the sandbox does not know."""
    value = value.item() if isinstance(value, np.generic) else value
    match value:
        case Mapping():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [*map(_plain, value)] if isinstance(value, list) else tuple(map(_plain, value))
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
    return f"<{type(value).__name__}>"
