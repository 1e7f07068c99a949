"""Exported plain models: inputs and outputs have the names that the model's author gave them, also of rows resized."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from flax import linen, nnx

import pocketune
from converter.ir import Graph, Interface, TensorType, Value

SPEC = jax.ShapeDtypeStruct((1, 4), "float32")
WEIGHTS = {"w": np.arange(12, dtype=np.float32).reshape(4, 3) / 10}


class Net(torch.nn.Module):
    """Several outputs in a dict, one of them, or a bare one."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__()
        self.linear, self.keys = torch.nn.Linear(4, 3), keys

    def forward(self, photo: torch.Tensor) -> Any:
        if not self.keys:
            return self.linear(photo)
        return {key: self.linear(photo) * (i + 1) for i, key in enumerate(self.keys)}


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, photo: torch.Tensor, sound: torch.Tensor) -> Any:
        return OrderedDict(which=self.linear(photo), how=self.linear(sound))


class Called(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, photo: Any) -> Any:
        return {"which": self.dense(photo)}


class Linen(linen.Module):
    @linen.compact
    def __call__(self, photo: Any, scale: float = 1.0) -> Any:
        return linen.Dense(3)(photo) * scale


class Nnx(nnx.Module):
    def __init__(self) -> None:
        self.linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))

    def __call__(self, photo: Any) -> Any:
        return {"which": self.linear(photo)}


def functional(inputs: tuple[str | None, ...], outputs: tuple[str | None, ...], keys: tuple[str, ...] = ()) -> Any:
    given = [keras.Input((4,), name=name) for name in inputs]
    features = keras.layers.Concatenate()(given) if len(given) > 1 else given[0]
    made: Any = [keras.layers.Dense(3, name=name)(features) for name in outputs]
    made = dict(zip(keys, made, strict=True)) if keys else made if len(made) > 1 else made[0]
    return keras.Model(given if len(given) > 1 else given[0], made)


def sequential() -> Any:
    return keras.Sequential([keras.Input((4,), name="photo"), keras.layers.Dense(3, name="which")])


def called() -> Any:
    model = Called()
    model(np.zeros((1, 4), np.float32))
    return model


def of_torch(module: torch.nn.Module, names: tuple[str, ...] = ("photo",), **options: Any) -> Any:
    return pocketune.TorchModel(module, {name: torch.zeros(1, 4) for name in names}, **options)


def of_jax(apply: Any, inputs: int = 1) -> Any:
    return pocketune.Model(apply, WEIGHTS, inputs=[SPEC] * inputs)


def of_linen(**options: Any) -> Any:
    variables = Linen().init(jax.random.key(0), jnp.zeros((1, 4)))
    apply = partial(Linen().apply, **options) if options else Linen()
    return pocketune.Model(apply, variables, inputs=[SPEC])


def squared(names: list[str]) -> Any:
    return dict.fromkeys(names, "mse") if len(names) > 1 else "mse"


#: A model, what it calls its inputs and outputs, and what the program calls them.
MODELS: dict[str, tuple[Any, list[str], list[str], list[str], list[str]]] = {
    "Keras": (lambda: functional(("photo",), ("which",)), ["photo"], ["which"], ["x"], ["output"]),
    "Keras, no names": (lambda: functional((None,), (None,)), ["x"], ["output"], ["x"], ["output"]),
    "Keras, a dict of one": (
        lambda: functional(("photo",), ("layer",), ("which",)),
        ["photo"],
        ["which"],
        ["x"],
        ["output"],
    ),
    "Keras, several": (
        lambda: functional(("photo", "sound"), ("which", "how")),
        ["photo", "sound"],
        ["which", "how"],
        ["photo", "sound"],
        ["which", "how"],
    ),
    "Keras, a Sequential": (sequential, ["photo"], ["which"], ["x"], ["output"]),
    "Keras, a class": (called, ["photo"], ["which"], ["x"], ["output"]),
    "PyTorch": (lambda: of_torch(Net(())), ["photo"], ["output"], ["x"], ["output"]),
    "PyTorch, a dict of one": (lambda: of_torch(Net(("which",))), ["photo"], ["which"], ["x"], ["output"]),
    "PyTorch, one of several": (
        lambda: of_torch(Net(("which", "how")), outputs=["how"]),
        ["photo"],
        ["how"],
        ["x"],
        ["output"],
    ),
    "PyTorch, several": (
        lambda: of_torch(Two(), ("photo", "sound")),
        ["photo", "sound"],
        ["which", "how"],
        ["photo", "sound"],
        ["which", "how"],
    ),
    "PyTorch, a name with spaces": (lambda: of_torch(Net(("wie groß?",))), ["photo"], ["wie groß?"], ["x"], ["output"]),
    "PyTorch, no name": (lambda: of_torch(Net(("",))), ["photo"], ["output"], ["x"], ["output"]),
    "PyTorch, a line end": (lambda: of_torch(Net(("a\nb",))), ["photo"], ["output"], ["x"], ["output"]),
    "JAX": (lambda: of_jax(lambda p, photo: photo @ p["w"]), ["photo"], ["output"], ["x"], ["output"]),
    "JAX, a dict of one": (
        lambda: of_jax(lambda p, photo: {"which": photo @ p["w"]}),
        ["photo"],
        ["which"],
        ["x"],
        ["output"],
    ),
    "JAX, several": (
        lambda: of_jax(lambda p, photo, sound: (photo @ p["w"]) + sound @ p["w"], 2),
        ["photo", "sound"],
        ["output"],
        ["x_0", "x_1"],
        ["output"],
    ),
    "JAX, any number": (lambda: of_jax(lambda p, *x: x[0] @ p["w"]), ["x"], ["output"], ["x"], ["output"]),
    "JAX, a tuple of one": (lambda: of_jax(lambda p, x: (x @ p["w"],)), ["x"], ["output"], ["x"], ["output"]),
    "JAX, a weight's name": (lambda: of_jax(lambda p, w: {"w": w @ p["w"]}), ["w"], ["w"], ["x"], ["output"]),
    "linen": (of_linen, ["photo"], ["output"], ["x"], ["output"]),
    "linen, in part": (lambda: of_linen(scale=2.0), ["photo"], ["output"], ["x"], ["output"]),
    "nnx": (Nnx, ["photo"], ["which"], ["x"], ["output"]),
}


def built(model: Any, outputs: list[str]) -> pocketune.Program:
    options: dict[str, Any] = {"inputs": [SPEC]} if isinstance(model, nnx.Module) else {}
    return pocketune.build(model, batch=4, loss=squared(outputs), check=False, **options)


def check(program: pocketune.Program, path: Path, inputs: list[str], outputs: list[str]) -> None:
    """Compare the names in an exported file, and what it makes of rows by them, with the program's own results."""
    program.export_inference(path)
    interpreter = Interpreter(str(path))
    assert interpreter.get_signature_list() == {"infer": {"inputs": sorted(inputs), "outputs": sorted(outputs)}}
    assert [given["name"] for given in interpreter.get_input_details()] == inputs
    runner = interpreter.get_signature_runner("infer")
    rng = np.random.default_rng(0)
    with pocketune.TrainingSession(program.data) as session:
        for rows in (4, 1, 7):
            x = [rng.standard_normal((rows, 4), np.float32) for _ in inputs]
            found = runner(**dict(zip(inputs, x, strict=True)))
            spec = session.manifest.signatures["infer"]
            taken = [s.name for s in spec.inputs if s.role == "input"]
            wanted = session.infer(dict(zip(taken, x, strict=True)) if len(x) > 1 else x[0])
            wanted = wanted if isinstance(wanted, dict) else {spec.giving("output")[0].name: wanted}
            for own, array in zip(outputs, wanted.values(), strict=True):
                np.testing.assert_allclose(found[own], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_names_of_the_model_are_those_of_the_export(name: str, tmp_path: Path) -> None:
    make, inputs, outputs, taken, given = MODELS[name]
    program = built(make(), given)
    spec = program.manifest.signatures["infer"]
    assert [s.name for s in spec.inputs if s.role == "input"] == taken
    assert [s.name for s in spec.giving("output")] == given
    check(program, tmp_path / "plain.tflite", inputs, outputs)


def test_files_keep_the_names(tmp_path: Path) -> None:
    functional(("photo",), ("which",)).save(tmp_path / "model.keras")
    program = built(tmp_path / "model.keras", ["output"])
    check(program, tmp_path / "plain.tflite", ["photo"], ["which"])
    torch.export.save(torch.export.export(Net(("which",)), (torch.zeros(4, 4),)), tmp_path / "model.pt2")
    check(built(tmp_path / "model.pt2", ["output"]), tmp_path / "plain.tflite", ["photo"], ["which"])


def test_other_forms_of_the_export_keep_the_names(tmp_path: Path) -> None:
    program = built(functional(("photo",), ("which",)), ["output"])
    for options in ({"quantize": "float16"}, {"quantize": "dynamic"}, {"exact": False}, {"batch": 3}):
        program.export_inference(tmp_path / "plain.tflite", **options)  # type: ignore[arg-type]
        found = Interpreter(str(tmp_path / "plain.tflite")).get_signature_list()
        assert found == {"infer": {"inputs": ["photo"], "outputs": ["which"]}}, options


def test_names_that_two_would_share_are_those_of_the_program() -> None:
    values = [Value(TensorType((1,)), name) for name in ("x_0", "x_1")]
    graph = Graph(values, outputs={"a": values[0], "b": values[1]})
    named = Interface({"x_0": "x_1"}, {"a": "b"}).of(graph)
    assert [value.name for value in named.inputs] == ["x_0", "x_1"]
    assert list(named.outputs) == ["a", "b"]
    assert list(Interface({}, {"a": "c"}).of(graph).outputs) == ["c", "b"]
