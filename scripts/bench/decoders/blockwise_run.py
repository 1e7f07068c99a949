"""Run of a block-wise step in one of the ways of `blockwise.py`: prints memory and times as JSON.

Needs NumPy and LiteRT alone, so that nothing else is in the process that is measured.

    python scripts/bench/decoders/blockwise_run.py FOLDER WAY STEPS
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel, CpuOptions, Options
from ai_edge_litert.environment import Environment
from ai_edge_litert.hardware_accelerator import HardwareAccelerator
from ai_edge_litert.interpreter import Interpreter
from ai_edge_litert.tensor_buffer import TensorBuffer

Arrays = dict[str, np.ndarray]


class Runner(ABC):
    """Calls of the signatures of blocks."""

    def __init__(self, folder: Path, layers: int) -> None:
        self.folder, self.layers = folder, layers

    def open(self) -> None:  # noqa: B027
        """Load what stays loaded."""

    @abstractmethod
    def call(self, name: str, block: int, inputs: Arrays) -> Arrays:
        """Run `forward` or `backward` of a block. Return its outputs."""

    def step(self, x: np.ndarray, adapters: list[Arrays]) -> float:
        """Run all forwards, then all backwards. Return a sum over all gradients, to compare ways by."""
        kept, told = [x], 0.0
        for block in range(self.layers):
            kept.append(self.call("forward", block, {"x": kept[-1], **adapters[block]})["output"])
        dy = kept.pop() * np.float32(1e-3)
        for block in reversed(range(self.layers)):
            made = self.call("backward", block, {"x": kept.pop(), "dy": dy, **adapters[block]})
            dy = made["d/x"]
            told += _size({name: gradient for name, gradient in made.items() if block == 0 or name != "d/x"})
        return told


def _size(gradients: Arrays) -> float:
    return float(sum(np.abs(gradient, dtype=np.float64).sum() for gradient in gradients.values()))


class _Opened:
    """An interpreter, whose signatures are called in place."""

    def __init__(self, path: Path) -> None:
        self._interpreter = Interpreter(os.fspath(path), num_threads=1)
        self._native = self._interpreter._interpreter
        self._entries: dict[str, tuple[int, dict[str, int], dict[str, int]]] = {}

    def allocate(self, name: str) -> tuple[int, dict[str, int], dict[str, int]]:
        if name not in self._entries:
            runner = self._interpreter.get_signature_runner(name)
            inputs, outputs = runner.get_input_details(), runner.get_output_details()
            index = runner._subgraph_index
            self._native.AllocateTensors(index)
            places = [{key: details["index"] for key, details in side.items()} for side in (inputs, outputs)]
            self._entries[name] = (index, places[0], places[1])
        return self._entries[name]

    def call(self, name: str, inputs: Arrays) -> Arrays:
        index, given, made = self.allocate(name)
        for key, array in inputs.items():
            view = self._native.tensor(self._native, given[key], index)
            if array.dtype == view.dtype and array.shape == view.shape:
                view[...] = array
            else:  # int4 two a byte, where the view counts one each
                np.lib.stride_tricks.as_strided(view.reshape(-1), array.shape, (1,))[...] = array
        self._native.Invoke(index)
        return {key: self._native.tensor(self._native, place, index).copy() for key, place in made.items()}


class Signatures(Runner):
    """One interpreter of one file, with a pair of signatures for each block."""

    def open(self) -> None:
        self._opened = _Opened(self.folder / "all.tflite")
        for block in range(self.layers):
            self._opened.allocate(f"forward_{block}")
            self._opened.allocate(f"backward_{block}")

    def call(self, name: str, block: int, inputs: Arrays) -> Arrays:
        return self._opened.call(f"{name}_{block}", inputs)


class Interpreters(Runner):
    """An interpreter for each call, closed behind it."""

    def call(self, name: str, block: int, inputs: Arrays) -> Arrays:
        return _Opened(self.folder / f"{block}.tflite").call(f"{name}_{block}", inputs)


class Kept(Runner):
    """An interpreter for each block, which stay open."""

    def open(self) -> None:
        self._opened = [_Opened(self.folder / f"{block}.tflite") for block in range(self.layers)]
        for block, opened in enumerate(self._opened):
            opened.allocate(f"forward_{block}")
            opened.allocate(f"backward_{block}")

    def call(self, name: str, block: int, inputs: Arrays) -> Arrays:
        return self._opened[block].call(f"{name}_{block}", inputs)


def _mapped_weights(folder: Path, layers: int) -> list[Arrays]:
    """Return the weights of each block by name, in their files."""
    told = json.loads((folder / "weights.json").read_text())
    blocks = []
    for block in range(layers):
        data = np.memmap(folder / f"{block}.bin", np.uint8, "r")
        blocks.append({key: data[at : at + n].view(kind).reshape(shape) for key, at, n, kind, shape in told})
    return blocks


class Arguments(Runner):
    """One interpreter and one pair of signatures, which take the weights of a block as inputs."""

    def open(self) -> None:
        self._weights = _mapped_weights(self.folder, self.layers)
        self._opened = _Opened(self.folder / "all.tflite")
        self._opened.allocate("forward")
        self._opened.allocate("backward")

    def call(self, name: str, block: int, inputs: Arrays) -> Arrays:
        return self._opened.call(name, inputs | self._weights[block])


def _compiled(path: Path, cache: str = "") -> CompiledModel:
    nowhere = os.fspath(Path(__file__).parent)
    environment = Environment.create(compiler_plugin_path=nowhere, dispatch_library_path=nowhere)
    cpu = CpuOptions(num_threads=1, xnnpack_weight_cache_path=cache)
    options = Options(hardware_accelerators=HardwareAccelerator.CPU, cpu_options=cpu)
    return CompiledModel.from_file(os.fspath(path), None, environment, options)


class Cache(Runner):
    """CompiledModel with XNNPACK's weight cache."""

    def open(self) -> None:
        cache = self.folder / "packed"
        if not cache.exists():
            _compiled(self.folder / "all.tflite", os.fspath(cache)).close()
        self._model = _compiled(self.folder / "all.tflite", os.fspath(cache) if cache.exists() else "")
        self._buffers: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {}

    def _of(self, name: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
        if name not in self._buffers:
            index = self._model.get_signature_index(name)
            names = self._model.get_signature_by_index(index)
            inputs, outputs = self._model.create_input_buffers(index), self._model.create_output_buffers(index)
            sides = [dict(zip(names[k], v, strict=True)) for k, v in (("inputs", inputs), ("outputs", outputs))]
            self._buffers[name] = (index, sides[0], sides[1])
        return self._buffers[name]

    def _run(self, name: str, inputs: Arrays, bound: Mapping[str, Any]) -> Arrays:
        index, given, made = self._of(name)
        for key, array in inputs.items():
            given[key].write(array)
        self._model.run_by_index(index, list((given | dict(bound)).values()), list(made.values()))
        details = self._model.get_output_tensor_details(name)
        shapes = {key: tuple(details[key]["shape"]) for key in made}
        return {key: b.read(int(np.prod(shapes[key])), np.float32).reshape(shapes[key]) for key, b in made.items()}

    def call(self, name: str, block: int, inputs: Arrays) -> Arrays:
        return self._run(f"{name}_{block}", inputs, {})


class Buffers(Cache):
    """CompiledModel of one pair of signatures, with weights in buffers of the host's memory."""

    def open(self) -> None:
        self._model, self._buffers = _compiled(self.folder / "all.tflite"), {}
        self._weights = [
            {key: TensorBuffer.create_from_host_memory(array) for key, array in block.items()}
            for block in _mapped_weights(self.folder, self.layers)
        ]

    def call(self, name: str, block: int, inputs: Arrays) -> Arrays:
        return self._run(name, inputs, self._weights[block])


class Whole(Runner):
    """One interpreter and one signature, which is the whole step."""

    def open(self) -> None:
        self._opened = _Opened(self.folder / "all.tflite")
        self._opened.allocate("step")

    def call(self, name: str, block: int, inputs: Arrays) -> Arrays:
        raise NotImplementedError

    def step(self, x: np.ndarray, adapters: list[Arrays]) -> float:
        given = {f"{name}_{block}": array for block, own in enumerate(adapters) for name, array in own.items()}
        return _size(self._opened.call("step", {"x": x, **given}))


RUNNERS = {
    "signatures": Signatures, "interpreters": Interpreters, "kept": Kept, "arguments": Arguments, "cache": Cache,
    "buffers": Buffers, "whole": Whole,
}  # fmt: skip


def resident() -> tuple[int, int]:
    """Return anonymous and file-backed bytes of this process."""
    total, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    page = os.sysconf("SC_PAGE_SIZE")
    return (total - shared) * page, shared * page


@contextlib.contextmanager
def watching() -> Iterator[Callable[[], tuple[int, int]]]:
    """Yield what tells the most that was resident, each of the two, so far."""
    most, over = [0, 0], threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            most[:] = map(max, most, resident())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: (most[0], most[1])
    finally:
        over.set()
        thread.join()


def main(folder: Path, way: str, steps: int) -> None:
    """Print the figures of a way as JSON: bytes that are resident more than before, seconds, and a sum to compare."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    told = json.loads((folder / "shape.json").read_text())
    rng = np.random.default_rng(0)
    x = rng.standard_normal(told["x"], np.float32)
    adapters = [
        {key: rng.standard_normal(shape, np.float32) * np.float32(0.01) for key, shape in told["adapters"].items()}
        for _ in range(told["layers"])
    ]
    runner = RUNNERS[way](folder, told["layers"])
    before = resident()
    with watching() as most:
        start = time.perf_counter()
        runner.open()
        opened = time.perf_counter() - start
        times = []
        for _ in range(steps):
            start = time.process_time()
            gradients = runner.step(x, adapters)
            times.append(time.process_time() - start)
        anonymous, file = most()
    print(json.dumps({
        "anonymous": anonymous - before[0], "file": file - before[1], "open": opened, "step": min(times),
        "gradients": gradients,
    }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
