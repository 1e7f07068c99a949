"""Keras optimizers, from their configuration."""

from converter.frontends.keras.optimizers.reading import read_optimizer

__all__ = ["read_optimizer"]
