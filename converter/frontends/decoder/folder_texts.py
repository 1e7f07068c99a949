"""Tokenizers of folders: `tokenizer.json`, and chat templates where `transformers` looks for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.frontends.decoder.chat_template import DEFAULT, ChatTemplates
from converter.frontends.decoder.texts import ENDS, Texts
from converter.support.errors import UsageError
from converter.support.files import check_regular
from converter.support.strict_json import parse_json

_TOKENIZER, _CONFIG, _SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
_TEMPLATE, _NAMED = "chat_template.jinja", "additional_chat_templates"
#: Files that name ids behind which a text is over.
_GENERATES = ("generation_config.json", "config.json")
_WORDS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def folder_texts(path: Path) -> Texts:
    """Return the tokenizer and the chat templates of a folder of `transformers`.

    Raises:
        UsageError: it has no `tokenizer.json`, or one of the files is damaged.
    """
    from tokenizers import Tokenizer

    file = path / _TOKENIZER
    if not file.exists():
        raise UsageError(
            f"{path} has no {_TOKENIZER}: save the tokenizer of transformers there, "
            "AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
            page="language-models",
        )
    try:
        check_regular(file)
        made = Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no class of its own for it
        raise UsageError(f"{file} is damaged: {error}", page="language-models") from error
    config, special = _json(path / _CONFIG), _json(path / _SPECIAL)
    words = {name: word for name in _WORDS if (word := _word(config.get(name, special.get(name)))) is not None}
    named = {i for word in (*ENDS, words.get("eos_token", "")) if (i := made.token_to_id(word)) is not None}
    numbers = {i for file_name in _GENERATES for i in _ids(_json(path / file_name).get("eos_token_id"))}
    return Texts(
        made,
        ChatTemplates(str(path), _templates(path, config), words),
        frozenset(named | numbers),
        tuple(made.encode("", add_special_tokens=True).ids[:1]),
        made.get_vocab_size(with_added_tokens=True),
    )


def _templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return templates by name: files of their own come before what the configuration has."""
    files = {DEFAULT: path / _TEMPLATE} if (path / _TEMPLATE).exists() else {}
    files |= {one.stem: one for one in sorted((path / _NAMED).glob("*.jinja"))}
    if files:
        return {name: _read(file).decode(errors="strict") for name, file in files.items()}
    said = config.get("chat_template")
    if isinstance(said, str):
        return {DEFAULT: said}
    named = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    return {one["name"]: one["template"] for one in named if isinstance(one.get("template"), str) and "name" in one}


def _word(said: Any) -> str | None:
    """Return a special token, which files write as a string or with its options."""
    said = said.get("content") if isinstance(said, dict) else said
    return said if isinstance(said, str) else None


def _ids(said: Any) -> set[int]:
    return {one for one in (said if isinstance(said, list) else [said]) if type(one) is int}


def _json(file: Path) -> dict[str, Any]:
    """Return what a file holds; nothing where it is not there."""
    if not file.exists():
        return {}
    try:
        found = parse_json(_read(file))
    except ValueError as error:
        raise UsageError(f"{file} is damaged: {error}", page="language-models") from error
    return found if isinstance(found, dict) else {}


def _read(file: Path) -> bytes:
    try:
        check_regular(file)
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}", page="language-models") from error
