"""Short chat templates, each with what well-known models' templates are made of, and conversations for them.

python -m tests.decoder_frontend.texts.chats    records what transformers makes of them
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "recorded" / "chats.json"
WORDS = {"bos_token": "<s>", "eos_token": "</s>"}


#: By the family in whose templates the construct stands.
TEMPLATES: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Le temps <ici> à é & là",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string"}, "kind": {"type": "string", "enum": ["C", "F"]}},
            "required": ["where"],
        },
    },
}
_CALL = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": {"where": "Zürich <b>"}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": " Hi <there> é "}],
    "several": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning": "why", "tool_calls": None},
    ],
    "calls": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "name": "weather", "tool_call_id": "abc123def", "content": '{"t": 3}'},
        {"role": "assistant", "content": "3"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " look"}, {"type": "image", "image": object()}]}],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "does not think": {"enable_thinking": False, "custom": {"z": [1, 2.5, None], "a": "é"}},
    "tools": {"tools": [_TOOL]},
    "documents": {"documents": [{"title": "one", "text": "é<x>"}]},
}
Found = tuple[str, list[tuple[int, int]]] | None


def cases() -> Iterator[tuple[str, str, list[dict[str, Any]], bool, dict[str, Any]]]:
    """Yield each rendering: what it is called, template, messages, whether an answer is asked for, options."""
    for name, template in TEMPLATES.items():
        for conversation, messages in CONVERSATIONS.items():
            for option, options in OPTIONS.items():
                for asks in (False, True):
                    called = "/".join((name, conversation, option, "asks" if asks else "tells"))
                    yield called, template, copy.copy(messages), asks, dict(options)


def in_transformers() -> Callable[..., Found]:
    """Return what renders a conversation as `apply_chat_template` does; None where that refuses it."""
    from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

    def render(template: str, messages: list[dict[str, Any]], asks: bool, options: dict[str, Any]) -> Found:
        try:
            (text,), (spans,) = render_jinja_template(
                [_normalize_chat_messages(messages)],
                chat_template=template,
                add_generation_prompt=asks,
                return_assistant_tokens_mask=True,
                **{"tools": None, "documents": None, **options},
                **WORDS,
            )
        except Exception:
            return None
        return text, [tuple(span) for span in spans]

    return render


if __name__ == "__main__":
    rendered = in_transformers()
    found = {called: rendered(*case) for called, *case in cases()}
    RECORDED.write_text(json.dumps(found, ensure_ascii=False, indent=0) + "\n")
