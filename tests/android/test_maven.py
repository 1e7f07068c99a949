"""android_app/maven: what was compiled stays while nothing has changed that it was compiled from."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tree import ROOT

MARKS = ("compiled", "compiled-tests")


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Return a folder of two modules and the app, with a Maven that compiles what is not marked as compiled."""
    android = tmp_path / "android_app"
    for module in ("trainer", "runtime", "app"):
        for kind in ("main", "test"):
            (android / module / "src" / kind).mkdir(parents=True)
            (android / module / "src" / kind / "A.kt").write_text("class A\n")
        (android / module / "pom.xml").write_text("<project/>\n")
    (android / "pom.xml").write_text("<project/>\n")
    shutil.copy(ROOT / "android_app" / "maven", android / "maven")
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        "#!/bin/sh\n"
        "for target in */target; do for mark in compiled compiled-tests; do\n"
        '[ -e "$target/$mark" ] || { echo "$target/$mark"; touch "$target/$mark"; }\n'
        "done; done\n"
    )
    maven.chmod(0o755)
    (android / "app" / "target").mkdir()
    return android


def compiled(android: Path) -> set[str]:
    """Call Maven and return what it compiled, without the app."""
    path = f"{android.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([android / "maven", "test"], env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = set(done.stdout.split())
    app = {f"app/target/{mark}" for mark in MARKS}
    assert app <= said, "the app is compiled each time"
    return said - app


def test_what_has_not_changed_is_not_compiled_again(modules: Path) -> None:
    everything = {f"{module}/target/{mark}" for module in ("trainer", "runtime") for mark in MARKS}
    assert compiled(modules) == everything
    assert compiled(modules) == set()
    (modules / "runtime" / "src" / "test" / "B.kt").write_text("class B\n")
    assert compiled(modules) == {"runtime/target/compiled-tests"}
    (modules / "trainer" / "src" / "main" / "A.kt").write_text("class A { val b = 1 }\n")
    assert compiled(modules) == everything, "what another module is made of has changed"
    (modules / "pom.xml").write_text("<project><!-- of another compiler --></project>\n")
    assert compiled(modules) == everything
    assert compiled(modules) == set()


def test_classes_of_sources_that_are_gone_do_not_stay(modules: Path) -> None:
    compiled(modules)
    left = modules / "trainer" / "target" / "classes" / "Gone.class"
    left.parent.mkdir()
    left.touch()
    compiled(modules)
    assert left.exists()
    (modules / "trainer" / "src" / "main" / "A.kt").unlink()
    compiled(modules)
    assert not left.exists()
