"""What the shell offers on Tab, and the defaults that --help names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from converter.driver.defaults import DEFAULT_LOSS, DEFAULT_OPTIMIZER
from converter.driver.options import Options
from tests.cli.conftest import Run
from tests.tree import ROOT


def offered(run: Run, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What bash is told for a line whose last word is being typed."""
    words = line.split(" ")
    monkeypatch.setenv("_POCKETUNE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    return run().out.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("build --target litert", ["litert-2", "litert-2/x86-64"]),
        ("build --target gpu,litert-2/", ["gpu,litert-2/x86-64"]),
        ("schemes --update b", ["bias-only"]),
        ("build --update la", ["last-3"]),
        ("build --optimizer adam", ["adam", "adamw"]),
        ("build --loss sparse_c", ["sparse_categorical_crossentropy"]),
        (
            "build --frozen ",
            [
                "float32",
                "int8",
                "int4",
                "int4-dynamic",
                "int4-blockwise",
                "int4-blockwise-64",
                "int4-blockwise-128",
                "float16",
            ],
        ),
        ("build --state s", ["stateless", "split"]),
        ("build --batch-norm t", ["train"]),
        ("build --dropout o", ["off"]),
        ("build --signatures train,i", ["train,infer"]),
        ("build --certify a", ["android"]),
        ("certify m.tflite --on w", ["web"]),
        ("engines h", ["hexagon"]),
        ("estimate --device raspberry-pi-", ["raspberry-pi-5", "raspberry-pi-4"]),
        ("build --target x", []),
    ],
)
def test_values_complete(run: Run, monkeypatch: pytest.MonkeyPatch, line: str, words: list[str]) -> None:
    assert offered(run, monkeypatch, f"pocketune {line}") == words


def test_the_set_up_goes_by_the_name_of_the_command() -> None:
    """Also where it is called by its path, or as a module: a shell takes no path for the name of a function."""
    shown = subprocess.run(
        [sys.executable, "-m", "converter", "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    assert "_POCKETUNE_COMPLETE=complete_bash" in shown
    assert shown.rstrip().endswith(" pocketune")


def test_help_names_the_defaults_that_hold(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = " ".join(run("build", "--help").out.split())
    compiled = "what a Keras model was compiled with, else"
    named = {name: getattr(Options, name) for name in ("frozen", "batch_norm", "dropout")}
    loss_scale, signatures = f"{Options.loss_scale:g}", ",".join(Options.signatures)
    optimizer = f"{compiled} adam for a file (.tflite, .gguf) and {DEFAULT_OPTIMIZER} for other models"
    defaults = (f"{compiled} {DEFAULT_LOSS}", optimizer, str(Options.batch), loss_scale)
    for default in (*defaults, signatures, *named.values(), "full", "litert-2", "what the target takes"):
        assert f"[default: ({default})]" in words
