"""Checks of one real file: what a program made of it infers, and how it trains, against others than our own code.

    python scripts/bench/tflite_files/check.py FILE JSON

prints a line of JSON. The stock interpreter on the file says what is inferred, JAX on the features that it makes how a
fresh head learns, and differences of the program's own loss which way deeper layers go.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import pocketune
from converter.frontends import tflite as tflite_frontend
from converter.frontends.tflite.reading.file import needed, read_file
from converter.program.flatbuffer.parts import part
from converter.support.errors import PocketuneError, UsageError

CLASSES, ROWS, STEPS = 5, 2, 10
#: Trained tensors whose derivatives are taken, at most.
TENSORS = 8


class Original:
    """A file in the stock interpreter, one row at a time; integers are the numbers that they stand for.

    Args:
        file: its path, or its bytes.
        shape: of its input, where it leaves axes open.
        delegated: on XNNPACK's kernels, as an app runs it.

    Raises:
        UsageError: the runtime does not run it.
    """

    def __init__(self, file: Path | bytes, shape: list[int] | None, delegated: bool = True) -> None:
        kind = OpResolverType.AUTO if delegated else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        given = {"model_content": file} if isinstance(file, bytes) else {"model_path": str(file)}
        try:
            self.runtime = Interpreter(**given, experimental_op_resolver_type=kind)
            (self.given,) = self.runtime.get_input_details()
            if shape is not None:
                self.runtime.resize_tensor_input(self.given["index"], shape)
            self.runtime.allocate_tensors()
        except RuntimeError as error:
            raise UsageError(f"the stock runtime does not run it: {str(error).splitlines()[0]}") from None
        (self.given,) = self.runtime.get_input_details()

    def rows(self, x: np.ndarray) -> list[np.ndarray]:
        """Return for each row of `x` [N, ...] the outputs."""
        details = self.runtime.get_output_details()
        made: list[list[np.ndarray]] = [[] for _ in details]
        for row in x:
            self.runtime.set_tensor(self.given["index"], row[None])
            self.runtime.invoke()
            for found, one in zip(made, details, strict=True):
                scale, zero = one["quantization"]
                array = self.runtime.get_tensor(one["index"]).copy()
                found.append(array if not scale else np.float32(scale) * (array.astype(np.float32) - zero))
        return [np.stack(found) for found in made]


def features(path: Path, said: Mapping[str, Any], number: int, x: np.ndarray) -> np.ndarray:
    """Return what a tensor of the file holds for each row of `x`: the operators in front of it run alone."""
    file = read_file(path, said.get("signature"))
    model, graph = file.tables
    operators = [graph.Operators(operator.number) for operator in needed(file, [number])]
    made = Original(part(model, graph, operators, [number]), said.get("shapes"))
    return made.rows(x)[0]


def samples(original: Original, said: Mapping[str, Any], rows: int) -> np.ndarray:
    """Return random rows as the file takes them."""
    rng, shape, dtype = np.random.default_rng(7), original.given["shape"][1:], original.given["dtype"]
    if dtype == np.float32:
        low, high = said.get("range", (0.0, 1.0))
        return rng.uniform(low, high, (rows, *shape)).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, (rows, *shape), endpoint=True).astype(dtype)


def inferred(path: Path, said: Mapping[str, Any]) -> float:
    """Return how far `infer` of a program is from the file, as a share of each output's range; the worst output.

    The last layers train. What the interpreter's own two sets of kernels differ by is no difference. Of a file that
    computes on integers it is the share of the features in front of a fresh head that are not the file's to the bit.
    """
    if any(t.is_quantized and t.array is None for t in read_file(path, said.get("signature")).tensors):
        return _other_bits(path, said)
    original = Original(path, said.get("shapes"))
    x = samples(original, said, ROWS)
    names = read_file(path, said.get("signature")).outputs
    expected_of = original.rows(x)
    try:
        others = Original(path, said.get("shapes"), delegated=False).rows(x)
    except UsageError:  # operators that the delegate alone has
        others = expected_of
    worst = 0.0
    for name, expected, other in zip(names, expected_of, others, strict=True):
        model = tflite_frontend.Model(path, outputs=[name], **_arguments(path, said))
        batch = said.get("batch", ROWS)
        options = {"loss": "mse", "update": said.get("update", "last-2"), "optimizer": "sgd", "batch": batch}
        with pocketune.TrainingSession(pocketune.build(model, check=False, **options).data) as session:
            found = np.concatenate([session.infer(x[i : i + batch]) for i in range(0, ROWS, batch)])
        found = found.reshape(expected.shape)
        scale = original.runtime.get_output_details()[list(names).index(name)]["quantization"][0]
        off, spread = (float(np.abs(made - expected).max()) for made in (found, other))
        # Of integers the nearest is the best that there is.
        off = 0.0 if off <= max(spread, 0.51 * scale) else off
        worst = max(worst, off / max(float(np.abs(expected).max()), 1e-30))
    return worst


def _other_bits(path: Path, said: Mapping[str, Any]) -> float:
    """Return the share of the features that are not those of the file, to the bit."""
    model, batch = _with_head(path, said), said.get("batch", ROWS)
    number = model.place(read_file(path, said.get("signature"))).features
    x = samples(Original(path, said.get("shapes")), said, batch)
    expected = _up_to(path, said, number, x)
    options = {"update": "head", "optimizer": "sgd", "batch": batch, "signatures": ("train", "infer", "features")}
    program = pocketune.build(model, check=False, **options)
    (name,) = (spec.name for spec in program.manifest.signatures["features"].inputs)
    (found,) = Interpreter(model_content=program.data).get_signature_runner("features")(**{name: x}).values()
    return float((found.reshape(expected.shape) != expected).mean())


def _up_to(path: Path, said: Mapping[str, Any], number: int, x: np.ndarray) -> np.ndarray:
    """Return what the stock interpreter, on the kernels that an app has, makes of a tensor of the file, row by row."""
    file = read_file(path, said.get("signature"))
    model, graph = file.tables
    operators = [graph.Operators(operator.number) for operator in needed(file, [number])]
    runtime = Interpreter(model_content=part(model, graph, operators, [number]))
    runtime.allocate_tensors()
    (given,), (made,) = runtime.get_input_details(), runtime.get_output_details()
    found = []
    for row in x:
        runtime.set_tensor(given["index"], row[None])
        runtime.invoke()
        found.append(runtime.get_tensor(made["index"]).copy())
    return np.stack(found)


def labels(program: pocketune.Program, batch: int) -> np.ndarray:
    """Return classes of rows, the same at all places of a map or sequence."""
    places = program.manifest.signatures["infer"].outputs[0].shape[1:-1]
    y = np.arange(batch, dtype=np.int32) % CLASSES
    return np.broadcast_to(y.reshape(batch, *(1 for _ in places)), (batch, *places))


def head_learns(path: Path, said: Mapping[str, Any]) -> float:
    """Return how far losses of ten steps are from those of a head in JAX on the file's own features."""
    model, batch = _with_head(path, said), said.get("batch", ROWS)
    file = read_file(path, said.get("signature"))
    number = model.place(file).features
    x = samples(Original(path, said.get("shapes")), said, batch)
    program = pocketune.build(model, update="head", optimizer="sgd", batch=batch, check=False)
    y = labels(program, batch)
    flat = jnp.asarray(features(path, said, number, x).reshape(*y.shape, -1), jnp.float32)
    rate = float(0.5 / max(1.0, float(jnp.mean(jnp.sum(flat**2, axis=-1)))))
    with pocketune.TrainingSession(program.data) as session:
        params = {name.split("/")[-1]: jnp.asarray(array) for name, array in session.parameters().items()}
        found = [session.train(x, y, learning_rate=rate) for _ in range(STEPS)]

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        logits = flat @ params["kernel"].T + params["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(y)).mean()

    expected = []
    for _ in range(STEPS):
        value, gradient = jax.value_and_grad(loss)(params)
        expected.append(float(value))
        params = jax.tree.map(lambda p, g: p - rate * g, params, gradient)
    return float(np.abs(np.array(found) / np.array(expected) - 1).max())


def deeper_layers_learn(path: Path, said: Mapping[str, Any]) -> tuple[float, int, str]:
    """Return how far derivatives are from differences of the loss, of how many tensors, and which is the worst."""
    model, batch = _with_head(path, said), said.get("batch", ROWS)
    x = samples(Original(path, said.get("shapes")), said, batch)
    update = said.get("update", "last-2")
    program = pocketune.build(model, update=update, optimizer="sgd", batch=batch, check=False)
    y = labels(program, batch)
    rate = 2.0**12
    rng = np.random.default_rng(0)
    with pocketune.TrainingSession(program.data) as session:
        before = session.state()
        session.train(x, y, learning_rate=rate)
        gradients = {name: (before[name] - array) / rate for name, array in session.state().items()}
        names = sorted(gradients)
        if len(names) > TENSORS:
            names = [names[i] for i in np.linspace(0, len(names) - 1, TENSORS).astype(int)]

        def value(name: str, change: np.ndarray) -> float:
            session._back({**before, name: (before[name] + change).astype(np.float32)})
            return session.evaluate(x, y)["loss"]

        worst, where = 0.0, ""
        for name in names:
            gradient = gradients[name].astype(np.float64)
            length = float(np.linalg.norm(gradient))
            if length < 1e-7:
                continue
            noise = rng.standard_normal(gradient.shape)
            direction = gradient / length + 0.5 * noise / np.linalg.norm(noise)
            slope = float((gradient * direction).sum())
            errors = []
            for change in (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4):
                step = change / abs(slope)
                difference = value(name, step * direction) - value(name, -step * direction)
                errors.append(abs(difference / (2 * step) / slope - 1))
            if min(errors) > worst:
                worst, where = min(errors), name
    return worst, len(names), where


def _arguments(path: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    file = read_file(path, said.get("signature"))
    shapes = {} if said.get("shapes") is None else dict.fromkeys(file.inputs, said["shapes"])
    return {"signature": said.get("signature"), "shapes": shapes}


def _with_head(path: Path, said: Mapping[str, Any]) -> tflite_frontend.Model:
    """Return the model with five classes in the place of its last layer, else behind its first output."""
    file = read_file(path, said.get("signature"))
    model = tflite_frontend.Model(path, classes=CLASSES, cut=said.get("cut"), **_arguments(path, said))
    try:
        model.place(file)
    except UsageError:
        return replace(model, cut=next(iter(file.outputs)))
    return model


def checked(path: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all checks of a file give; what is refused is said under the name of the check."""
    found: dict[str, Any] = {}
    for name, check in (("infer", inferred), ("head", head_learns), ("deeper", deeper_layers_learn)):
        start = time.process_time()
        try:
            found[name] = check(path, said)
        except PocketuneError as error:
            try:  # a file for one row at a time
                found[name] = check(path, {**said, "batch": 1}) if "batch=1" in str(error) else str(error)
            except PocketuneError as other:
                found[name] = str(other)
        found[f"{name}_seconds"] = round(time.process_time() - start, 1)
    return found


if __name__ == "__main__":
    print(json.dumps(checked(Path(sys.argv[1]), json.loads(sys.argv[2]))))
