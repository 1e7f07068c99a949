"""TLS from phones to a leaf (`secure.py`), and from the leaf to a SuperLink."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from converter.support.errors import DeviceError
from tests.federated.flower import BIN, Link, all_went, ended, needs_flower, settings, superlink
from tests.federated.people import built, write_rows
from tests.federated.test_leaf import Process
from tests.federated.test_rounds import matches, project
from tests.tree import ROOT

pytestmark = needs_flower


@pytest.mark.quick
def test_clients_of_a_leaf_trust_its_certificate_and_no_other(tmp_path: Path) -> None:
    built("head").write(tmp_path / "program.tflite")
    all_went("tests.federated.runs.secure", tmp_path)


@pytest.mark.slow
def test_rounds_through_a_leaf_with_tls_on_both_sides(tmp_path: Path) -> None:
    """Each side pins the other's own certificate; a leaf or a client that pins another ends with a sentence."""
    program = built("head")
    program.write(tmp_path / "program.tflite")
    files = write_rows(tmp_path / "people", 2)
    code = (
        "from pathlib import Path; from tests.federated.runs.secure import Authority; import sys\n"
        "authority = Authority(Path(sys.argv[1]))\n"
        "for name in ('superlink', 'leaf'): authority.signs(name)"
    )
    subprocess.run([BIN / "python", "-c", code, tmp_path], cwd=ROOT, env=settings(tmp_path), check=True)
    with superlink(tmp_path / "flower", tmp_path / "superlink.pem", tmp_path / "authority.pem") as link:
        server = project(link, tmp_path, nodes=1, rounds=2)
        command = [BIN / "python", "-m", "pocketune", "federated", "leaf", tmp_path / "program.tflite"]
        command += ["--superlink", link.address, "--state", tmp_path / "wrong", "--listen", "127.0.0.1:0"]
        command += ["--root-certificates", tmp_path / "leaf.pem"]
        done = subprocess.run(command, env=settings(link.folder), capture_output=True, text=True, check=False)
        _is_refused(done.returncode, done.stderr)
        trusted = ("--root-certificates", str(tmp_path / "superlink.pem"), "--phones", "2")
        own = ("--certificate", str(tmp_path / "leaf.pem"), "--certificate-key", str(tmp_path / "leaf.key"))
        leaf = Process(link, tmp_path, "state", *trusted, *own)
        assert "without TLS" not in leaf.said()
        below = Link(f"127.0.0.1:{leaf.port}", link.folder)
        wrong = below.client(
            tmp_path / "program.tflite", files[0], "--root-certificates", str(tmp_path / "superlink.pem")
        )
        said = wrong.communicate(timeout=60)[1]
        _is_refused(wrong.returncode, said)
        pinned = ("--root-certificates", str(tmp_path / "leaf.pem"))
        clients = [below.client(tmp_path / "program.tflite", file, *pinned) for file in files]
        link.run("flwr", "run", ".", "here", "--stream", at=server, seconds=300)
        ended(clients)
        leaf.end()
    matches(program, server, people=2, rounds=2)


def _is_refused(status: int, said: str) -> None:
    assert status == DeviceError.exit_code, said
    assert "its certificate is refused here: unable to get local issuer certificate" in said
