"""Resemblyzer's voice encoder in PyTorch with the weights that it ships, and a classifier of who speaks.

The net is that of generalized end-to-end speaker verification (Wan et al., arXiv 1710.10467): three LSTM layers, of
whose last state a dense layer makes 256 numbers, which are cut off at 0 and divided by their length.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import pocketune
from examples.data.conversation import BANDS
from examples.data.synthetic import clusters
from examples.weights.packages import resource

_FILE = ("Resemblyzer==0.1.4", "resemblyzer/pretrained.pt")
_WIDTH = 256


class VoiceEncoder(nn.Module):
    """float32 [B, frames, 40] -> [B, 256] of length 1; the weights have the names that they have in the file."""

    def __init__(self, width: int = _WIDTH) -> None:
        super().__init__()
        self.lstm = nn.LSTM(BANDS, width, num_layers=3, batch_first=True)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns who it sounds like."""
        _, (hidden, _) = self.lstm(x)
        return nn.functional.normalize(torch.relu(self.linear(hidden[-1])), dim=1)


class Speakers(nn.Module):
    """Who of some people speaks: logits [B, people]."""

    def __init__(self, people: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.encoder = VoiceEncoder(width)
        self.classifier = nn.Linear(width, people)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a number for each of them."""
        return self.classifier(self.encoder(x))


def build(
    frames: int = 80, people: int = 2, pretrained: bool = True, width: int = _WIDTH, seed: int = 0
) -> pocketune.TorchModel:
    """float32 [B, frames, 40] -> logits [B, people].

    Args:
        frames: of a window, 10 ms each.
        people: who are told apart.
        pretrained: with the encoder's own weights, which scripts/pretrained fetches; else random ones.
        width: of an encoder that is not pretrained.
        seed: of the random weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Speakers(people, _WIDTH if pretrained else width)
        for weight in (w for w in net.encoder.parameters() if w.ndim == 2):
            nn.init.normal_(weight, std=2 * weight.shape[1] ** -0.5)  # PyTorch's own: all voices sound alike
    if pretrained:
        # PyTorch's reader of tensors alone: it makes no other objects and calls nothing that the file names.
        state = torch.load(resource(*_FILE), map_location="cpu", weights_only=True)["model_state"]
        net.encoder.load_state_dict({name: state[name] for name in net.encoder.state_dict()})
    return pocketune.TorchModel(net.eval(), (torch.zeros(1, frames, BANDS),), name="resemblyzer")


def sample_batch(batch: int, seed: int = 0, frames: int = 80, people: int = 2, **_: object) -> tuple[np.ndarray, ...]:
    """x float32 [batch, frames, 40], y int32 [batch]."""
    return clusters((frames, BANDS), people, batch, seed)
