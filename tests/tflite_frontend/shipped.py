"""A file as apps have them, and the TFLite Metadata that says what it takes and gives."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.tflite_frontend.written import file_of

LABELS = b"cat\ncow\ndog\nelk\nfox\nhen\npig\n"
MEAN, DEVIATION = 127.5, 63.75
#: Texts about the model: the place of each in ModelMetadata, by the name of a card.
CARD = {"name": (0, "shipped"), "description": (1, "Tells animals apart."), "author": (4, "Ada"), "license": (5, "BSD")}


def shipped() -> bytes:
    """A file as apps have them: float16 weights, two outputs, a signature, metadata and labels behind it."""
    rng = np.random.default_rng(0)

    def half(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float16)

    tensors: dict[str, Any] = {"input:0": ((1, 8, 8, 2), "float32")}
    operators: list[Any] = []

    def unpacked(name: str, array: np.ndarray) -> str:
        tensors[f"{name}/half"], tensors[name] = array, (array.shape, "float32")
        operators.append(("DEQUANTIZE", [f"{name}/half"], [name], ("DequantizeOptions", {})))
        return name

    convolution = (
        "Conv2DOptions",
        {"padding": 0, "strideH": 2, "strideW": 2, "dilationHFactor": 1, "dilationWFactor": 1},
    )
    wide = {**convolution[1], "strideH": 1, "strideW": 1}
    kernels = [unpacked("net/conv_1/kernel", half(16, 3, 3, 2)), unpacked("net/conv_1/bias", half(16))]
    tensors["net/conv_1"], tensors["net/prelu"] = ((1, 4, 4, 16), "float32"), ((1, 4, 4, 16), "float32")
    operators.append(("CONV_2D", ["input:0", *kernels], ["net/conv_1"], convolution))
    operators.append(("PRELU", ["net/conv_1", unpacked("net/prelu/alpha", half(1, 1, 16))], ["net/prelu"], None))
    kernels = [unpacked("net/conv_2/kernel", half(24, 3, 3, 16)), unpacked("net/conv_2/bias", half(24))]
    tensors["net/conv_2"], tensors["axes"] = ((1, 4, 4, 24), "float32"), np.array([1, 2], np.int32)
    operators.append(("CONV_2D", ["net/prelu", *kernels], ["net/conv_2"], ("Conv2DOptions", wide)))
    tensors["net/mean"] = ((1, 24), "float32")
    operators.append(("MEAN", ["net/conv_2", "axes"], ["net/mean"], ("ReducerOptions", {"keepDims": False})))
    for name, width in (("presence", 1), ("kind", 7)):
        kernels = [unpacked(f"net/{name}/kernel", half(width, 24)), unpacked(f"net/{name}/bias", half(width))]
        tensors[f"net/{name}"], tensors[f"{name}:0"] = ((1, width), "float32"), ((1, width), "float32")
        operators.append(("FULLY_CONNECTED", ["net/mean", *kernels], [f"net/{name}"], ("FullyConnectedOptions", {})))
        link = ("LOGISTIC", None) if name == "presence" else ("SOFTMAX", ("SoftmaxOptions", {"beta": 1.0}))
        operators.append((link[0], [f"net/{name}"], [f"{name}:0"], link[1]))
    return described(file_of(tensors, operators, ["input:0"], ["presence:0", "kind:0"]))


def described(data: bytes) -> bytes:
    """The file with a signature whose order is not that of the subgraph, with metadata and labels."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    graph = model.subgraphs[0]
    maps = [schema.TensorMapT(tensorIndex=graph.outputs[i], name=name) for i, name in ((1, "kind"), (0, "presence"))]
    given = [schema.TensorMapT(tensorIndex=graph.inputs[0], name="image")]
    model.signatureDefs = [schema.SignatureDefT(inputs=given, outputs=maps, signatureKey="serving", subgraphIndex=0)]
    model.buffers.append(schema.BufferT(data=np.frombuffer(metadata(1, "labels.txt"), np.uint8)))
    model.metadata = [schema.MetadataT(name="TFLITE_METADATA", buffer=len(model.buffers) - 1)]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    file = io.BytesIO(bytes(builder.Output()))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("labels.txt", LABELS)
    return file.getvalue()


def metadata(output: int, labels: str) -> bytes:
    """TFLite Metadata, field by field of its schema: its card, a normalized input, and an output with labels."""
    b = flatbuffers.Builder(256)

    def table(fields: int, **given: Any) -> int:
        b.StartObject(fields)
        for slot, (kind, value) in ((int(name[1:]), pair) for name, pair in given.items()):
            if kind == "offset":
                b.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                b.PrependUint8Slot(slot, value, 0)
        return b.EndObject()

    def vector(offsets: list[int]) -> int:
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return b.EndVector()

    numbers = [b.CreateNumpyVector(np.array([number], np.float32)) for number in (MEAN, DEVIATION)]
    normalization = table(2, f0=("offset", numbers[0]), f1=("offset", numbers[1]))
    unit = vector([table(2, f0=("byte", 1), f1=("offset", normalization))])
    file = vector([table(5, f0=("offset", b.CreateString(labels)), f2=("byte", 2))])
    outputs = [table(7, f6=("offset", file)) if i == output else table(7) for i in range(2)]
    inputs = vector([table(7, f4=("offset", unit))])
    graph = vector([table(9, f2=("offset", inputs), f3=("offset", vector(outputs)))])
    texts = {f"f{place}": ("offset", b.CreateString(text)) for place, text in CARD.values()}
    b.Finish(table(8, f3=("offset", graph), **texts), file_identifier=b"M001")
    return bytes(b.Output())
