"""Activity regularizers of Keras layers: marked in the trace, so that they join the loss of each row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import jax_frontend
from converter.training.losses import Penalty


def penalty_of(regularizer: Any) -> Penalty | None:
    """Return what a regularizer adds to the loss; None for nothing, and where it is not known."""
    import keras

    if type(regularizer) not in (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2):
        return None
    penalty = Penalty(float(getattr(regularizer, "l1", 0.0)), float(getattr(regularizer, "l2", 0.0)))
    return penalty if penalty.l1 or penalty.l2 else None


class Activities:
    """The outputs that a call of a model regularizes, numbered in order.

    A layer that is called again, not from within another one, forgets what it and the layers in it have added to the
    loss before: so Keras does while it trains, and of several uses of a shared layer the last one counts.

    Attributes:
        model: whose call it is.
        marks: numbers of those that are marked; None for all.
        kept: the layer of each that counts, as far as is known.
    """

    def __init__(self, model: Any, marks: Collection[int] | None = None) -> None:
        self.model, self.marks = model, marks
        self.kept: dict[int, Any] = {}
        self._seen = self._depth = 0

    @staticmethod
    def exist(model: Any) -> bool:
        """Return whether a layer of the model regularizes what it gives."""
        return any(penalty_of(getattr(layer, "activity_regularizer", None)) for layer in model._flatten_layers())

    @contextmanager
    def marked(self) -> Iterator[None]:
        """While it lasts, layers with an activity regularizer mark what they give."""
        import keras

        with patch.object(keras.layers.Layer, "__call__", self._marking(keras.layers.Layer.__call__)):
            yield

    def _marking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import keras

        def call(layer: Any, *arguments: Any, **options: Any) -> Any:
            if layer is self.model:
                return original(layer, *arguments, **options)
            if not self._depth:
                self._forget(layer)
            self._depth += 1
            try:
                outputs = original(layer, *arguments, **options)
            finally:
                self._depth -= 1
            penalty = penalty_of(getattr(layer, "activity_regularizer", None))
            if penalty is None:
                return outputs
            return keras.tree.map_structure(lambda x: self._mark(x, layer, penalty), outputs)

        return call

    def _forget(self, layer: Any) -> None:
        layer._clear_losses()
        within = {id(each) for each in layer._flatten_layers()}
        self.kept = {number: owner for number, owner in self.kept.items() if id(owner) not in within}

    def _mark(self, x: Any, layer: Any, penalty: Penalty) -> Any:
        from keras.src.backend import get_keras_mask, set_keras_mask

        if not getattr(x, "ndim", 0):
            return x
        number, self._seen = self._seen, self._seen + 1
        self.kept[number] = layer
        if self.marks is not None and number not in self.marks:
            return x
        marked = jax_frontend.activity(x, penalty.l1, penalty.l2, layer.name)
        if (mask := get_keras_mask(x)) is not None:
            set_keras_mask(marked, mask)
        return marked
