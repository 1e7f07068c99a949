"""The process of Hexagon: compiles a signature for the SoC, and runs it on the emulation."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from flatbuffers import flexbuffers
from onnx import helper

from converter.program.flatbuffer.schema import generated
from converter.runtime.engines.work import Arrays, serve

_EP = "QNNExecutionProvider"
_DTYPES: dict[int, tuple[int, Any]] = {
    generated.TensorType.FLOAT32: (onnx.TensorProto.FLOAT, np.float32),
    generated.TensorType.INT32: (onnx.TensorProto.INT32, np.int32),
    generated.TensorType.BOOL: (onnx.TensorProto.BOOL, np.bool_),
}


class CompiledContext:
    """A file of one signature, compiled to one context, which ONNX Runtime hands to the emulation."""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._options = options
        compiled = path.with_suffix(".compiled")
        litert = Path(str(metadata.distribution("ai-edge-litert").locate_file("ai_edge_litert")))
        command = [str(litert / "tools/apply_plugin_main"), "--cmd=apply", f"--model={path}", f"--o={compiled}"]
        command += ["--soc_manufacturer=Qualcomm", f"--soc_model={options['soc']}", "--err=--"]
        done = subprocess.run([*command, f"--libs={litert / 'vendors/qualcomm/compiler'}"], check=False)  # noqa: S603
        if done.returncode or not compiled.exists():
            raise RuntimeError(f"Qualcomm's compiler ended with exit status {done.returncode}")
        data = compiled.read_bytes()
        model = generated.ModelT.InitFromPackedBuf(data, 0)
        graph, signature = model.subgraphs[0], model.signatureDefs[0]
        self._is_whole = len(graph.operators) == 1
        if not self._is_whole:
            raise RuntimeError(
                f"Qualcomm's compiler left {len(graph.operators)} operators, where one context is wanted"
            )
        operator = graph.operators[0]
        said = flexbuffers.GetRoot(bytearray(operator.customOptions)).Value
        context = data[said["bytecode_offset"] :][: said["bytecode_size"]]
        read = set(operator.inputs)
        self._inputs = {
            m.name.decode(): (_name(graph.tensors[m.tensorIndex]), _DTYPES[graph.tensors[m.tensorIndex].type][1])
            for m in signature.inputs
            if m.tensorIndex in read
        }
        self._outputs = {m.name.decode(): _name(graph.tensors[m.tensorIndex]) for m in signature.outputs}
        takes, gives = ([graph.tensors[i] for i in side] for side in (operator.inputs, operator.outputs))
        node = helper.make_node(
            "EPContext",
            [_name(t) for t in takes],
            [_name(t) for t in gives],
            name=said["name"],
            domain="com.microsoft",
            ep_cache_context=context,
            embed_mode=1,
            main_context=1,
            source="QNN",
            partition_name=said["name"],
        )
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        outer = helper.make_graph([node], "context", [_described(t) for t in takes], [_described(t) for t in gives])
        self._session = _session(helper.make_model(outer, opset_imports=domains, ir_version=9), options)

    def said(self, log: str) -> dict[str, Any]:
        selected = re.search(r"selected (\d+) ops, from a total of (\d+) ops. resulted in (\d+) partitions", log)
        every = selected is None or (selected[1] == selected[2] and selected[3] == "1")
        return {"whole": self._is_whole and every, "driver": f"HTP emulation, {self._options['soc']}"}

    def __call__(self, signature: str, feed: Arrays) -> Arrays:
        given = {inner: np.ascontiguousarray(feed[name], dtype) for name, (inner, dtype) in self._inputs.items()}
        results = self._session.run(list(self._outputs.values()), given)
        return dict(zip(self._outputs, results, strict=True))


def _session(model: Any, options: Mapping[str, Any]) -> Any:
    libraries = Path(options["libraries"])
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _EP]
    if not devices:
        onnxruntime.register_execution_provider_library(_EP, str(libraries / "libonnxruntime_providers_qnn.so"))
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _EP]
    backend = {"backend_path": str(libraries / "libQnnHtp.so")}
    backend |= {"soc_model": options["number"], "htp_arch": options["architecture"]}
    settings.add_provider_for_devices(devices[:1], backend)
    return onnxruntime.InferenceSession(model.SerializeToString(), settings)


def _name(tensor: Any) -> str:
    return str(tensor.name.decode()).replace(":", "_")


def _described(tensor: Any) -> Any:
    return helper.make_tensor_value_info(_name(tensor), _DTYPES[tensor.type][0], [int(n) for n in tensor.shape])


if __name__ == "__main__":
    serve(CompiledContext)
