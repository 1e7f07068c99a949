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


#: Numbers that no layer means, and values of other types.
_SENSELESS = (-1, 0, 2**31, 10**18, 1e308, "1", [[1]])
#: Layers, what goes into them, and a field that sizes, strides or counts come from.
_SIZED: dict[str, tuple[tuple[int, ...], str, dict[str, Any]]] = {
    "Dense": ((4,), "units", {}),
    "Conv1D": ((8, 3), "kernel_size", {"filters": 2}),
    "Conv2D": ((8, 8, 3), "strides", {"filters": 2, "kernel_size": [3, 3]}),
    "Conv3D": ((4, 4, 4, 3), "filters", {"kernel_size": [2, 2, 2]}),
    "SeparableConv2D": ((8, 8, 3), "dilation_rate", {"filters": 2, "kernel_size": [3, 3]}),
    "DepthwiseConv2D": ((8, 8, 3), "depth_multiplier", {"kernel_size": [3, 3]}),
    "Conv2DTranspose": ((8, 8, 3), "strides", {"filters": 2, "kernel_size": [3, 3]}),
    "LSTM": ((8, 3), "units", {}),
    "Embedding": ((4,), "input_dim", {"output_dim": 8}),
    "MaxPooling2D": ((8, 8, 3), "pool_size", {}),
    "RepeatVector": ((4,), "n", {}),
    "UpSampling2D": ((4, 4, 3), "size", {}),
    "CategoryEncoding": ((4,), "num_tokens", {}),
    "GroupNormalization": ((8, 6), "groups", {}),
    "MelSpectrogram": ((400,), "fft_length", {}),
    "STFTSpectrogram": ((400, 1), "frame_length", {}),
}
LAYERS |= {
    f"{kind} with {field} {value!r}": [input_of(*shape), layer(kind, **{**rest, field: value})]
    for kind, (shape, field, rest) in _SIZED.items()
    for value in _SENSELESS
}


def _part(kind: str, class_name: str, **config: Any) -> dict[str, Any]:
    """A part of a layer as Keras writes it."""
    return {"module": f"keras.{kind}", "class_name": class_name, "config": config, "registered_name": None}


def _functional(layers: list[Any]) -> dict[str, Any]:
    config = {"name": "f", "layers": layers, "input_layers": [["d", 0, 0]], "output_layers": [["d", 0, 0]]}
    return {"module": "keras", "class_name": "Functional", "registered_name": None, "config": config}


_ITSELF = {"class_name": "__keras_tensor__", "config": {"shape": [None, 4], "keras_history": ["d", 0, 0]}}
LAYERS |= {
    "a vocabulary from the disk": [input_of(4), layer("StringLookup", vocabulary="/etc/passwd")],
    "numbers from the disk": [input_of(4), layer("IntegerLookup", vocabulary="/etc/passwd")],
    "a hash": [input_of(4), layer("Hashing", num_bins=10**18)],
    "heads": [input_of(8, 3), layer("MultiHeadAttention", num_heads=10**6, key_dim=10**6)],
    "a wrapped giant": [input_of(8, 4), layer("TimeDistributed", layer=layer("Dense", units=10**9))],
    "a pair of giants": [input_of(8, 4), layer("Bidirectional", layer=layer("LSTM", units=10**6))],
    "many cells": [input_of(8, 4), layer("RNN", cell=[layer("LSTMCell", units=3)] * 2600)],
    "a far axis": [input_of(4), layer("Softmax", axis=99)],
    "a rate of NaN": [input_of(4), layer("Dropout", rate=float("nan"))],
    "a negative noise": [input_of(4), layer("GaussianNoise", stddev=-1)],
    "many axes": [input_of(4), layer("Permute", dims=[1] * 1000)],
    "an input of many axes": [input_of(*[1] * 500), layer("ReLU")],
    "axes that are not there": [input_of(4, 4), layer("Permute", dims=[5, -1])],
    "an unknown type": [input_of(4), layer("Dense", units=3, dtype="x" * 10**5)],
    "a policy of code": [input_of(4), layer("Dense", units=3, dtype=_part("dtype_policies", "Popen", name="sh"))],
    "a regularizer of text": [
        input_of(4),
        layer("Dense", units=3, kernel_regularizer=_part("regularizers", "L2", l2="a")),
    ],
    "large statistics": [input_of(4), layer("Normalization", mean=[0] * 10**5, variance=[1] * 10**5)],
    "a net in itself": [
        _functional([{**layer("Dense", units=3), "inbound_nodes": [{"args": [_ITSELF], "kwargs": {}}]}])
    ],
    "a net of nothing": [_functional([])],
    "an input of text": [layer("InputLayer", batch_shape="abc"), layer("ReLU")],
    "an input of -4": [input_of(-4), layer("ReLU")],
    "an input of 4.5": [layer("InputLayer", batch_shape=[None, 4.5]), layer("ReLU")],
    "a config that is a list": [input_of(4), {**layer("Dense"), "config": [1, 2]}],
    "no config": [input_of(4), {**layer("Dense"), "config": None}],
    "a class that is a number": [input_of(4), {**layer("Dense"), "class_name": 5}],
    "a long equation": [input_of(4), layer("EinsumDense", equation="a" * 10**5 + "->a", output_shape=3)],
    "cropped away": [input_of(4, 4, 3), layer("Cropping2D", cropping=[[10**9, 0], [0, 0]])],
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
    from converter.frontends import keras as keras_frontend
    from converter.frontends.keras.importer import load
    from converter.support.errors import PocketuneError

    done: list[str] = []
    paths = json.loads(sys.stdin.read())
    load(Path(paths.pop("good")))  # what Keras itself does at its first model is done
    sys.addaudithook(lambda event, _: done.append(event) if event in FORBIDDEN else None)
    costs = {}
    for name, path in paths.items():
        started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            keras_frontend.trace(path, 2)
            ended = "read"
        except PocketuneError as error:
            ended = f"{type(error).__name__}: {error}"
        except Exception as error:
            ended = f"BUG {type(error).__name__}: {error}"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        costs[name] = {"ended": ended, "seconds": time.process_time() - started, "mib": grown >> 10, "did": done[:]}
        done.clear()
    del results
    os.write(real, json.dumps(costs).encode())


if __name__ == "__main__":
    main()
