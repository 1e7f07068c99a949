"""The environment of the process is the user's: what a library needs there is gone behind its import."""

import os
import subprocess
import sys

import pytest

from converter.support.environment import environment


def test_variables_are_there_inside_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.delenv("OURS", raising=False)
    with environment(MINE="2", OURS="3"):
        assert (os.environ["MINE"], os.environ["OURS"]) == ("1", "3")
    assert os.environ["MINE"] == "1"
    assert "OURS" not in os.environ


def test_keras_runs_on_jax_and_nothing_is_left_behind() -> None:
    code = """
import os
before = dict(os.environ)
from converter.frontends.keras import runs_jax
assert runs_jax()
import keras
assert keras.config.backend() == "jax"
assert {k: v for k, v in os.environ.items() if before.get(k) != v} == {}, "the environment is another"
"""
    settings = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
