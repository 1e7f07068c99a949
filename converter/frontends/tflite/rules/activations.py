"""Activations: operators of their own, and those fused into others."""

from __future__ import annotations

import numpy as np

from converter.frontends.tflite.folding import checked_size
from converter.frontends.tflite.registry import Call, Result, Rules
from converter.ir import Builder, Value, ops
from converter.program.flatbuffer.schema import generated
from converter.support.errors import NotImportable

rule = Rules()

#: Names of activations by their numbers in files.
KINDS = {value: name for name, value in vars(generated.ActivationFunctionType).items() if isinstance(value, int)}


def fused(call: Call, x: Value) -> Value:
    """Return `x` after the activation that the operator applies to its result."""
    return activated(call.b, KINDS[call.option("fusedActivationFunction", 0)], x)


def activated(b: Builder, kind: str, x: Value) -> Value:
    """Return `x` after an activation by the schema's name. Raise NotImportable for one that has no kernel."""
    match kind:
        case "NONE":
            return x
        case "RELU":
            return b(ops.Relu(), x)
        case "RELU6":
            return b(ops.Relu6(), x)
        case "RELU_N1_TO_1":
            return b(ops.Maximum(), b(ops.Minimum(), x, 1.0), -1.0)
        case "TANH":
            return b(ops.Tanh(), x)
    raise NotImportable(f"the activation {kind}")


@rule("RELU", "RELU6", "RELU_N1_TO_1", "TANH")
def activation(call: Call, x: Value) -> Result:
    """The activation of that name."""
    return activated(call.b, call.operator.kind, x)


@rule("RELU_0_TO_1")
def relu_0_to_1(call: Call, x: Value) -> Result:
    """Clipped to 0..1."""
    return call.b(ops.Maximum(), call.b(ops.Minimum(), x, 1.0), 0.0)


@rule("LOGISTIC")
def logistic(call: Call, x: Value) -> Result:
    """The sigmoid."""
    return call.b(ops.Logistic(), x)


@rule("HARD_SWISH")
def hard_swish(call: Call, x: Value) -> Result:
    """x relu6(x + 3) / 6."""
    return call.b(ops.HardSwish(), x)


@rule("ELU")
def elu(call: Call, x: Value) -> Result:
    """x, and e^x - 1 below 0."""
    return call.b(ops.Elu(), x)


@rule("LEAKY_RELU")
def leaky_relu(call: Call, x: Value) -> Result:
    """x, and alpha x below 0."""
    return call.b(ops.LeakyRelu(float(call.option("alpha", 0.0))), x)


@rule("GELU")
def gelu(call: Call, x: Value) -> Result:
    """The exact form, or that by tanh."""
    return call.b(ops.Gelu(bool(call.option("approximate", False))), x)


@rule("PRELU")
def prelu(call: Call, x: Value, alpha: Value) -> Result:
    """max(x, 0) + alpha min(x, 0), with an alpha for each channel."""
    b = call.b
    below = b(ops.Neg(), b(ops.Relu(), b(ops.Neg(), x)))
    return b(ops.Add(), b(ops.Relu(), x), b(ops.Mul(), alpha, below))


@rule("SOFTMAX")
def softmax(call: Call, x: Value) -> Result:
    """Over the last axis."""
    beta = float(call.option("beta", 1.0))
    return call.b(ops.Softmax(), x if beta == 1 else call.b(ops.Mul(), x, beta))


@rule("LOG_SOFTMAX")
def log_softmax(call: Call, x: Value) -> Result:
    """Over the last axis."""
    return call.b(ops.LogSoftmax(), x)


@rule("L2_NORMALIZATION")
def l2_normalization(call: Call, x: Value) -> Result:
    """x over its length along the last axis, of at least 1e-6 as the kernel has it."""
    b = call.b
    squares = b(ops.Sum((len(x.shape) - 1,), keepdims=True), b(ops.Mul(), x, x))
    return fused(call, b(ops.Div(), x, b(ops.Maximum(), b(ops.Sqrt(), squares), 1e-6)))


@rule("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(call: Call, x: Value) -> Result:
    """x / (bias + alpha s)^beta, s the sum of squares of the channels from c - radius to c + radius."""
    b, radius, channels = call.b, int(call.option("radius")), x.shape[-1]
    bias, alpha, beta = (float(call.option(name)) for name in ("bias", "alpha", "beta"))
    checked_size(b, "LOCAL_RESPONSE_NORMALIZATION", channels**2)
    separate = np.abs(np.arange(channels)[:, None] - np.arange(channels))
    around = b(ops.MatMul(), b(ops.Mul(), x, x), b.constant((separate <= radius).astype(np.float32)))
    return b(ops.Mul(), x, b(ops.Pow(), b(ops.Add(), b(ops.Mul(), around, alpha), bias), -beta))
