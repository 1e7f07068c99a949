"""scripts/packages/install: uv gets what pip's settings say, and what the user has set for uv comes first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.tree import ROOT

PYTHON = """#!/bin/sh
case "$*" in
"-m pip config list") cat "$SETTINGS" ;;
"-m uv --version") ;;
"-m uv pip install"*) env | grep -E '^(UV_|SSL_CERT_FILE)' | sort; echo "$*" ;;
*) echo "$*" >&2; exit 1 ;;
esac
"""


def installing(folder: Path, settings: str, **variables: str) -> list[str]:
    """Return the variables and arguments that uv gets."""
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (folder / "settings").write_text(settings)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "SSL_CERT_FILE"))}
    done = subprocess.run(
        [ROOT / "scripts" / "packages" / "install", python, "--no-deps", "six==1.17.0"],
        env=kept | {"SETTINGS": str(folder / "settings")} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_settings_of_pip_hold_and_variables_come_before_files(tmp_path: Path) -> None:
    settings = (
        ":env:.find-links='/wheels https://b.example/more'\n"
        ":env:.index-url='https://a.example/simple'\n"
        "global.cert='/etc/ca.crt'\n"
        "global.default-timeout='180'\n"
        "global.index-url='https://other.example/simple'\n"
        "site.extra-index-url='https://c.example/simple'\n"
    )
    assert installing(tmp_path, settings) == [
        "SSL_CERT_FILE=/etc/ca.crt",
        "UV_DEFAULT_INDEX=https://a.example/simple",
        "UV_FIND_LINKS=/wheels,https://b.example/more",
        "UV_HTTP_TIMEOUT=180",
        "UV_INDEX=https://c.example/simple",
        "UV_INDEX_STRATEGY=unsafe-best-match",
        f"-m uv pip install --quiet --python {tmp_path}/python --no-deps six==1.17.0",
    ]


def test_what_is_set_for_uv_comes_first_and_without_settings_nothing_is_said(tmp_path: Path) -> None:
    (command,) = installing(tmp_path, "")
    assert command.startswith("-m uv pip install")
    settings = "global.index-url='https://a.example/simple'\n"
    found = installing(tmp_path, settings, UV_DEFAULT_INDEX="https://mine.example/simple")
    assert found[:-1] == ["UV_DEFAULT_INDEX=https://mine.example/simple"]
