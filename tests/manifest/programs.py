"""Programs of all kinds, of which the good manifests are: what a manifest can say, one of them says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import optax

import converter
from converter.driver.assemble import Program
from converter.training.losses import named_loss
from jax_frontend import Model
from tests.decoder_frontend import written

BATCH, INPUTS, HIDDEN, CLASSES = 4, 6, 5, 3
ON_FEATURES = ("features", "train_features", "evaluate_features", "infer_features")


def _weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) / 2 for shape in shapes]


def _net(params: dict[str, Any], x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params["first"]["w"] + params["first"]["b"]) @ params["head"]["w"] + params["head"]["b"]


def _model(apply: Callable[..., Any] = _net, inputs: int = 1) -> Model:
    first, bias, head, shift = _weights((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
    params = {"first": {"w": first, "b": bias}, "head": {"w": head, "b": shift}}
    return Model(apply, params, [jax.ShapeDtypeStruct((1, INPUTS), "float32")] * inputs)


def _two(params: dict[str, Any], x: jax.Array) -> dict[str, jax.Array]:
    both = _net(params, x)
    return {"kind": both, "size": both[:, :2]}


def _three(params: dict[str, Any], a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, ...]:
    return _net(params, a), _net(params, b), _net(params, c)


def _mixing(params: dict[str, Any], x: jax.Array) -> jax.Array:
    outputs = _net(params, x)
    return outputs - outputs.mean(0)


def _noisy(x: jax.Array, key: jax.Array) -> jax.Array:
    return x + 0.1 * jax.random.uniform(key, x.shape)


def _conv() -> Model:
    def apply(params: list[Any], x: jax.Array) -> jax.Array:
        for kernel in params[:2]:
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x)
        return x.mean((1, 2)) @ params[2]

    params = _weights((3, 3, 3, 8), (3, 3, 8, 8), (8, CLASSES))
    return Model(apply, params, [jax.ShapeDtypeStruct((1, 8, 8, 3), "float32")])


def _tokens() -> Model:
    def apply(params: list[Any], x: jax.Array) -> jax.Array:
        return params[0][x] @ params[1]

    return Model(apply, _weights((7, 4), (4, 7)), [jax.ShapeDtypeStruct((1, 5), "int32")])


def _build(model: Model | None = None, **options: Any) -> Callable[[], Program]:
    return lambda: converter.build(model or _model(), **{"batch": BATCH, "check": False, **options})


def _language_model(**options: Any) -> Program:
    with TemporaryDirectory() as folder:
        entries = written.metadata("llama", block_count=1, context_length=4)
        written.write(Path(folder) / "net.gguf", "llama", entries)
        options = {"signatures": ("train", "generate"), **options}
        return converter.build(Path(folder) / "net.gguf", update="lora-1:q_proj", batch=1, check=False, **options)


_PREPARED = {
    "labels": ("a", "b", "c"),
    "preprocessing": {"mean": 0.5, "by": [1, {"deep": None}], "wörter": 'é"\\\n'},
    "card": {"license": "Apache-2.0", "wörter": 'é"\\\n'},
}
_CHOSEN = {"first/w": converter.Channels(0.5), "first/b": 1, "head/*": 1}
_JOINT = {"loss": {"kind": "sparse_categorical_crossentropy", "size": "mse"}}

#: A program by the name of its vector.
PROGRAMS: dict[str, Callable[[], Program]] = {
    "variables": _build(),
    "stateless": _build(optimizer="adam", state="stateless"),
    "split": _build(optimizer="adam", state="split", loss_scale=1024.0),
    "split-counts-its-calls": _build(state="split", micro_batch=2, augment=_noisy),
    "micro-batches": _build(optimizer="momentum", micro_batch=2),
    "micro-batches-stateless": _build(state="stateless", micro_batch=1),
    "other-numbers-of-rows": _build(signatures=("train", "infer", "infer_1", "infer_9")),
    "trains-only": _build(signatures=("train",)),
    "prepared": _build(**_PREPARED),
    "part-of-a-weight": _build(update={"first/w": 0.4, "head/*": 1}),
    "adapters": _build(update="lora-1"),
    "chosen-channels": _build(update=_CHOSEN, signatures=("train", "infer", "fisher")),
    "redrawn-channels": _build(
        update={**_CHOSEN, "first/w": converter.Channels(0.5, redrawn=True)},
        optimizer="adam",
        state="stateless",
        micro_batch=2,
        signatures=("train", "infer", "fisher"),
    ),
    "features": _build(update="head", signatures=("train", "features", "infer")),
    "features-stateless": _build(
        update="head", state="stateless", micro_batch=2, signatures=("train", "features", "infer")
    ),
    "frozen-layers-once": _build(update="head", signatures=ON_FEATURES),
    "frozen-layers-once-stateless": _build(update="head", state="stateless", micro_batch=2, signatures=ON_FEATURES),
    "features-in-integers": _build(
        _conv(),
        update="head",
        frozen="int8",
        calibration=np.random.default_rng(0).random((16, 8, 8, 3), np.float32),
        signatures=("train", "features", "infer"),
    ),
    "later-classes": _build(
        update="head", head="class_means", classes="3+3", optimizer="adam", signatures=("train", "infer")
    ),
    "state-in-int8": _build(train_as="int8"),
    "rate-in-the-program": _build(optimizer=optax.sgd(optax.linear_schedule(0.1, 0.0, 9))),
    "two-losses": _build(_model(_two), **_JOINT),
    "named-target": _build(
        _model(_two), loss={"kind": "sparse_categorical_crossentropy"}, signatures=("train", "evaluate", "infer")
    ),
    "no-target": _build(_model(_three, inputs=3), loss="triplet"),
    "two-targets": _build(loss=named_loss("distillation", alpha=0.5)),
    "masked-labels": _build(_tokens(), loss=named_loss("next_token", ignore=3)),
    "rows-that-mix": _build(_model(_mixing)),
    "probabilities": _build(loss="binary_crossentropy"),
    "signs": _build(loss="hinge"),
    "amounts": _build(loss="poisson"),
    "generates": _language_model,
    "several-lengths": lambda: _language_model(length=(2, 4), signatures=("train", "evaluate", "infer")),
}
