"""Forty families of timm, small where they take sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
from timm.layers import GatedMlp
from timm.models import convmixer, metaformer, mlp_mixer

from scripts.torch.nets.tasks import CLASSES, Made, image_task

#: By the name in timm: the size of the image, and what makes the net small.
_FAMILIES: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet10t": (64, {}),
    "ecaresnet26t": (64, {"layers": (1, 1, 1, 1)}),
    "skresnet18": (64, {"layers": (1, 1, 1, 1)}),
    "resnest14d": (64, {}),
    "botnet26t_256": (64, {"img_size": 64}),
    "mobilenetv3_small_050": (64, {}),
    "mobilenetv4_conv_small_035": (64, {}),
    "tf_efficientnet_lite0": (64, {}),
    "mixnet_s": (64, {}),
    "lcnet_035": (64, {}),
    "tinynet_e": (64, {}),
    "ghostnet_050": (64, {}),
    "hardcorenas_a": (64, {}),
    "rexnetr_100": (64, {}),
    "regnety_002": (64, {}),
    "nf_regnet_b0": (64, {}),
    "convnext_atto": (64, {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)}),
    "convnextv2_atto": (64, {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)}),
    "inception_next_atto": (64, {"depths": (1, 1, 1, 1), "dims": (16, 16, 32, 32)}),
    "vit_tiny_patch16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "vit_relpos_small_patch16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "beit_base_patch16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "depth": 2, "embed_dim": 48, "num_heads": 2}),
    "cait_xxs24_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2}),
    "swin_tiny_patch4_window7_224": (
        32,
        {"img_size": 32, "depths": (2, 2), "embed_dim": 16, "num_heads": (2, 2), "window_size": 4},
    ),
    "swinv2_tiny_window8_256": (
        32,
        {"img_size": 32, "depths": (2, 2), "embed_dim": 16, "num_heads": (2, 2), "window_size": 4},
    ),
    "pvt_v2_b0": (64, {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 32, 32), "num_heads": (1, 2, 2, 4)}),
    "edgenext_xx_small": (64, {"depths": (1, 1, 2, 1)}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "levit_128s": (64, {"img_size": 64}),
    "efficientvit_m0": (64, {"img_size": 64}),
    "repvgg_a0": (64, {}),
    "fasternet_t0": (64, {"depths": (1, 1, 1, 1), "embed_dim": 16}),
    "hgnetv2_b0": (64, {}),
    "ese_vovnet19b_slim_dw": (64, {}),
    "dla46_c": (64, {}),
    "starnet_s1": (64, {"depths": (1, 1, 1, 1)}),
    "mambaout_femto": (64, {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)}),
    "crossvit_tiny_240": (48, {"img_size": 48, "img_scale": (1.0, 1.0), "patch_size": (12, 16)}),
    "sequencer2d_s": (56, {"layers": (1, 1, 1, 1), "embed_dims": (16, 16, 32, 32), "hidden_sizes": (4, 4, 8, 8)}),
    "visformer_tiny": (64, {"img_size": 64, "embed_dim": 32, "depth": (1, 1, 1), "num_heads": 2, "init_channels": 8}),
}


def _net(name: str, size: int, options: dict[str, Any]) -> Made:
    return timm.create_model(name, num_classes=CLASSES, **options), image_task(size)


def _metaformer(mixers: Any) -> Any:
    return metaformer.MetaFormer(
        depths=(1, 1, 1), dims=(16, 32, 32), token_mixers=mixers, num_classes=CLASSES, use_mlp_head=False
    )


#: What `create_model` takes no sizes for.
_MADE: dict[str, tuple[int, Callable[[], Any]]] = {
    "mixer": (32, partial(mlp_mixer.MlpMixer, CLASSES, 32, patch_size=8, num_blocks=2, embed_dim=32)),
    "gmlp": (
        32,
        partial(
            mlp_mixer.MlpMixer,
            *(CLASSES, 32),
            patch_size=8,
            num_blocks=2,
            embed_dim=32,
            mlp_ratio=6,
            block_layer=mlp_mixer.SpatialGatingBlock,
            mlp_layer=GatedMlp,
        ),
    ),
    "convmixer": (32, partial(convmixer.ConvMixer, 32, 2, patch_size=4, num_classes=CLASSES)),
    "poolformer": (64, partial(_metaformer, metaformer.Pooling)),
    "convformer": (64, partial(_metaformer, (metaformer.SepConv, metaformer.SepConv, metaformer.SepConv))),
}


def _made(size: int, make: Callable[[], Any]) -> Made:
    return make(), image_task(size)


NETS: dict[str, Callable[[], Made]] = {
    name: partial(_net, name, size, options) for name, (size, options) in _FAMILIES.items()
} | {name: partial(_made, size, make) for name, (size, make) in _MADE.items()}
