"""The server's part without Flower: the curve that it keeps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from converter.federated import coordinator
from converter.federated.coordinator import Coordinator
from converter.support.errors import UsageError
from tests.federated.people import built, rows_of


@pytest.fixture(autouse=True)
def _without_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "require", lambda extra, what: None)
    monkeypatch.setitem(sys.modules, "flwr", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flwr.app", SimpleNamespace(MetricRecord=dict))


def _keep(run: Coordinator, number: int) -> None:
    arrays: Any = {
        name: SimpleNamespace(numpy=lambda array=array: array)
        for name, array in run.exchange.sent(run._session.state()).items()
    }
    run._keep(number, arrays, SimpleNamespace())  # type: ignore[arg-type]


def test_a_line_that_a_kill_tore_is_left_out_and_written_over(tmp_path: Path) -> None:
    program, results = tmp_path / "program.tflite", tmp_path / "results"
    built("head").write(program)
    first = Coordinator(program, results, rows_of(0))
    for number in (0, 1):
        _keep(first, number)
    curve = results / "curve.jsonl"
    whole = curve.read_text()
    with curve.open("a") as torn:
        torn.write('{"round": 2, "clie')
    again = Coordinator(program, results, rows_of(0))
    assert again.rounds == 1
    _keep(again, 2)
    lines = curve.read_text().splitlines()
    assert lines[:2] == whole.splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2]
    curve.write_text("round 1 of 3}\n")
    with pytest.raises(UsageError, match="is no curve"):
        Coordinator(program, results)


@pytest.mark.parametrize("last", ["curve.jsonl.partial", "shared.state.2"])
def test_a_round_that_a_kill_tore_is_there_whole_or_not_at_all(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill right before the curve is written, or right behind: no round is counted with another's weights."""
    program, results = tmp_path / "program.tflite", tmp_path / "results"
    built("head").write(program)
    run = Coordinator(program, results)
    _keep(run, 1)
    begun = run._session.state()

    def killed(self: Path, *arguments: Any) -> Path:
        if self.name == last:
            raise SystemExit
        return replace(self, *arguments)

    replace = Path.replace
    arrays = {name: array + 1 for name, array in run.exchange.sent(begun).items()}
    sent: Any = {name: SimpleNamespace(numpy=lambda array=array: array) for name, array in arrays.items()}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(SystemExit):
            run._keep(2, sent, SimpleNamespace())  # type: ignore[arg-type]
    again = Coordinator(program, results)
    done = last == "shared.state.2"
    assert again.rounds == 1 + done
    wanted = arrays if done else run.exchange.sent(begun)
    for name, array in again.exchange.sent(again._session.state()).items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)
    assert not list(results.glob("shared.state.*"))
