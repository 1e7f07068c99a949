"""EfficientNet-Lite0 in PyTorch, with the names and weights of its file of ImageNet; the twin of the one in JAX."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad

import pocketune
from examples.data.synthetic import clusters
from examples.efficientnet_lite import STAGES, WEIGHTS
from examples.weights import torch_file
from examples.weights.packages import resource


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding, which the weights were trained with: the odd pixel at the end."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns [B, out, ceil(H / stride), ceil(W / stride)]."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        rows, columns = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in input.shape[-2:])
        return super().forward(pad(input, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)))


class Block(nn.Module):
    """An inverted bottleneck: expanded by a 1x1, filtered channel by channel, projected, and added where it fits."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inside * expansion
        if expansion > 1:
            self._expand_conv = SameConv2d(inside, wide, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(wide, eps=1e-3)
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = nn.BatchNorm2d(wide, eps=1e-3)
        self._project_conv = SameConv2d(wide, outside, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outside, eps=1e-3)
        self.expands, self.adds = expansion > 1, inside == outside and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [B, outside, H / stride, W / stride]."""
        y = nn.functional.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = nn.functional.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.adds else y


class EfficientNetLite0(nn.Module):
    """float32 [B, 3, H, W] in -1..1 -> logits [B, classes]."""

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        inside, last = (max(round(channels * width), 4) for channels in (32, 1280))
        self._conv_stem = SameConv2d(3, inside, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(inside, eps=1e-3)
        blocks = []
        for stage in STAGES:
            outside = max(round(stage.channels * width), 4)
            for number in range(stage.blocks):
                stride = stage.stride if number == 0 else 1
                blocks.append(Block(inside, outside, stage.kernel, stride, stage.expansion))
                inside = outside
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = SameConv2d(inside, last, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(last, eps=1e-3)
        self._fc = nn.Linear(last, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a number for each class."""
        x = nn.functional.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = nn.functional.relu6(self._bn1(self._conv_head(x)))
        return self._fc(x.mean((2, 3)))


def build(
    size: int = 96, classes: int = 10, pretrained: bool = True, width: float = 1.0, seed: int = 0
) -> pocketune.TorchModel:
    """float32 [B, 3, size, size] in -1..1 -> logits [B, classes].

    Args:
        size: height and width of the image, a multiple of 32.
        classes: number of classes. The pretrained net has a classifier for the 1000 of ImageNet; for another number
            there is a new one.
        pretrained: with the weights of ImageNet, which scripts/pretrained fetches; else random ones.
        width: of a net that is not pretrained: its channels over those of Lite0.
        seed: of the random weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = EfficientNetLite0(classes, 1.0 if pretrained else width)
        for name, weight in net.named_parameters():
            if weight.ndim == 4:
                # A relu6 cuts half of the signal. Projections are added up along the residuals: they start small.
                gain = 0.5 if "_project_conv" in name else 2
                nn.init.normal_(weight, std=(gain / weight[0].numel()) ** 0.5)
    if pretrained:
        tensors = torch_file.read(resource(*WEIGHTS))
        state = {name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()}
        if classes != 1000:
            state |= {f"_fc.{name}": tensor for name, tensor in net._fc.state_dict().items()}
        net.load_state_dict(state)
    return pocketune.TorchModel(net.eval(), (torch.zeros(1, 3, size, size),), name="efficientnet-lite")


def sample_batch(batch: int, seed: int = 0, size: int = 96, classes: int = 10, **_: object) -> tuple[np.ndarray, ...]:
    """x float32 [batch, 3, size, size], y int32 [batch]."""
    x, y = clusters((size, size, 3), classes, batch, seed)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), y
