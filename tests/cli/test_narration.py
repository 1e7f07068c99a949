"""What is said while a stage runs."""

from __future__ import annotations

import time

import pytest

from converter.cli import narration
from converter.runtime.engines.work import at_most, engine_time_left
from converter.support.errors import UsageError


@pytest.mark.parametrize("quiet", [False, True])
def test_a_long_stage_says_that_it_runs(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(narration, "EVERY", 0.01)
    heard = ""
    with narration.Narrator(quiet).stage("compile"):
        for _ in range(20 if quiet else 3000):
            time.sleep(0.01)
            heard += capsys.readouterr().err
            if "still at it: compile, 0 s" in heard:
                break
    assert ("still at it: compile" in heard) != quiet


def test_an_engine_has_so_much_time() -> None:
    assert engine_time_left() == float("inf")
    with at_most(1000, "web"):
        assert 0 < engine_time_left() <= 1000
    with at_most(1e-9, "web"), pytest.raises(UsageError, match=r"web did not end within 1e-09 s \(--limit"):
        engine_time_left()
    assert engine_time_left() == float("inf")
