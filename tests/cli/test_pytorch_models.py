"""Commands about PyTorch modules: a factory of one, and files that are given in each other's place."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import pocketune
from tests.cli.conftest import Run


def test_files_in_each_others_place_are_called_what_they_are(run: Run, tmp_path: Path) -> None:
    norm = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    program, state = tmp_path / "model.tflite", tmp_path / "mine.state"
    options = {"inputs": (torch.zeros(1, 5),), "loss": nn.CrossEntropyLoss(), "batch_norm": "train"}
    pocketune.build(norm, batch=8, check=False, **options).write(program)
    with pocketune.TrainingSession(program) as session:
        session.save(state)
    assert "a training program of Pocketune, built already" in run("estimate", str(program), "--device", "pixel-9").err
    assert "a saved state, not a program" in run("inspect", str(state)).err
    text = run("inspect", str(program)).out
    trained, statistics = text.split("What trains")[0].split("Statistics, which a step updates")
    assert "1.weight" in trained
    assert "running" not in trained
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked"} <= set(statistics.split())


FACTORIES = """
import torch
import pocketune

def module():
    return torch.nn.Linear(5, 4)

def model():
    return pocketune.TorchModel(module(), (torch.zeros(1, 5),))
"""


def test_a_factory_of_a_module_is_told_how_to_say_its_inputs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "factories_of_modules.py").write_text(FACTORIES)
    refused = run("build", "factories_of_modules:module", "--loss", "mse", "--out", "out.tflite")
    assert "pocketune.TorchModel(module, (torch.zeros(" in refused.err
    built = run("build", "factories_of_modules:model", "--loss", "mse", "--out", "out.tflite")
    assert built.code == 0, built.err
