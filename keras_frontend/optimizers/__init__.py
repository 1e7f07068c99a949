"""Keras optimizers, from their configuration."""

from keras_frontend.optimizers.reading import read_optimizer

__all__ = ["read_optimizer"]
