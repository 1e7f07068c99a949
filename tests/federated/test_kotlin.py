"""A Python and a Kotlin client, with Android's own library on a JVM, in rounds of an unmodified SuperLink."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.federated.flower import Link, ended, needs_flower, superlink
from tests.federated.people import built, write_rows
from tests.federated.test_rounds import matches, project
from tests.tree import ROOT

ANDROID = ROOT / "android_app"
CLASSES = ANDROID / "desktop/target/classpath"
needs_kotlin = pytest.mark.skipif(
    shutil.which("java") is None or not CLASSES.exists(),
    reason="the Kotlin client is not compiled: android_app/test, which runs this too",
)
pytestmark = [needs_flower, needs_kotlin]


def kotlin(link: Link, program: Path, rows: Path, *options: str) -> subprocess.Popen[str]:
    """Start a Kotlin client, which ends when there was no work for some seconds."""
    version = re.search(r"<tflite.version>(.*)<", (ANDROID / "pom.xml").read_text())[1]
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", f"-Djava.library.path={ANDROID}/target/natives/{version}"]
    command += ["-cp", f"{ANDROID}/desktop/target/classes:{CLASSES.read_text()}", "org.pocketune.desktop.MainKt"]
    command += [str(program), str(rows), "--superlink", link.address, "--poll", "0.3", "--idle", "60", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=program.parent, **pipes)


@pytest.mark.quick
@pytest.mark.parametrize(
    "kind", ["sparse", pytest.param("head", marks=pytest.mark.slow), pytest.param("lora", marks=pytest.mark.slow)]
)
def test_a_phone_and_a_computer_train_one_model(kind: str, tmp_path: Path) -> None:
    program = built(kind)
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 2)
    with superlink(tmp_path / "flower") as link:
        server = project(link, tmp_path, nodes=2, rounds=2)
        phone = kotlin(link, tmp_path / "program.tflite", files[1])
        computer = link.client(tmp_path / "program.tflite", files[0])
        log = link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=240)
        said, errors = phone.communicate(timeout=90)
        ended([computer])
    assert phone.returncode == 0, errors
    assert "answered 4 messages" in said, (said, errors)
    assert "Received 2 results and 0 failures" in log
    matches(program, server, people=2, rounds=2)
    assert (tmp_path / "program.federated/shared.state").stat().st_size > 0
