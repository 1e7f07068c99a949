"""`.pt2` files: what they hold is read as data, for any number of rows, and damaged or hostile ones are refused."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from converter.frontends.torch.archive import load_archive
from converter.frontends.torch.model import Model
from converter.support.errors import PocketuneError, UnsupportedError, UsageError


class Net(nn.Module):
    """A net whose sizes are computed of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice = x.reshape(x.shape[0] * 2, -1).repeat(1, 2)
        return self.dense(torch.cat([x, twice[::2]], 0))[: x.shape[0]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for any number of rows."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(torch.export.export(Net(), (torch.zeros(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},)), path)
    return path


@pytest.mark.parametrize("rows", [Dim.DYNAMIC, Dim.AUTO, Dim("rows"), Dim("rows", min=1, max=64), None])
def test_a_file_for_any_number_of_rows_is_built_for_some(tmp_path: Path, rows: Any) -> None:
    net, path = Net(), tmp_path / "net.pt2"
    given = None if rows is None else ({0: rows},)
    torch.export.save(torch.export.export(net, (torch.zeros(5, 4),), dynamic_shapes=given), path)
    program = Model(path).exported(5 if rows is None else 7)
    x = torch.randn(5 if rows is None else 7, 4)
    torch.testing.assert_close(program.module()(x), net(x))
    if rows is None:
        with pytest.raises(UsageError, match=r"cannot be built for 7 rows.*dynamic_shapes"):
            Model(path).exported(7)


def changed(path: Path, to: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """The file with other members."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return to


def in_graph(old: str, new: str) -> Callable[[str, bytes], bytes]:
    def change(name: str, data: bytes) -> bytes:
        if "/models/" not in name:
            return data
        text = data.decode()
        assert old in text
        return text.replace(old, new).encode()

    return change


def pickled(name: str, data: bytes) -> bytes:
    if not name.endswith("weights_config.json"):
        return data
    table = json.loads(data)
    next(iter(table["config"].values()))["use_pickle"] = True
    return json.dumps(table).encode()


OWNED = "__import__('os').system('touch owned')"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(in_graph("torch.ops.aten.linear.default", "os.system"), "calls 'os.system'", id="a function"),
        pytest.param(in_graph("torch.ops.aten.linear.default", "torch.hub.load"), "no operator of ATen", id="of torch"),
        pytest.param(in_graph("Symbol(", f"{OWNED} or Symbol("), "has a size", id="an expression"),
        pytest.param(in_graph("integer=True)", f"integer={OWNED})"), "has a size", id="an argument"),
        pytest.param(in_graph("integer=True)", "integer=True)**9**9**9"), "has a size", id="a power without end"),
        pytest.param(pickled, "stored as a pickle", id="a pickle"),
    ],
)
def test_what_would_run_code_is_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str, bytes], bytes], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = changed(saved, tmp_path / "hostile.pt2", change)
    with pytest.raises(UnsupportedError, match=said):
        load_archive(path)
    assert not Path("owned").exists()


def test_guards_are_not_run(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def with_guard(name: str, data: bytes) -> bytes:
        return json.dumps(json.loads(data) | {"guards_code": [OWNED]}).encode() if "/models/" in name else data

    Model(changed(saved, tmp_path / "guarded.pt2", with_guard)).exported(4)
    assert not Path("owned").exists()


def test_files_that_end_early_or_have_other_bytes_are_refused_or_read(saved: Path, tmp_path: Path) -> None:
    whole, rng = saved.read_bytes(), np.random.default_rng(0)
    for number in range(60):
        data = bytearray(whole)
        if number % 3 == 0:
            data = data[: int(rng.integers(len(data)))]
        else:
            for place in rng.integers(0, len(data), int(rng.integers(1, 30))):
                data[place] = rng.integers(256)
        path = tmp_path / "damaged.pt2"
        path.write_bytes(data)
        with suppress(PocketuneError):  # and nothing else is raised
            load_archive(path)


def test_no_file_and_no_archive(tmp_path: Path, saved: Path) -> None:
    shutil.copy(saved, tmp_path / "net.pt2")
    with pytest.raises(UsageError, match=r"no such file: .*nett\.pt2\. Did you mean 'net\.pt2'"):
        load_archive(tmp_path / "nett.pt2")
    (tmp_path / "state.pt2").write_bytes(b"no zip")
    with pytest.raises(UsageError, match=r"no exported program that can be read.*torch\.export\.save"):
        load_archive(tmp_path / "state.pt2")
