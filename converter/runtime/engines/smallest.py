"""The smallest program: what an engine is asked to run where nobody can tell otherwise whether it runs here."""

from __future__ import annotations

import flatbuffers
from ai_edge_litert import schema_py_generated as generated

from converter.program.flatbuffer.schema import FILE_IDENTIFIER, VERSION


def smallest_program() -> bytes:
    """Return a `.tflite` whose signature `main` takes `x`, float32 [4], and gives `y`, twice as much."""
    kind = generated.TensorType.FLOAT32
    tensors = [generated.TensorT(name=name, shape=[4], type=kind, buffer=0) for name in ("x", "y")]
    add, options = generated.BuiltinOperator.ADD, generated.BuiltinOptions.AddOptions
    operator = generated.OperatorT(
        inputs=[0, 0], outputs=[1], builtinOptionsType=options, builtinOptions=generated.AddOptionsT()
    )
    graph = generated.SubGraphT(name="main", tensors=tensors, inputs=[0], outputs=[1], operators=[operator])
    maps = [generated.TensorMapT(name=name, tensorIndex=index) for index, name in enumerate(("x", "y"))]
    model = generated.ModelT(
        version=VERSION,
        operatorCodes=[generated.OperatorCodeT(deprecatedBuiltinCode=add, builtinCode=add, version=1)],
        subgraphs=[graph],
        buffers=[generated.BufferT(data=[])],
        signatureDefs=[generated.SignatureDefT(inputs=maps[:1], outputs=maps[1:], signatureKey="main")],
    )
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    return bytes(builder.Output())
