"""What a module says of its training: tied, frozen and unused weights, batch normalization, modes, and its names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import pocketune
from converter.program.file import read_program
from converter.runtime.export import export_weights
from scripts.torch.steps import Task, by_torch

CROSS = nn.CrossEntropyLoss()


class Tied(nn.Module):
    """A head that is tied to the embedding, a weight that is frozen and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.unused = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight
        self.inner.weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.inner(self.words(x)))).transpose(1, 2)


def trained(model: Any, task: Task, module: nn.Module, **options: Any) -> dict[str, torch.Tensor]:
    """The state after three steps, which are those of PyTorch, and are read by the module."""
    made = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.5, momentum=0.9)
    if not isinstance(model, nn.Module):
        made = "momentum"  # type: ignore[assignment]
    rows = task.y.shape[0]
    program = pocketune.build(model, loss=task.loss, optimizer=made, batch=rows, check=False, **options)
    x, y = task.arrays()
    with pocketune.TrainingSession(program.data) as session:
        losses = [session.train(x, y, learning_rate=0.5) for _ in range(3)]
        state, inferred, evaluated = session.state_dict(), session.infer(x), session.evaluate(x, y)["loss"]
    names = [name for name, p in module.named_parameters() if p.requires_grad and "unused" not in name]
    theirs = by_torch(module, task, lambda p: torch.optim.SGD(p, 0.5, momentum=0.9), names, 3)
    np.testing.assert_allclose(losses, theirs.losses, rtol=1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(value.numpy(), theirs.weights[name], atol=1e-6, err_msg=name)
    after = copy.deepcopy(module)
    assert not after.load_state_dict(state, strict=False).unexpected_keys
    with torch.no_grad():
        expected = after.eval()(*task.inputs)
    np.testing.assert_allclose(inferred, expected.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(evaluated, float(task.loss(expected, task.y)), rtol=1e-5)
    return state


def test_a_head_is_the_layer_of_its_weights_whose_names_have_dots() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    program = pocketune.build(module, inputs=(torch.zeros(1, 3),), loss=CROSS, update="head", check=False)
    assert [row.parameter for row in program.manifest.update.table if row.fraction] == ["2.weight", "2.bias"]


@pytest.mark.quick
def test_tied_frozen_and_unused_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Tied(), torch.randint(0, 7, (4, 3))
    task = Task((x,), torch.randint(0, 7, (4, 3)), CROSS)
    state = trained(module, task, module, inputs=(x,))
    assert set(state) == {"words.weight", "inner.bias"}
    path = tmp_path / "tied.pt2"
    torch.export.save(torch.export.export(module, (x,), strict=False), path)
    assert set(trained(path, task, module)) == set(state)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_batch_normalization_trains_as_in_pytorch(momentum: float | None) -> None:
    """The unbiased variance, the number of batches, and a layer in the mode of evaluation, which keeps its own."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3, momentum=momentum),
        nn.ReLU(),
        nn.Conv2d(3, 3, 2),
        nn.BatchNorm2d(3),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    module[1](module[0](torch.randn(2, 2, 5, 5)))  # one batch is counted already
    module[4].eval()
    task = Task((torch.randn(3, 2, 5, 5),), torch.tensor([0, 2, 1]), CROSS)
    state = trained(module, task, module, inputs=task.inputs, batch_norm="train")
    assert {k: v for k, v in state.items() if "tracked" in k} == {"1.num_batches_tracked": torch.tensor(4)}
    assert "4.running_mean" not in state
    assert all(value.dtype == module.state_dict()[name].dtype for name, value in state.items())


def test_dropout_of_layers_that_evaluate_is_none() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Dropout(0.9), nn.Linear(4, 3))
    module[2].eval()
    program = pocketune.build(module, inputs=(torch.zeros(1, 3),), loss=CROSS, dropout="train", check=False)
    assert [note.subject for note in program.notes if "Dropout" in note.why] == ["1"]


def test_weights_go_back_by_files(tmp_path: Path) -> None:
    module, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), torch.randn(5, 3)
    program = pocketune.build(
        module, inputs=(x,), batch=5, loss=CROSS, optimizer="sgd", batch_norm="train", check=False
    )
    file, state = read_program(program.data), tmp_path / "mine.state"
    with pocketune.TrainingSession(program.data) as session:
        session.train(x.numpy(), np.array([0, 1, 2, 1, 0], np.int32), learning_rate=0.1)
        session.save(state)
        expected = session.state_dict()
    export_weights(file, tmp_path / "mine.pt", state)
    export_weights(file, tmp_path / "mine.safetensors", state)
    for read in (torch.load(tmp_path / "mine.pt", weights_only=True), load_file(tmp_path / "mine.safetensors")):
        assert {name: (t.dtype, t.shape) for name, t in read.items()} == {
            name: (t.dtype, t.shape) for name, t in module.state_dict().items()
        }
        assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())
        module.load_state_dict(read)
