"""Models of keras.applications by name, with random weights: nothing is downloaded."""

from __future__ import annotations

import inspect
from typing import Any

from converter.frontends.keras.process import runs_jax
from converter.support.errors import UsageError, nearest


def names() -> list[str]:
    """Return what there is: `MobileNetV3Small`, ..."""
    runs_jax()
    from keras import applications

    return sorted(name for name, value in vars(applications).items() if inspect.isfunction(value))


def application(
    name: str, size: int = 224, classes: int = 10, weights: str | None = None, seed: int = 0, **options: Any
) -> Any:
    """Return a `keras.Model`: float32 [B, size, size, 3] -> logits [B, classes].

    Args:
        name: of the function in keras.applications.
        size: height and width of the image.
        classes: number of classes.
        weights: a file of the user's own that `model.save_weights` wrote; without one, Keras' random initial weights.
        seed: of the random weights.
        **options: further ones of the function, as `alpha` of the MobileNets.

    Raises:
        UsageError: there is no such net.
    """
    if name not in names():
        raise UsageError(
            f"keras.applications has no {name!r}.{nearest(name, names())} It has {', '.join(names())}.", page="models"
        )
    import keras

    keras.utils.set_random_seed(seed)
    return getattr(keras.applications, name)(
        input_shape=(size, size, 3), classes=classes, weights=weights, classifier_activation=None, **options
    )
