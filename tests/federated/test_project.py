"""The server's project: what is written, and what is refused."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import numpy as np
import pytest

from converter.cli import main
from converter.federated import Project, read_rows
from converter.support.errors import UsageError
from tests.federated.people import built, rows_of, write_rows


@pytest.mark.parametrize("strategy", ["fedavg", "fedadam"])
def test_a_project_is_whole(strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built("head").write(tmp_path / "my program.tflite")
    write_rows(tmp_path / "people", 3)
    command = ["federated", "server", str(tmp_path / "my program.tflite"), "--out", str(tmp_path / "server")]
    command += ["--strategy", strategy, "--clients", str(tmp_path / "people"), "--rounds", "7"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--held-out", str(tmp_path / "people/0.npz")])
    assert ended.value.code == 0
    assert "10.0 KiB" in capsys.readouterr().out
    server = tmp_path / "server"
    project = tomllib.loads((server / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-program"
    config = project["tool"]["flwr"]["app"]["config"]
    assert (config["folder"], config["rounds"], config["learning-rate"]) == (str(server), 7, 0.0)
    assert ("server-rate" in config) == (strategy == "fedadam")
    for name in ("server", "client"):
        ast.parse((server / f"federation/{name}.py").read_text())
    assert (server / "program.tflite").read_bytes() == (tmp_path / "my program.tflite").read_bytes()
    assert len(list((server / "clients").iterdir())) == 3
    readme = (server / "README.md").read_text()
    assert "10,280 bytes" in readme
    assert "num-supernodes=3" in readme
    assert "$FLWR_HOME" in readme


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.tflite"
    built("head").write(path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for project, out, said in (
        (Project(path), "full", "holds something"),
        (Project(path, "fedprox"), "new", "built without FedProx's term"),
        (Project(path, "fedfoo"), "new", "strategy must be fedavg, fedprox, fedadam"),
        (Project(path, held_out=tmp_path / "none.npz"), "new", "no such file or folder"),
    ):
        with pytest.raises(UsageError, match=said):
            project.write(tmp_path / out)
    assert not (tmp_path / "new").exists()


def test_rows_of_a_file(tmp_path: Path) -> None:
    x, y = rows_of(0)
    weight = np.arange(len(y), dtype=np.float32)
    for name, arrays in {"both": {"y": y}, "weighted": {"y": y, "weight": weight}, "alone": {}}.items():
        np.savez(tmp_path / f"{name}.npz", x=x, **arrays)
    both, weighted, alone = (read_rows(tmp_path / f"{name}.npz") for name in ("both", "weighted", "alone"))
    assert [part.shape for part in both] == [x.shape, y.shape]
    assert [part.shape for part in weighted] == [x.shape, y.shape, y.shape]
    assert alone.shape == x.shape
