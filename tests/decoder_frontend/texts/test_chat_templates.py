"""Chat templates are rendered as by transformers, and labels stand on what an assistant says alone."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.support.errors import UsageError
from tests.decoder_frontend import written
from tests.decoder_frontend.texts import chats

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

TALK = [
    {"role": "user", "content": "a b?"},
    {"role": "assistant", "content": "one two"},
    {"role": "user", "content": "c?"},
    {"role": "assistant", "content": "three"},
]
#: Of earlier answers it leaves out the thoughts, so that a conversation does not begin as its part does.
FORGETS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}(hm){% endif %}"
    "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)


@cache
def templates(template: str) -> Any:
    from converter.frontends.decoder.chat_template import ChatTemplates

    return ChatTemplates("net.gguf", {"default": template}, chats.WORDS)


def ours(template: str, messages: Any, asks: bool, options: dict[str, Any]) -> chats.Found:
    try:
        found = templates(template).render(messages, asks, **options)
    except UsageError:
        return None
    return found.text, list(found.generated or ())


def test_templates_are_rendered_as_transformers_did() -> None:
    recorded = json.loads(chats.RECORDED.read_text())
    assert sum(one is not None for one in recorded.values()) > 900
    for called, *case in chats.cases():
        wanted = recorded[called]
        assert ours(*case) == (wanted and (wanted[0], [tuple(span) for span in wanted[1]])), called


def test_templates_are_rendered_as_transformers_does() -> None:
    pytest.importorskip("transformers")
    theirs = chats.in_transformers()
    for called, *case in chats.cases():
        assert ours(*case) == theirs(*case), called


def folder(path: Path, config: dict[str, Any], **files: str) -> Path:
    """A folder with a tokenizer of words, and no model."""
    words = ["<unk>", "</s>", "<user>", "<assistant>", "(hm)", "a", "b?", "c?", "one", "two", "three"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(words[1:5])
    path.mkdir()
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", **config}))
    for name, text in files.items():
        (path / name.replace("__", "/")).parent.mkdir(exist_ok=True)
        (path / name.replace("__", "/")).write_text(text)
    return path


def said(path: Path, messages: Any = TALK, **options: Any) -> tuple[str, list[str]]:
    """What a conversation is, and the answers in it, word by word."""
    from converter.frontends.decoder import Tokenizer

    tokenizer = Tokenizer(path)
    words = {i: word for word, i in tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab().items()}
    made = tokenizer.conversation(messages, **options)
    parts = np.split(made.ids, np.flatnonzero(np.diff(made.answers)) + 1)
    text = [" ".join(words[i] for i in part.tolist()) for part in parts]
    return " ".join(text), text[1::2] if not made.answers[0] else text[::2]


def test_answers_are_what_the_template_marks(tmp_path: Path) -> None:
    text, answers = said(folder(tmp_path / "net", {"chat_template": MARKS}))
    assert answers == ["one two </s>", "three </s>"]
    assert text.startswith("<user> a b? </s> <assistant> one two </s>")


def test_answers_of_a_template_that_forgets_thoughts_are_their_words(tmp_path: Path) -> None:
    text, answers = said(folder(tmp_path / "net", {"chat_template": FORGETS}))
    assert text == "<user> a b? </s> <assistant> one two </s> <user> c? </s> <assistant> (hm) three </s>"
    assert answers == ["one two </s>", "(hm) three </s>"]


def test_masks_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = folder(tmp_path / "net", {"chat_template": MARKS, "tokenizer_class": "PreTrainedTokenizerFast"})
    from converter.frontends.decoder import Tokenizer

    theirs = transformers.AutoTokenizer.from_pretrained(path).apply_chat_template(
        TALK, return_dict=True, return_assistant_tokens_mask=True
    )
    made = Tokenizer(path).conversation(TALK)
    assert made.ids.tolist() == theirs["input_ids"]
    assert made.answers.astype(int).tolist() == theirs["assistant_masks"]


def test_templates_are_found_where_transformers_looks(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "{{ eos_token }}a"}, {"name": "tool_use", "template": "b?"}]
    one = {"role": "user", "content": "x"}
    from converter.frontends.decoder import Tokenizer

    config = Tokenizer(folder(tmp_path / "config", {"chat_template": named}))
    assert config.prompt([one]) == config.encode("</s> a")
    assert config.prompt([one], tools=[]) == config.prompt([one], template="tool_use") == config.encode("b?")
    files = {"chat_template.jinja": "c?", "additional_chat_templates__short.jinja": "one"}
    file = Tokenizer(folder(tmp_path / "files", {"chat_template": named}, **files))
    assert file.prompt([one]) == file.encode("c?")
    assert file.prompt([one], template="short") == file.encode("one")
    with pytest.raises(UsageError, match="no chat template called 'tool_use', but default, short"):
        file.prompt([one], template="tool_use")
    assert file.ends == {file.encode("</s>")[0]}
    (tmp_path / "files/tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path / "files")


def test_named_templates_of_a_file(tmp_path: Path) -> None:
    from converter.frontends.decoder import Tokenizer

    written.write_small_model(tmp_path / "net.gguf")
    more = {"tokenizer.chat_template.tool_use": "{{ tools[0].name }}"}
    written.write_small_model(tmp_path / "named.gguf", more)
    tokenizer, one = Tokenizer(tmp_path / "named.gguf"), [{"role": "user", "content": "zo"}]
    assert tokenizer.prompt(one) == Tokenizer(tmp_path / "net.gguf").prompt(one)
    assert tokenizer.prompt(one, tools=[{"name": "abc"}]) == tokenizer.encode("abc")
