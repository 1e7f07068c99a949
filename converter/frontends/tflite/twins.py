"""Builtins on real numbers that have the shapes, and so the costs, of a file's operators."""

from __future__ import annotations

from collections.abc import Callable

from converter.backend import builtins as tfl
from converter.backend.builtins.base import Activation, Builtin
from converter.backend.builtins.conv import Padding
from converter.frontends.tflite.reading.file import FileOperator
from converter.program.flatbuffer.schema import generated

_ACTIVATIONS = {value: name for name, value in vars(generated.ActivationFunctionType).items() if isinstance(value, int)}
_PADDINGS: tuple[Padding, Padding] = ("SAME", "VALID")


def twin_of(operator: FileOperator) -> Builtin | None:
    """Return the builtin that computes the same of real numbers; None where none is known."""
    make = _TWINS.get(operator.kind)
    return None if make is None or operator.is_custom else make(operator)


def _activation(operator: FileOperator) -> Activation:
    name = _ACTIVATIONS.get(operator.options.get("fusedActivationFunction", 0), "NONE")
    return name if name in ("RELU", "RELU_N1_TO_1", "RELU6") else "NONE"


def _strides(operator: FileOperator) -> tuple[int, int]:
    return int(operator.options["strideH"]), int(operator.options["strideW"])


def _dilation(operator: FileOperator) -> tuple[int, int]:
    return int(operator.options.get("dilationHFactor", 1)), int(operator.options.get("dilationWFactor", 1))


def _padding(operator: FileOperator) -> Padding:
    return _PADDINGS[operator.options["padding"]]


def _convolution(operator: FileOperator) -> Builtin:
    window = _strides(operator), _padding(operator), _dilation(operator)
    return tfl.Conv2D(*window, activation=_activation(operator))


def _depthwise(operator: FileOperator) -> Builtin:
    window = _strides(operator), _padding(operator), _dilation(operator)
    return tfl.DepthwiseConv2D(*window, activation=_activation(operator))


def _dense(operator: FileOperator) -> Builtin:
    return tfl.FullyConnected(activation=_activation(operator))


_TWINS: dict[str, Callable[[FileOperator], Builtin]] = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _dense,
}
