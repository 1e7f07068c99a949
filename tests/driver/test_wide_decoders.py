"""Decoders as wide as real ones, built block by block, against JAX in float64 on the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.backend.schedule import outline
from converter.program.flatbuffer import schema
from converter.runtime import TrainingSession
from examples import llama
from tests.backend.schedule.process import grown_by_training

TOKENS, WORDS, RANK, STEPS = 32, 1024, 8, 4
SHAPES: dict[str, dict[str, int]] = {
    "qwen2.5-0.5b": {"layers": 2, "width": 896, "heads": 14, "key_heads": 2, "hidden": 4864},
    "llama2-7b": {"layers": 1, "width": 4096, "heads": 32, "key_heads": 32, "hidden": 11_008},
}


def decoder(shape: str) -> jax_frontend.Model:
    """A decoder whose matrices are integers of -7..7 times a power of two, so that int4 holds all of each."""
    rng = np.random.default_rng(0)

    def filled(w: Any) -> Any:
        if not isinstance(w, jax.ShapeDtypeStruct):
            return w
        scale = np.float32(2.0 ** np.round(np.log2(0.23 / np.sqrt(min(w.shape)))))
        return rng.integers(-7, 8, w.shape, np.int8) * scale

    model = llama.build(**SHAPES[shape], length=TOKENS, vocabulary=WORDS, seed=None)
    return jax_frontend.Model(model.apply, jax.tree.map(filled, model.params), model.inputs, model.layers)


def adapted(params: Any, adapters: Mapping[str, Any]) -> Any:
    """The weights with the products of the adapters added to them; alpha is twice the rank."""

    def whole(path: Any, w: Any) -> Any:
        name = "/".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)
        if f"{name}/lora_a" not in adapters:
            return w
        a, b = (adapters[f"{name}/lora_{side}"] for side in "ab")
        return w + 2 * a.reshape(len(w), RANK) @ b.reshape(RANK, -1)

    return jax.tree_util.tree_map_with_path(whole, params)


def in_float64(model: Any, start: Mapping[str, np.ndarray], rule: Any, batches: Any) -> tuple[list[float], Any]:
    """The losses of the steps, and the adapters behind them."""
    with jax.enable_x64(True):
        params = jax.tree.map(lambda w: jnp.asarray(w, jnp.float64), model.params)
        now: Any = {name: jnp.asarray(array, jnp.float64) for name, array in start.items()}
        state, losses = rule.init(now), []

        @jax.jit
        def loss(now: Any, params: Any, x: Any, y: Any) -> Any:
            logits = model.apply(adapted(params, now), x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        for x, y in batches:
            value, gradients = jax.value_and_grad(loss)(now, params, x, y)
            changes, state = rule.update(gradients, state, now)
            now = optax.apply_updates(now, changes)
            losses.append(float(value))
        return losses, jax.tree.map(np.asarray, now)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_adapters_change_as_in_float64(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the memory that is foreseen, with a row of subgraphs and matrices behind the flatbuffer, as of all layers."""
    monkeypatch.setattr(outline, "LONGEST", 100)
    monkeypatch.setattr(sys.modules["converter.backend.schedule.resident"], "TABLE", 1e4)
    monkeypatch.setattr(schema, "LARGEST_FLATBUFFER", 1 << 20)
    model, rule, lora = decoder(shape), optax.sgd(0.05), converter.LoRA(RANK, alpha=2 * RANK)
    program = converter.build(
        model,
        loss="next_token",
        batch=1,
        optimizer=rule,
        update={"*": 0, "layers/*/attention/*": lora, "layers/*/ffn/*": lora},
        frozen="int4",
        blocks="on",
        signatures=("train",),
        check=False,
    )
    assert sum(node.op.code == "WHILE" for node in program.signatures["train"].nodes) > 2
    program.write(tmp_path / "decoder.tflite")
    foreseen = program.costs["resident_bytes"] - program.costs["mapped_bytes"]
    assert grown_by_training(tmp_path / "decoder.tflite", 1).peak < 1.1 * foreseen
    batches = [llama.sample_batch(1, i, TOKENS, WORDS) for i in range(STEPS)]
    with TrainingSession(program.data) as session:
        start = {name: np.array(w) for name, w in session.parameters().items() if "/lora_" in name}
        losses = [session.train(*batch) for batch in batches]
        suffix = {name: np.array(session.parameters()[name], np.float64) for name in start}
    expected, adapters = in_float64(model, start, rule, batches)
    assert losses == pytest.approx(expected, abs=2e-5)
    for name, before in start.items():
        change = adapters[name] - before
        assert np.linalg.norm(suffix[name] - before - change) < 1e-3 * np.linalg.norm(change), name
