"""Convolutional nets, and U-Nets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras
from flax import linen as nn
from keras import layers as kl

from converter import Channels, UpdateScheme
from tests.tools.certify.programs.made import Made, linen, program, stacked


@program
def strided_convolutions() -> Made:
    return stacked(
        kl.Conv2D(6, 3, 2, "same", activation="relu"), kl.Conv2D(8, 5, 2, "valid", activation="relu6"),
        kl.Flatten(), kl.Dense(5), row=(17, 15, 3),
    ), {"optimizer": "sgd", "update": "full"}  # fmt: skip


@program
def dilated_convolutions() -> Made:
    return stacked(
        kl.Conv2D(6, 3, dilation_rate=2, padding="same", activation="gelu"),
        kl.Conv2D(6, 3, dilation_rate=(1, 3), activation="silu"), kl.GlobalAveragePooling2D(), kl.Dense(4),
        row=(12, 14, 2),
    ), {"optimizer": "momentum", "update": "full"}  # fmt: skip


@program
def grouped_convolutions() -> Made:
    return stacked(
        kl.Conv2D(8, 3, 2, "same", groups=4, activation="relu"), kl.Conv2D(12, 1, groups=2, activation="elu"),
        kl.GlobalMaxPooling2D(), kl.Dense(3), row=(10, 10, 4),
    ), {"optimizer": "adam", "update": "full"}  # fmt: skip


@program
def depthwise_with_multiplier() -> Made:
    return stacked(
        kl.Conv2D(3, 3, activation="relu"), kl.DepthwiseConv2D(3, 2, "same", depth_multiplier=2, activation="relu"),
        kl.SeparableConv2D(5, 3, activation="leaky_relu"), kl.Flatten(), kl.Dense(3), row=(13, 13, 2),
    ), {"optimizer": "rmsprop", "update": "full"}  # fmt: skip


@program
def pools_of_every_kind() -> Made:
    return stacked(
        kl.Conv2D(5, 3, padding="same", activation="tanh"), kl.AveragePooling2D(3, 2, "same"),
        kl.Conv2D(6, 3, padding="same"), kl.MaxPooling2D(3, 2, "same"), kl.Conv2D(6, 2), kl.AveragePooling2D(2, 1),
        kl.Flatten(), kl.Dense(4), row=(14, 15, 1),
    ), {"optimizer": "adagrad", "update": "full"}  # fmt: skip


@program
def overlapping_max_pools() -> Made:
    """A stem, windows of unequal sides, and windows that leave rows out."""
    return stacked(
        kl.Conv2D(6, 5, 2, "same", activation="relu"), kl.MaxPooling2D(3, 2, "valid"),
        kl.Conv2D(5, 3, padding="same"), kl.MaxPooling2D((3, 2), (1, 2), "same"),
        kl.Conv2D(4, 2, padding="same", activation="tanh"), kl.MaxPooling2D(2, 3), kl.Flatten(), kl.Dense(3),
        row=(27, 30, 2),
    ), {"optimizer": "momentum", "update": "full"}  # fmt: skip


@program
def convolutions_of_sequences() -> Made:
    return stacked(
        kl.Conv1D(6, 5, 2, "same", activation="relu"), kl.MaxPooling1D(2),
        kl.Conv1D(8, 3, padding="causal", dilation_rate=2), kl.BatchNormalization(),
        kl.AveragePooling1D(2), kl.GlobalAveragePooling1D(), kl.Dense(3), row=(40, 3),
    ), {"optimizer": "lion", "update": "full"}  # fmt: skip


@program
def padded_and_cropped() -> Made:
    return stacked(
        kl.ZeroPadding2D(((1, 2), (0, 1))), kl.Conv2D(4, 3, activation="relu"), kl.Cropping2D(1),
        kl.UpSampling2D(2), kl.MaxPooling2D(2), kl.Permute((3, 1, 2)), kl.Flatten(), kl.Dense(3), row=(9, 8, 2),
    ), {"optimizer": "adamw", "update": "full"}  # fmt: skip


def residual(norm: Any) -> Any:
    """A block with a norm, and its input beside it."""
    inputs = keras.Input((8, 8, 4))
    x = kl.Conv2D(8, 3, 2, "same", use_bias=False)(inputs)
    x = kl.Activation("relu")(norm()(x))
    x = norm()(kl.Conv2D(8, 3, padding="same", use_bias=False)(x))
    x = kl.Activation("relu")(kl.Add()([x, kl.Conv2D(8, 1, 2)(inputs)]))
    return keras.Model(inputs, kl.Dense(4)(kl.GlobalAveragePooling2D()(x)))


@program
def residual_batch_norm_train() -> Made:
    return residual(kl.BatchNormalization), {"optimizer": "sgd", "update": "full", "batch_norm": "train"}


@program
def residual_batch_norm_fixed() -> Made:
    return residual(kl.BatchNormalization), {"optimizer": "adam", "update": "sparse"}


@program
def residual_group_norm() -> Made:
    return residual(lambda: kl.GroupNormalization(2)), {"optimizer": "adamw", "update": "full"}


@program
def residual_instance_norm() -> Made:
    return residual(lambda: kl.GroupNormalization(-1)), {"optimizer": "sgd", "update": "full"}


@program
def squeezed_and_excited() -> Made:
    inputs = keras.Input((10, 10, 3))
    x = kl.Conv2D(8, 3, 2, "same", activation="swish")(inputs)
    gate = kl.Dense(8, "sigmoid")(kl.Dense(2, "relu")(kl.GlobalAveragePooling2D(keepdims=True)(x)))
    x = kl.Conv2D(6, 1, activation="hard_swish")(kl.Multiply()([x, gate]))
    return keras.Model(inputs, kl.Dense(3)(kl.Flatten()(x))), {"optimizer": "rmsprop", "update": "full"}


@program
def channels_of_a_convolution() -> Made:
    scheme = UpdateScheme("channels", {"*kernel": Channels(0.5), "*bias": 1.0})
    return stacked(
        kl.Conv2D(8, 3, activation="relu"), kl.Conv2D(8, 3, activation="relu"), kl.GlobalAveragePooling2D(),
        kl.Dense(4), row=(9, 9, 4),
    ), {"optimizer": "adam", "update": scheme}  # fmt: skip


@program
def flax_convolutions() -> Made:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for width, stride in ((8, 1), (12, 2)):
                x = nn.Conv(width, (3, 3), (stride, stride))(x)
                x = nn.relu(nn.LayerNorm()(x))
            x = nn.avg_pool(x, (2, 2), (2, 2))
            return nn.Dense(5)(x.mean((1, 2)))

    return linen(Net(), (12, 12, 3)), {"optimizer": "adam", "update": "full"}


@program
def filters_of_every_size() -> Made:
    """Trained ones: wide, unequal, dilated, cropped, strided along one axis, two of one image, 1x1 with a stride."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.relu(nn.Conv(8, (7, 7), (2, 2))(x))
            x = nn.relu6(nn.Conv(12, (5, 5), padding="VALID")(x))
            x = nn.relu(nn.Conv(16, (3, 3), (2, 1))(x))
            x = nn.relu(nn.Conv(12, (2, 4), (1, 3), padding=((1, 0), (2, 1)))(x))
            x = nn.relu6(nn.Conv(10, (3, 3), kernel_dilation=(2, 1))(x))
            x = nn.relu(nn.Conv(16, (1, 1), (2, 2))(x) + nn.Conv(16, (3, 3), (2, 2))(x))
            return nn.Dense(4)(nn.relu(nn.Conv(16, (3, 3))(x)).reshape(len(x), -1))

    return linen(Net(), (41, 38, 3)), {"optimizer": "sgd", "update": "full"}


@program
def images_in_pieces() -> Made:
    """Pieces along every axis, many, of odd widths, with gaps between them, several with one cotangent."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(21, (3, 3))(x)
            kinds = (nn.relu, jnp.tanh, nn.relu6, nn.sigmoid)
            channels = [kinds[i % 4](piece) for i, piece in enumerate(jnp.split(x, 7, -1))]
            x = jnp.concatenate([*channels[::-1], sum(jnp.split(x, 3, -1))], -1)
            rows = [kinds[i % 4](piece).mean(1) for i, piece in enumerate(jnp.split(x, 9, 1))]
            corners = [nn.relu(x[:, 2:5, 1:4]), jnp.tanh(x[:, 5:8, 1:4]), nn.relu6(x[:, 2:5, 4:6])]
            pooled = [piece.mean((1, 2)) for piece in corners]
            return nn.Dense(4)(jnp.concatenate([sum(rows).reshape(len(x), -1), *pooled], -1))

    return linen(Net(), (9, 8, 3)), {"optimizer": "momentum", "update": "full"}


# U-Nets


def unet(up: Callable[[Any, int], Any]) -> Any:
    inputs = keras.Input((12, 12, 2))
    one = kl.Conv2D(6, 3, padding="same", activation="relu")(inputs)
    two = kl.Conv2D(8, 3, padding="same", activation="relu")(kl.MaxPooling2D()(one))
    three = kl.Conv2D(12, 3, padding="same", activation="relu")(kl.MaxPooling2D()(two))
    x = kl.Conv2D(8, 3, padding="same", activation="relu")(kl.Concatenate()([up(three, 8), two]))
    x = kl.Conv2D(6, 3, padding="same", activation="relu")(kl.Concatenate()([up(x, 6), one]))
    return keras.Model(inputs, kl.Conv2D(3, 1)(x))


@program
def unet_transposed() -> Made:
    made = unet(lambda x, n: kl.Conv2DTranspose(n, 3, 2, "same", activation="relu")(x))
    return made, {"optimizer": "sgd", "update": "full", "loss": "sparse_categorical_crossentropy"}


@program
def unet_bilinear() -> Made:
    made = unet(lambda x, n: kl.UpSampling2D(2, interpolation="bilinear")(x))
    return made, {"optimizer": "adam", "update": "full", "loss": "mse"}


@program
def unet_nearest_instance_norm() -> Made:
    made = unet(lambda x, n: kl.GroupNormalization(-1)(kl.UpSampling2D(2)(x)))
    return made, {"optimizer": "sgd", "update": "full", "loss": "binary_crossentropy"}
