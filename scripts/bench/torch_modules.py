"""PyTorch modules of usual sizes, for what building programs of them takes. Needs scripts/torch/install with nets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

import pocketune

#: Rows of a batch.
BATCH = 8


class Encoder(nn.Module):
    """A text classifier of 12 layers of width 768."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 30522) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.layers(self.words(tokens))[:, 0])


def _pictures(name: str, size: int = 224) -> tuple[nn.Module, torch.Tensor]:
    return getattr(torchvision.models, name)(weights=None), torch.zeros(1, 3, size, size)


#: By name: a module and an example input, as they are and small.
MODULES: dict[
    str, tuple[Callable[[], tuple[nn.Module, torch.Tensor]], Callable[[], tuple[nn.Module, torch.Tensor]]]
] = {
    "mobilenet_v2": (lambda: _pictures("mobilenet_v2"), lambda: _pictures("mobilenet_v2", 32)),
    "resnet50": (lambda: _pictures("resnet50"), lambda: _pictures("resnet50", 32)),
    "encoder": (
        lambda: (Encoder(), torch.zeros(1, 128, dtype=torch.int64)),
        lambda: (Encoder(2, 32, 4, 100), torch.zeros(1, 16, dtype=torch.int64)),
    ),
}


def built(module: nn.Module, example: torch.Tensor, scheme: str, file: Path, target: str) -> None:
    """Write the program of a module that offers nothing but its step."""
    program = pocketune.build(
        module,
        inputs=(example,),
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9),
        batch=BATCH,
        update=scheme,
        target=target,
        signatures=("train",),
        check=False,
    )
    program.write(file)


def weights_of(module: nn.Module) -> int:
    """Return the bytes of a module's parameters and buffers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
