"""Every block of Python and shell in README.md and docs/ runs, as a reader would run it.

Pages for users run against the installed wheel, those for contributors against the clone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import faults, lay_out, pages, parse, run
from tests.installed import Installed
from tests.tree import ROOT

#: Pages that run in every test run, for they take seconds; the others in the slow one.
QUICK = {"docs/runtime.md", "docs/tflite-files.md", "docs/tutorial.md"}
#: Pages for those who work on the clone.
CLONE = {
    *("CONTRIBUTING.md", "docs/adding-an-op.md", "docs/app.md", "docs/extending.md", "docs/extending-engines.md"),
    *("docs/extending-options.md", "docs/extending-rules.md", "docs/harness.md"),
}


def _case(path: Path) -> object:
    name = str(path.relative_to(ROOT))
    return pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.mark.quick
@pytest.mark.parametrize("path", [_case(path) for path in pages() if list(parse(path).examples())])
def test_the_blocks_of_a_page_run(path: Path, tmp_path: Path, installed: Installed) -> None:
    command = ["-m", "tests.docs.blocks", str(path)]
    if str(path.relative_to(ROOT)) in CLONE:
        lay_out(tmp_path, Path(sys.prefix))
        settings = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *command], cwd=tmp_path, env=settings, check=True)
    else:
        lay_out(tmp_path, installed.folder)
        print(installed.run(installed.python, *command, at=tmp_path))


def test_every_block_says_its_language() -> None:
    found = [fault for path in pages() for fault in faults(str(path.relative_to(ROOT)), path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["```\nx = 1\n```\n", "```py\nx = 1\n```\n", "Thus:\n\n    x = 1\n"])
def test_a_planted_block_is_found(text: str) -> None:
    assert len(faults("page.md", text)) == 1


def test_a_block_that_fails_fails_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.chdir(tmp_path)
    page.write_text("```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError):
        run(page)
    lay_out(tmp_path, Path(sys.prefix))
    page.write_text('<!-- skip: next "no such thing" -->\n\n```bash\nfalse\n```\n\n```bash\ntest -d .venv\n```\n')
    assert len(run(page)) == 1
