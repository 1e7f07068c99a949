"""What the code refuses, read from the code: the messages of each page of docs/errors/."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from converter.support import errors
from converter.support.errors import PocketuneError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("converter", "jax_frontend")

#: The errors that a user meets, by name.
KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, PocketuneError) and kind is not PocketuneError
}

#: Letters of a message that say nothing.
_FEW = 12


@dataclass(frozen=True)
class Refusal:
    """One place that raises.

    Attributes:
        page: the page of docs/errors/ about it; empty where there is none.
        error: the class of the error.
        message: what it says, … for what depends on the input; empty where it is put together elsewhere.
        module: where it is raised.
    """

    page: str
    error: str
    message: str
    module: str


def refusals() -> list[Refusal]:
    """Return all of the project, in the order of its files."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [refusal for path in files for refusal in refusals_of(path.read_text(), _module(path))]


def refusals_of(source: str, module: str) -> Iterator[Refusal]:
    """Yield those of one file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            given = [keyword.value for keyword in node.keywords if keyword.arg == "page"]
            page = str(ast.literal_eval(given[0])) if given else KINDS[node.func.id].page
            yield Refusal(page, node.func.id, _text(node.args[0]) if node.args else "", module)


def listed(page: str, of: list[Refusal]) -> str:
    """Return the messages of one page, as Markdown."""
    messages = {(r.error, r.message) for r in of if r.page == page and len(re.findall(r"\w", r.message)) > _FEW}
    lines = [f"- `{error}` {_code(message)}" for error, message in sorted(messages)]
    head = ["", "## What it says", "", "… stands for names and numbers of yours.", ""]
    return "\n".join([*head, *lines, ""]) if lines else ""


def index(titles: dict[str, str], of: list[Refusal]) -> str:
    """Return the page of pages."""
    rows = []
    for page, title in sorted(titles.items(), key=lambda item: item[1].lower()):
        kinds = sorted({r.error for r in of if r.page == page})
        codes = ", ".join(f"`{kind}` ({KINDS[kind].exit_code})" for kind in kinds)
        rows.append(f"| [{title}]({page}.md) | `errors/{page}` | {codes} |")
    return "\n".join(
        [
            "# Errors",
            "",
            "A refusal says what is wrong, in which layer, and what to do. Its last line, `pocketune explain …`, shows",
            "the page here; in Python it is the error's `page`. In brackets: exit codes of the commands.",
            "",
            "| about | in the message | errors |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return " ".join(text.split())
        case ast.JoinedStr(values=parts):
            pieces = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
            return " ".join("".join(map(str, pieces)).split())
    return ""


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
