"""What a file or folder says of texts: its tokenizer, its chat templates, and where a text begins and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from converter.frontends.decoder.chat_template import ChatTemplates

#: Words behind which an answer is over, whatever else the model's files say of them.
ENDS = frozenset({"<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|return|>", "<turn|>"})


@dataclass(frozen=True)
class Texts:
    """A tokenizer and what belongs to it.

    Attributes:
        tokenizer: of the library `tokenizers`.
        templates: for conversations.
        ends: ids after which a text or an answer is over.
        begins: ids that the model's texts begin with.
        size: how many ids there are.
    """

    tokenizer: Any
    templates: ChatTemplates
    ends: frozenset[int]
    begins: tuple[int, ...]
    size: int
