"""The process of LiteRT's GPU engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel, GpuOptions, HardwareAccelerator, Options

from converter.runtime.engines.work import Arrays, serve


class _Model:
    """A program in a CompiledModel. The CPU may help, so that what the GPU refuses does not hide what it gets wrong."""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        both = HardwareAccelerator.GPU | HardwareAccelerator.CPU
        self._model = CompiledModel.from_file(
            str(path), options=Options(hardware_accelerators=both, gpu_options=GpuOptions(enforce_f32=True))
        )

    def said(self, log: str) -> dict[str, Any]:
        adapter = re.search(r"Selected adapter: ([^,]+(?:, [^=]*)?)(?:, arch=|$)", log, re.MULTILINE)
        return {
            "whole": bool(self._model.is_fully_accelerated()),
            "driver": adapter[1] if adapter else "an unknown Vulkan driver",
        }

    def __call__(self, signature: str, feed: Arrays) -> Arrays:
        model = self._model
        names = model.get_signature_list()[signature]
        takes, gives = model.get_input_tensor_details(signature), model.get_output_tensor_details(signature)
        inputs = {name: model.create_input_buffer_by_name(signature, name) for name in names["inputs"]}
        outputs = {name: model.create_output_buffer_by_name(signature, name) for name in names["outputs"]}
        for name, buffer in inputs.items():
            buffer.write(np.ascontiguousarray(feed[name], dtype=np.dtype(takes[name]["dtype"])))
        model.run_by_name(signature, inputs, outputs)
        results = {}
        for name, buffer in outputs.items():
            shape, dtype = gives[name]["shape"], np.dtype(gives[name]["dtype"])
            results[name] = np.array(buffer.read(int(np.prod(shape)), dtype)).reshape(shape)
        return results


if __name__ == "__main__":
    serve(_Model)
