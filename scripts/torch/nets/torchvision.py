"""The families of classifiers of torchvision, small where they take sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torchvision
from torchvision.models import convnext, maxvit, swin_transformer, vision_transformer

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


NETS: dict[str, Callable[[], Made]] = {
    "alexnet": _named("alexnet", 64),
    "vgg11_bn": _named("vgg11_bn", 32),
    "resnet18": _named("resnet18", 64),
    "squeezenet1_1": _named("squeezenet1_1", 64),
    "densenet121": _named("densenet121", 64),
    "inception_v3": _named("inception_v3", 96, aux_logits=False, init_weights=False),
    "googlenet": _named("googlenet", 64, aux_logits=False, init_weights=False),
    "shufflenet_v2_x0_5": _named("shufflenet_v2_x0_5", 64),
    "mobilenet_v2": _named("mobilenet_v2", 64),
    "mobilenet_v3_small": _named("mobilenet_v3_small", 64),
    "resnext50_32x4d": _named("resnext50_32x4d", 64),
    "wide_resnet50_2": _named("wide_resnet50_2", 64),
    "mnasnet0_5": _named("mnasnet0_5", 64),
    "efficientnet_b0": _named("efficientnet_b0", 64),
    "efficientnet_v2_s": _named("efficientnet_v2_s", 64),
    "regnet_x_400mf": _named("regnet_x_400mf", 64),
    "regnet_y_400mf": _named("regnet_y_400mf", 64),
    "vit": _vit,
    "convnext": _convnext,
    "swin": partial(_swin, 1),
    "swin_v2": partial(_swin, 2),
    "maxvit": _maxvit,
}
