"""The sandbox of Jinja in which chat templates run, with the extensions, globals and filters of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from typing import Any

from jinja2 import Template, TemplateError, ext, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from converter.support.errors import UsageError

#: Where in a text something begins and ends.
Span = tuple[int, int]
#: What compiling and running a template may raise.
FAILURES = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
#: Older versions have known ways out of the sandbox.
_SAFE = (3, 1, 6)


def compiled(text: str) -> Template:
    """Return a template of a file, which nobody has looked at.

    Raises:
        UsageError: Jinja is so old that there are ways out of its sandbox.
        FAILURES: it is none of Jinja.
    """
    found = version("jinja2")
    if tuple(int(part) for part in found.split(".")[:3] if part.isdecimal()) < _SAFE:
        raise UsageError(
            f"jinja2 is {found}, whose sandbox has known ways out: pip install -U 'jinja2>=3.1.6'", page="arguments"
        )
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals |= {"raise_exception": _refuse, "strftime_now": _now, "dict": _Dict(), "namespace": _Names}
    return made.from_string(text)


def run(template: Template, given: dict[str, Any]) -> tuple[str, tuple[Span, ...]]:
    """Return the text that a template renders from its variables, and the spans of `{% generation %}` in it.

    Raises:
        FAILURES: the template does not accept the variables.
    """
    environment: Any = template.environment
    with environment.tracked() as (text, spans):
        for piece in template.generate(given):
            text.append(piece)
    return "".join(text), tuple(spans)


class _Generation(ext.Extension):
    """`{% generation %}...{% endgeneration %}`, by which a template says what a model is to learn."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (as the library has it)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        environment.extend(tracked=self.tracked)
        self._text: list[str] = []
        self._spans: list[Span] = []

    def parse(self, parser: Any) -> Any:
        """Return the node of a block: a call with its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_noted"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _noted(self, _: Any, caller: Any) -> Any:
        body, begin = caller(), sum(map(len, self._text))
        self._spans.append((begin, begin + len(body)))
        return body

    @contextmanager
    def tracked(self) -> Iterator[tuple[list[str], list[Span]]]:
        """Note what is generated while pieces are added to a text."""
        self._text, self._spans = [], []
        yield self._text, self._spans


class _Dict:
    """`dict(...)` and `dict.fromkeys`, without the class after them."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def fromkeys(self, *items: Any) -> dict[Any, Any]:
        """Return a dict of keys with one value."""
        return dict.fromkeys(*items)


class _Names(Namespace):
    """`namespace(...)` without attributes that begin with an underscore."""

    def __init__(*given: Any, **named: Any) -> None:
        own, values = given[0], dict(*given[1:], **named)
        for name in values:
            _check_name(name)
        Namespace.__init__(own, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


def _refuse(said: str) -> None:
    raise TemplateError(said)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as it is, where Jinja's own filter is for pages: without escapes, keys in their order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
