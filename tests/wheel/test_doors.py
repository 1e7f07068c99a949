"""A model of each door is built and trained by the installed wheel, in processes that know no clone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoder_frontend.written import write_small_model
from tests.installed import Installed

#: What each door begins with.
_BEGIN = """
import pathlib
import numpy as np, pocketune

def learns(program, x, y, rate=0.05):
    with pocketune.TrainingSession(program.data) as session:
        losses = [float(session.train(x, y, rate)) for _ in range(6)]
        pathlib.Path("mine.state").unlink(missing_ok=True)
        session.save("mine.state")
    assert losses[-1] < losses[0], losses
    program.export_inference("plain.tflite", "mine.state")

rng = np.random.default_rng(0)
x, y = rng.normal(size=(4, 6)).astype("float32"), np.array([0, 1, 2, 0], "int32")
"""
_FOLDER = """
import json
from safetensors.numpy import save_file
pathlib.Path("folder").mkdir()
pathlib.Path("folder/config.json").write_text(json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 1, "vocab_size": 96,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 64, "hidden_act": "silu",
    "tie_word_embeddings": True,
}))
sizes = {
    "embed_tokens": (96, 16), "norm": (16,), "layers.0.input_layernorm": (16,),
    "layers.0.post_attention_layernorm": (16,), "layers.0.self_attn.q_proj": (16, 16),
    "layers.0.self_attn.k_proj": (8, 16), "layers.0.self_attn.v_proj": (8, 16), "layers.0.self_attn.o_proj": (16, 16),
    "layers.0.mlp.gate_proj": (32, 16), "layers.0.mlp.up_proj": (32, 16), "layers.0.mlp.down_proj": (16, 32),
}
save_file({f"model.{n}.weight": rng.normal(size=s).astype("float32") for n, s in sizes.items()},
          "folder/model.safetensors")
"""
_TOKENS = """
tokens = rng.integers(0, 90, (1, 8)).astype("int32")
labels = np.roll(tokens, -1, 1)
"""

DOORS = {
    "Keras": """
import os, sys
sys.modules["tensorflow"] = None  # as where the extra `keras` alone is installed
os.environ["KERAS_BACKEND"] = "jax"
import keras
net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
learns(pocketune.build(net, batch=4), x, y)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
learns(pocketune.build(net, batch=4, loss=loss, optimizer="adam"), x, y)
net.save("net.keras")
learns(pocketune.build("net.keras", batch=4), x, y)
deep = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(3)])
heads = pocketune.build_heads({"one": deep, "other": deep}, batch=4, update="head", loss=loss)
assert pocketune.TrainingSession(heads.data, head="other").infer(x).shape == (len(x), 3)
""",
    "JAX and Flax": """
import jax
from flax import linen, nnx
import jax.numpy as jnp
params = {"w": np.zeros((6, 3), "float32"), "b": np.zeros(3, "float32")}
shape = [jax.ShapeDtypeStruct((1, 6), "float32")]
loss = "sparse_categorical_crossentropy"
model = pocketune.Model(lambda p, x: x @ p["w"] + p["b"], params, inputs=shape)
learns(pocketune.build(model, loss=loss, batch=4), x, y)
def own(outputs, y):
    return -jnp.sum(jax.nn.log_softmax(outputs) * y, -1)
rows = np.eye(3, dtype="float32")[y]
learns(pocketune.build(model, loss=own, batch=4), x, rows)
learns(pocketune.build(nnx.Linear(6, 3, rngs=nnx.Rngs(0)), inputs=shape, loss=loss, batch=4), x, y)
dense = linen.Dense(3)
model = pocketune.Model(dense.apply, dense.init(jax.random.key(0), x), inputs=shape)
learns(pocketune.build(model, loss=loss, batch=4), x, y)
call = pocketune.function(jnp.tanh, x)
np.testing.assert_allclose(call.run(x)[0], np.tanh(x), rtol=1e-5)
""",
    "PyTorch": """
import torch
net = torch.nn.Linear(6, 3)
rows = torch.from_numpy(x)
learns(pocketune.build(net, inputs=(rows,), loss=torch.nn.CrossEntropyLoss(), batch=4), x, y)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
learns(pocketune.build(net, inputs=(rows,), loss=torch.nn.functional.cross_entropy, optimizer=optimizer, batch=4), x, y)
exported = torch.export.export(net, (rows,))
torch.export.save(exported, "net.pt2")
for model in (pocketune.TorchModel(net, (rows,)), exported, "net.pt2"):
    learns(pocketune.build(model, loss="sparse_categorical_crossentropy", batch=4), x, y)
""",
    "files": _FOLDER
    + _TOKENS
    + """
import jax, jax.numpy as jnp
params = {"a": {"w": rng.normal(size=(6, 8)).astype("float32")}, "b": {"w": rng.normal(size=(8, 4)).astype("float32")}}
apply = lambda p, x: jax.nn.softmax(jnp.tanh(x @ p["a"]["w"]) @ p["b"]["w"])
shape = [jax.ShapeDtypeStruct((1, 6), "float32")]
pocketune.build(pocketune.Model(apply, params, inputs=shape), batch=4).export_inference("net.tflite")
learns(pocketune.build("net.tflite", classes=3, batch=4), x, y)
learns(pocketune.build(pocketune.TFLiteModel("net.tflite", classes=3), update="head", batch=4), x, y)
for path in ("small.gguf", "folder"):
    learns(pocketune.build(path, length=8, batch=1, update="lora-4"), tokens, labels, 0.01)
model = pocketune.LanguageModel("small.gguf", length=8)
learns(pocketune.build(model, batch=1, update="lora-4"), tokens, labels, 0.01)
told = pocketune.Tokenizer("small.gguf").conversation([
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
assert pocketune.runtime.rows_of_texts([told.ids], 16, answers=[told.answers])[0].shape == (1, 16)
""",
}


@pytest.mark.quick
@pytest.mark.parametrize("door", DOORS)
def test_a_door_builds_and_trains(door: str, installed: Installed, tmp_path: Path) -> None:
    for library in {"PyTorch": ["torch"], "files": ["gguf", "safetensors", "tokenizers"]}.get(door, []):
        pytest.importorskip(library)
    if door == "files":
        write_small_model(tmp_path / "small.gguf")
    (tmp_path / "door.py").write_text(_BEGIN + DOORS[door])
    done = installed.ran(installed.python, "door.py", at=tmp_path)
    assert "triton" not in done.stderr  # torch's own advice, while it exports
