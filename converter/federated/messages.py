"""Messages of Flower and the tree of their objects, from one whom nobody trusts."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Array, Message
from flwr.common.serde import message_from_proto
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content

from converter.federated.arrays import RefusedRound

#: Of a message: its records, their arrays, and the chunks of these lie below it.
_DEPTH = 5
#: An array is two objects, and one more for each 5 MiB: no program has so many.
_OBJECTS = 10_000


def ids_of(tree: Any) -> list[str]:
    """Return the ids of a tree of objects. Raises RefusedRound where it is deeper or larger than any message."""
    found, level, depth = [tree.object_id], list(tree.children), 1
    while level:
        depth += 1
        found += [one.object_id for one in level]
        if depth > _DEPTH or len(found) > _OBJECTS:
            raise RefusedRound(f"the message has {len(found)} objects, {depth} deep, or more")
        level = [child for one in level for child in one.children]
    return found


def head_of(envelope: Any) -> Message:
    """Return a message without its content."""
    try:
        return message_from_proto(envelope)
    except Exception as error:  # of what is no message Flower raises errors of many kinds
        raise RefusedRound(f"the message cannot be read: {error}") from None


def inflated(name: str, contents: dict[str, bytes], answers: str, most: int) -> Message:
    """Return a message of its objects.

    Args:
        name: its id.
        contents: all objects by id.
        answers: id of the message that it answers, as its envelope has it; empty where it answers none.
        most: bytes that the chunks of all arrays may have: an array may name one chunk many times.

    Raises:
        RefusedRound: they are no message, or not the one of the envelope.
    """
    try:
        if sum(_chunked(content, contents) for content in contents.values()) > most:
            raise ValueError(f"its arrays are larger than {most} bytes")
        for content in contents.values():
            validate_object_content(content)
        message = inflate_object_from_contents(name, contents)
        message.metadata.__dict__["_message_id"] = name
    except Exception as error:  # of bytes that are no objects Flower raises errors of many kinds
        raise RefusedRound(f"the message cannot be read: {error}") from None
    if not isinstance(message, Message) or message.metadata.reply_to_message_id != answers:
        raise RefusedRound("the message is not what its envelope says")
    return message


def _chunked(content: bytes, contents: dict[str, bytes]) -> int:
    """Return how many bytes of chunks an object joins; 0 where it is no array."""
    kind, children, _ = get_object_head_values_from_object_content(content)
    if kind != Array.__qualname__:
        return 0
    order = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return sum(len(contents[children[place]]) for place in order)
