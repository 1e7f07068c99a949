"""The command line in this process: a start of Python with JAX costs seconds."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from converter.cli import main
from converter.support.invocation import program

FACTORIES = "tests.cli.factories"


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


def next_command(ran: Ran) -> list[str]:
    """The arguments of the command that a run said to run next."""
    (line,) = [line for line in ran.out.splitlines() if line.startswith("next: ")]
    assert line.startswith(f"next: {program()} ")
    return shlex.split(line.removeprefix(f"next: {program()} "))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command in an empty folder; a failing one must leave the folder as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def files() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and "__pycache__" not in p.parts}

    def run(*arguments: str) -> Ran:
        before = files()
        capsys.readouterr()  # what the test itself printed
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        ran = Ran(int(ended.value.code or 0), captured.out, captured.err)
        if ran.code:
            assert files() == before
            assert ran.out == ""
        return ran

    yield run
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """One built-in example, small and known."""
    from tests.cli.factories import good

    digits = SimpleNamespace(name="digits", description="small", build=good, loss="mse", sparse={"layers/1/w": 1.0})
    package = SimpleNamespace(EXAMPLES={"digits": digits}, DEFAULT="digits")
    monkeypatch.setitem(sys.modules, "examples", package)


@pytest.fixture(autouse=True)
def no_width_of_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of pytest-xdist have COLUMNS, which tables obey; a test that asks for a width sets it."""
    monkeypatch.delenv("COLUMNS", raising=False)
