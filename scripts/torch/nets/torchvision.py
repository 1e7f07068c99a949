"""The families of classifiers of torchvision, small where they take sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torchvision
from torch import nn
from torchvision.models import convnext, densenet, efficientnet, maxvit, resnet, swin_transformer, vision_transformer

from scripts.torch.nets.tasks import CLASSES, Made, image_task

models = torchvision.models


def _net(make: Callable[..., Any], size: int, **options: Any) -> Made:
    return make(num_classes=CLASSES, **options), image_task(size)


def _named(name: str, size: int, **options: Any) -> Callable[[], Made]:
    return partial(_net, getattr(models, name), size, weights=None, **options)


def _convnext() -> Made:
    blocks = [convnext.CNBlockConfig(16, 32, 2), convnext.CNBlockConfig(32, None, 2)]
    return convnext.ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=CLASSES), image_task(32)


def _swin(version: int) -> Made:
    block = swin_transformer.SwinTransformerBlockV2 if version == 2 else None
    merge = swin_transformer.PatchMergingV2 if version == 2 else swin_transformer.PatchMerging
    options: dict[str, Any] = {"block": block, "downsample_layer": merge}
    net = swin_transformer.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=CLASSES, **options)
    return net, image_task(32)


def _maxvit() -> Made:
    net = maxvit.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, 0.1, num_classes=CLASSES, norm_layer=None)
    return net, image_task(64)


def _vit() -> Made:
    return vision_transformer.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=CLASSES), image_task(32)


def _with_small_head(name: str, size: int, **options: Any) -> Made:
    """A net with 64 numbers between its dense layers."""
    net = getattr(models, name)(num_classes=CLASSES, **options)
    places = [i for i, layer in enumerate(net.classifier) if isinstance(layer, nn.Linear)]
    widths = [net.classifier[places[0]].in_features, *[64] * (len(places) - 1), CLASSES]
    for place, taken, given in zip(places, widths, widths[1:], strict=False):
        net.classifier[place] = nn.Linear(taken, given)
    return net, image_task(size)


def _resnet(**options: Any) -> Made:
    return resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], CLASSES, **options), image_task(64)


def _densenet() -> Made:
    return densenet.DenseNet(8, (2, 2, 2, 2), 16, 2, 0.1, CLASSES), image_task(64)


def _efficientnet_v2() -> Made:
    blocks = [
        efficientnet.FusedMBConvConfig(1, 3, 1, 8, 8, 1),
        efficientnet.FusedMBConvConfig(4, 3, 2, 8, 16, 2),
        efficientnet.MBConvConfig(4, 3, 2, 16, 24, 2),
    ]
    return efficientnet.EfficientNet(blocks, 0.2, 0.2, CLASSES, partial(nn.BatchNorm2d, eps=1e-3), 32), image_task(64)


NETS: dict[str, Callable[[], Made]] = {
    "vit": _vit,
    "convnext": _convnext,
    "swin": partial(_swin, 1),
    "swin_v2": partial(_swin, 2),
    "maxvit": _maxvit,
    "squeezenet1_1": _named("squeezenet1_1", 64),
    "resnet18": _named("resnet18", 64),
    "resnext": partial(_resnet, groups=32, width_per_group=4),
    "wide_resnet": partial(_resnet, width_per_group=128),
    "densenet": _densenet,
    "shufflenet_v2_x0_5": _named("shufflenet_v2_x0_5", 64),
    "mobilenet_v2": _named("mobilenet_v2", 64),
    "mobilenet_v3_small": _named("mobilenet_v3_small", 64),
    "mnasnet0_5": _named("mnasnet0_5", 64),
    "efficientnet_b0": _named("efficientnet_b0", 64),
    "efficientnet_v2": _efficientnet_v2,
    "regnet_x_400mf": _named("regnet_x_400mf", 64),
    "regnet_y_400mf": _named("regnet_y_400mf", 64),
    "googlenet": _named("googlenet", 64, aux_logits=False, init_weights=False),
    "alexnet": partial(_with_small_head, "alexnet", 64),
    "vgg11_bn": partial(_with_small_head, "vgg11_bn", 32),
    "inception_v3": _named("inception_v3", 96, aux_logits=False, init_weights=False),
}
