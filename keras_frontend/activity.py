"""Regularizers of what Keras layers give: marked in the trace, so that they join the loss of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import jax_frontend
from converter.losses import Penalty


def penalty_of(regularizer: Any) -> Penalty | None:
    """What a regularizer adds to the loss; None for nothing, and where it is not known."""
    import keras

    if type(regularizer) not in (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2):
        return None
    penalty = Penalty(float(getattr(regularizer, "l1", 0.0)), float(getattr(regularizer, "l2", 0.0)))
    return penalty if penalty.l1 or penalty.l2 else None


@contextmanager
def marked_activities() -> Iterator[None]:
    """While it lasts, layers with an activity regularizer mark what they give."""
    import keras

    with patch.object(keras.layers.Layer, "__call__", _marking(keras.layers.Layer.__call__)):
        yield


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    import keras
    from keras.src.backend import get_keras_mask, set_keras_mask

    def call(layer: Any, *arguments: Any, **options: Any) -> Any:
        outputs = original(layer, *arguments, **options)
        penalty = penalty_of(getattr(layer, "activity_regularizer", None))

        def mark(x: Any) -> Any:
            if penalty is None or not getattr(x, "ndim", 0):
                return x
            marked = jax_frontend.activity(x, penalty.l1, penalty.l2, layer.name)
            if (mask := get_keras_mask(x)) is not None:
                set_keras_mask(marked, mask)
            return marked

        return outputs if penalty is None else keras.tree.map_structure(mark, outputs)

    return call
