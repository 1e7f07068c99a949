"""Examples of a `.jsonl` file: conversations, prompts with their answers, or texts, each line checked first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.support.errors import UsageError
from converter.support.files import check_regular
from converter.support.strict_json import parse_json

if TYPE_CHECKING:
    from converter.frontends.decoder import Conversation, Tokenizer

#: What an answer is called beside `prompt`.
_ANSWERS = ("answer", "completion", "response")
#: So many lines with a fault are named.
_MOST = 5


@dataclass(frozen=True)
class Example:
    """A line.

    Attributes:
        line: its number, from 1.
        messages: of a conversation; of a prompt and an answer, two; of a text, one.
        options: for the chat template: `tools`.
        is_plain: whether it is a prompt and an answer, which a model without a chat template takes as they are, or a
            text, which every model does.
    """

    line: int
    messages: tuple[Mapping[str, Any], ...]
    options: Mapping[str, Any]
    is_plain: bool

    @property
    def asked(self) -> tuple[Mapping[str, Any], ...]:
        """The conversation up to its last answer, without that."""
        last = max(i for i, message in enumerate(self.messages) if message["role"] == "assistant")
        return self.messages[:last]

    @property
    def before(self) -> tuple[Mapping[str, Any], ...]:
        """What is said before the first question: the messages of the system."""
        return tuple(one for one in self.messages[:1] if one["role"] == "system")

    @property
    def is_text(self) -> bool:
        """Whether it is a text by itself, all of which is learned."""
        return self.is_plain and len(self.messages) == 1

    @property
    def wanted(self) -> str:
        """The last answer."""
        return str(self.messages[len(self.asked)].get("content") or "")

    @property
    def question(self) -> str:
        """What is asked last."""
        return str(self.asked[-1].get("content") or "") if self.asked else ""


def read_examples(path: Path) -> list[Example]:
    """Return the examples of a file, a JSON object a line.

    Raises:
        UsageError: it cannot be read or has none, or lines of it are no examples; these are named by their numbers.
    """
    check_regular(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", page="command-line") from error
    found, faults = list[Example](), list[str]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_example(number, parse_json(line)))
        except ValueError as error:
            faults.append(f"line {number}: {error}")
    if faults:
        more = f", and {len(faults) - _MOST} more lines" if len(faults) > _MOST else ""
        raise UsageError(f"{path}, {'; '.join(faults[:_MOST])}{more}", page="command-line")
    if not found:
        raise UsageError(f"{path} has no examples", page="command-line")
    return found


def _example(number: int, row: Any) -> Example:
    """Return the example of a line. Raise ValueError where it is none."""
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    if "messages" not in row:
        if "text" in row and "prompt" not in row:
            if not isinstance(row["text"], str) or not row["text"].strip():
                raise ValueError("text is a text that is not empty")
            return Example(number, ({"role": "assistant", "content": row["text"]},), {}, True)
        answers = [name for name in _ANSWERS if name in row]
        if "prompt" not in row or len(answers) != 1:
            has = ", ".join(row) or "nothing"
            raise ValueError(
                f'expected {{"messages": [...]}}, {{"prompt": ..., "answer": ...}} or {{"text": ...}}, and it has {has}'
            )
        prompt, answer = row["prompt"], row[answers[0]]
        if not isinstance(prompt, str) or not isinstance(answer, str) or not answer.strip():
            raise ValueError("prompt and answer are texts, and the answer is not empty")
        pair = {"role": "user", "content": prompt}, {"role": "assistant", "content": answer}
        return Example(number, pair, {}, True)
    messages = row["messages"]
    good = isinstance(messages, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages
    )
    if not good:
        raise ValueError('messages is a list of {"role": ..., "content": ...}')
    if not any(one["role"] == "assistant" for one in messages):
        raise ValueError("no message has the role assistant, so there is nothing to learn")
    return Example(number, tuple(messages), {"tools": row["tools"]} if row.get("tools") else {}, False)


def as_tokens(path: Path, examples: list[Example], tokenizer: Tokenizer) -> list[Conversation]:
    """Return the token ids of examples, and which of them are answers.

    Raises:
        UsageError: the model's chat template does not take lines of the file, which are named.
    """
    from converter.frontends.decoder import Conversation

    found, faults = list[Conversation](), list[str]()
    for example in examples:
        try:
            if example.is_text or (example.is_plain and not tokenizer.has_template):
                prompt = tokenizer.encode(example.question, begins=True)
                answer = [*tokenizer.encode(example.wanted), *sorted(tokenizer.ends)[:1]]
                mask = np.array([False] * len(prompt) + [True] * len(answer))
                found.append(Conversation(np.array([*prompt, *answer], np.int32), mask))
            else:
                found.append(tokenizer.conversation(example.messages, **example.options))
        except UsageError as error:
            faults.append(f"line {example.line}: {error}")
    if faults:
        more = f", and {len(faults) - _MOST} more lines" if len(faults) > _MOST else ""
        raise UsageError(f"{path}, {'; '.join(faults[:_MOST])}{more}", page="language-models")
    return found
