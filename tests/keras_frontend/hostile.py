"""Hostile `.keras` files, and a process that opens them: what each cost, and what it made Python do."""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

#: What nothing in a model file may cause.
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "shutil.rmtree")


def layer(kind: str, **config: Any) -> dict[str, Any]:
    """A layer as Keras writes it."""
    return {"module": "keras.layers", "class_name": kind, "config": {"name": "evil", **config}, "registered_name": None}


def function(module: Any, name: Any, registered: Any = "function") -> dict[str, Any]:
    """A function as Keras writes it."""
    return {"module": module, "class_name": "function", "config": name, "registered_name": registered}


def input_of(*shape: int) -> dict[str, Any]:
    return layer("InputLayer", batch_shape=[None, *shape], dtype="float32")


#: The layers of a Sequential, whose file stores the weights of one small dense layer.
LAYERS: dict[str, list[dict[str, Any]]] = {
    "dense of 1e9": [input_of(4), layer("Dense", units=10**9)],
    "dense of 2^40": [input_of(4), layer("Dense", units=2**40)],
    "dense of 2^70": [input_of(4), layer("Dense", units=2**70)],
    "dense of -1": [input_of(4), layer("Dense", units=-1)],
    "dense of text": [input_of(4), layer("Dense", units="many")],
    "dense of a list": [input_of(4), layer("Dense", units=[10**9])],
    "embedding": [input_of(4), layer("Embedding", input_dim=10**10, output_dim=64)],
    "convolution": [input_of(8, 8, 3), layer("Conv2D", filters=10**8, kernel_size=[3, 3])],
    "kernel": [input_of(8, 8, 3), layer("Conv2D", filters=1, kernel_size=[10**5, 10**5], padding="same")],
    "recurrent": [input_of(8, 3), layer("GRU", units=10**6)],
    "attention": [
        input_of(8, 3),
        layer("Dense", units=3),
        layer("EinsumDense", equation="abc,cd->abd", output_shape=[None, 10**10]),
    ],
    "input": [input_of(10**12), layer("ReLU")],
    "square input": [input_of(10**6, 10**6, 3), layer("Flatten")],
    "repeated": [input_of(4), layer("RepeatVector", n=10**9)],
    "padded": [input_of(4, 4, 3), layer("ZeroPadding2D", padding=[[10**6, 10**6], [10**6, 10**6]])],
    "enlarged": [input_of(4, 4, 3), layer("UpSampling2D", size=[10**5, 10**5])],
    "reshaped": [input_of(4), layer("Reshape", target_shape=[2**62, 2**62])],
    "many layers": [input_of(4), *[layer("ReLU") for _ in range(20_000)]],
    "no layers": [],
    "unknown layer": [input_of(4), layer("Denser")],
    "recursion": [input_of(4), layer("TimeDistributed", layer=layer("TimeDistributed", layer=layer("Nothing")))],
    "foreign code": [input_of(4), {**layer("Popen"), "module": "subprocess"}],
    "a private module": [input_of(4), {**layer("Popen"), "module": "keras.src.utils.io_utils"}],
    "legacy": [input_of(4), {**layer("Lambda"), "module": "keras.src.layers.core.lambda_layer"}],
    "lambda, renamed": [
        input_of(4),
        layer("Lambda", function={"class_name": "__lambda__", "config": {"code": "4wE="}}),
    ],
    "torch": [input_of(4), layer("TorchModuleWrapper", module="gASV")],
}
FUNCTIONS: list[dict[str, Any]] = [
    *(function("builtins", name) for name in ("eval", "exec", "print", "input", "open", "__import__", "breakpoint")),
    *(function("builtins", name, name) for name in ("exit", "compile")),
    function(None, "eval"),
    function("os", "system"),
    function("subprocess", "check_output"),
    function("keras.utils", "get_file"),
    function("keras.saving", "load_model"),
    function("keras.models", "load_model"),
    function("keras", "version"),
    function("keras.activations", "deserialize"),
    function("keras.activations", "__loader__"),
    function("keras.src.ops.numpy", "np.load"),
    function("keras.layers", "deserialize"),
    function(["os"], "system"),
    function("os", ["system"]),
    function("numpy", "load", "numpy>load"),
    {"class_name": "__typespec__", "module": "os", "spec_name": "system", "config": [], "registered_name": None},
]
LAYERS |= {
    f"function {i}, {item.get('module')}.{item.get('config')}": [input_of(4), layer("Dense", units=3, activation=item)]
    for i, item in enumerate(FUNCTIONS)
}


def _group(file: h5py.File) -> Any:
    return file["layers/dense/vars"]


def _linked_outside(file: h5py.File) -> None:
    del _group(file)["0"]
    _group(file)["0"] = h5py.ExternalLink("/etc/hostname", "/")


def _linked(file: h5py.File) -> None:
    del _group(file)["0"]
    _group(file)["0"] = h5py.SoftLink("/layers/dense/vars/1")


def _stored_outside(file: h5py.File) -> None:
    del _group(file)["0"]
    _group(file).create_dataset("0", (4, 3), "f4", external=[("/etc/passwd", 0, 48)])


def _virtual(file: h5py.File) -> None:
    del _group(file)["0"]
    layout = h5py.VirtualLayout((4, 3), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4, 3))
    _group(file).create_virtual_dataset("0", layout)


def _claims_much(file: h5py.File) -> None:
    del _group(file)["0"]
    _group(file).create_dataset("0", (2**20, 2**16), "f4", chunks=(1024, 1024))


def _expands(file: h5py.File) -> None:
    del _group(file)["0"]
    _group(file).create_dataset("0", data=np.zeros((2048, 2048), "f4"), compression="gzip")


def _text(file: h5py.File) -> None:
    del _group(file)["0"]
    _group(file).create_dataset("0", data=["text"] * 12, dtype=h5py.string_dtype())


def _other_shape(file: h5py.File) -> None:
    del _group(file)["0"]
    _group(file).create_dataset("0", data=np.zeros((3, 4), "f4"))


WEIGHTS: dict[str, Callable[[h5py.File], None]] = {
    "a link out of the file": _linked_outside,
    "a link": _linked,
    "a part of another file": _stored_outside,
    "a virtual part of another file": _virtual,
    "a claim of much": _claims_much,
    "an expansion": _expands,
    "text": _text,
    "another shape": _other_shape,
}


def write_all(good: Path, folder: Path) -> dict[str, Path]:
    """The hostile files, made from a good one: a Sequential of one dense layer, 4 -> 3."""
    with zipfile.ZipFile(good) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    paths = {}

    def write(name: str, changed: dict[str, bytes]) -> None:
        paths[name] = folder / f"{len(paths)}.keras"
        with zipfile.ZipFile(paths[name], "w") as archive:
            for member, content in {**members, **changed}.items():
                archive.writestr(member, content)

    for name, layers in LAYERS.items():
        config = json.loads(members["config.json"])
        config.pop("build_config", None)
        config["config"].pop("build_input_shape", None)
        config["config"]["layers"] = [
            {**item, "config": {**item["config"], "name": f"evil_{i}"}} if isinstance(item["config"], dict) else item
            for i, item in enumerate(layers)
        ]
        write(name, {"config.json": json.dumps(config).encode()})
    for name, change in WEIGHTS.items():
        buffer = io.BytesIO(members["model.weights.h5"])
        with h5py.File(buffer, "r+") as file:
            change(file)
        write(name, {"model.weights.h5": buffer.getvalue()})
    return paths


def main() -> None:
    """Opens each file that is named on stdin; writes what it cost as JSON to stdout."""
    results, real = sys.stdout, os.dup(1)
    os.dup2(2, 1)
    import keras_frontend
    from converter.errors import PocketuneError
    from keras_frontend.importer import load

    done: list[str] = []
    paths = json.loads(sys.stdin.read())
    load(Path(paths.pop("good")))  # what Keras itself does at its first model is done
    sys.addaudithook(lambda event, _: done.append(event) if event in FORBIDDEN else None)
    costs = {}
    for name, path in paths.items():
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            keras_frontend.trace(path, 2)
            ended = "read"
        except PocketuneError as error:
            ended = f"{type(error).__name__}: {error}"
        except Exception as error:
            ended = f"BUG {type(error).__name__}: {error}"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        costs[name] = {"ended": ended, "seconds": time.perf_counter() - started, "mib": grown >> 10, "did": done[:]}
        done.clear()
    del results
    os.write(real, json.dumps(costs).encode())


if __name__ == "__main__":
    main()
