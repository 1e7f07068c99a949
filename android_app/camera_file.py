"""A `.tflite` file as an app has it that feeds pictures of integers, written with the schema's own classes."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

CLASSES = 4
_TYPES = {"uint8": schema.TensorType.UINT8, "int8": schema.TensorType.INT8}
_INT32 = schema.TensorType.INT32
#: Scales are powers of two, and weights even: no kernel has to round, so all runtimes compute the same integers.
_PIXEL, _WEIGHT = 2.0**-7, 2.0**-2


def camera_file(fed: str) -> bytes:
    """Return a file that takes [1, 6, 6, 1] of uint8 or int8: a convolution, and a dense layer of [1, 4]."""
    rng = np.random.default_rng(3)
    model = schema.ModelT(version=3, buffers=[schema.BufferT()], operatorCodes=[])
    of, zero = _TYPES[fed], 128 if fed == "uint8" else 0
    kernel = (zero + 2 * rng.integers(-1, 2, (3, 3, 3, 1))).astype(fed)
    dense = (zero + 2 * rng.integers(-1, 2, (CLASSES, 12))).astype(fed)
    hidden, made = 2 * _PIXEL * _WEIGHT, 4 * _PIXEL * _WEIGHT**2
    tensors = [
        _tensor(model, "image", (1, 6, 6, 1), of, _PIXEL, zero),
        _tensor(model, "conv/kernel", kernel.shape, of, _WEIGHT, zero, kernel),
        _tensor(model, "conv/bias", (3,), _INT32, _PIXEL * _WEIGHT, 0, np.zeros(3, np.int32)),
        _tensor(model, "conv/relu", (1, 2, 2, 3), of, hidden, zero - 128),
        _tensor(model, "flat", (1, 12), of, hidden, zero - 128),
        _tensor(model, "top/kernel", dense.shape, of, _WEIGHT, zero, dense),
        _tensor(model, "top/bias", (CLASSES,), _INT32, hidden * _WEIGHT, 0, np.zeros(CLASSES, np.int32)),
        _tensor(model, "kinds", (1, CLASSES), of, made, zero),
        _tensor(model, "shape", (2,), _INT32, None, 0, np.array([1, 12], np.int32)),
    ]
    relu = schema.ActivationFunctionType.RELU
    convolution = schema.Conv2DOptionsT(padding=schema.Padding.VALID, strideH=2, strideW=2)
    convolution.fusedActivationFunction = relu
    operators = [
        _operator(model, "CONV_2D", 2, (0, 1, 2), 3, "Conv2DOptions", convolution),
        _operator(model, "RESHAPE", 1, (3, 8), 4, "ReshapeOptions", schema.ReshapeOptionsT()),
        _operator(model, "FULLY_CONNECTED", 4, (4, 5, 6), 7, "FullyConnectedOptions", schema.FullyConnectedOptionsT()),
    ]
    graph = schema.SubGraphT(tensors=tensors, inputs=[0], outputs=[7], operators=operators)
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _tensor(
    model: Any, name: str, shape: tuple[int, ...], type: int, scale: float | None, zero: int, array: Any = None
) -> Any:
    tensor = schema.TensorT(name=name, shape=list(shape), type=type, buffer=0)
    if scale is not None:
        tensor.quantization = schema.QuantizationParametersT(scale=[scale], zeroPoint=[zero])
    if array is not None:
        tensor.buffer = len(model.buffers)
        model.buffers.append(schema.BufferT(data=np.frombuffer(array.tobytes(), np.uint8)))
    return tensor


def _operator(model: Any, kind: str, version: int, inputs: tuple[int, ...], output: int, table: str, said: Any) -> Any:
    code = getattr(schema.BuiltinOperator, kind)
    model.operatorCodes.append(schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=code, version=version))
    operator = schema.OperatorT(opcodeIndex=len(model.operatorCodes) - 1, inputs=list(inputs), outputs=[output])
    operator.builtinOptionsType, operator.builtinOptions = getattr(schema.BuiltinOptions, table), said
    return operator
