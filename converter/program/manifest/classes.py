"""Classes that a model tells apart: the outputs whose classes have labels, and the layer that a session may set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LabelledOutput:
    """An output whose classes the labels name.

    Attributes:
        output: its name.
        place: its place among the model's outputs, from 0; states know it by that, as names of outputs may change.
        parameters: of its last layer, those that the state holds: with other labels they mean something else.
    """

    output: str
    place: int
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class ClassHead:
    """The dense layer that tells classes apart, where the runtime may set it without a gradient.

    Attributes:
        kernel: the parameter, of two axes.
        bias: the parameter [classes].
        axis: of the kernel, along which the classes lie.
        own: classes of the model itself, the first ones.
        names: the state tensor int32 [classes, 16] that says what each is called: the bytes of its name in UTF-8, and
            these, four a number, the lowest first; 0 bytes of one that there is not. None: there is no room for others.
        takes_features: whether what `features` gives is what the layer reads.
        scale: of features in integers: what they stand for is (feature - zero_point) times it.
        zero_point: the integer that stands for 0.
    """

    kernel: str
    bias: str
    axis: int
    own: int
    names: str | None = None
    takes_features: bool = False
    scale: float = 1.0
    zero_point: int = 0
