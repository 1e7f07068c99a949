"""Decoders of GGUF files compute what their architectures say."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind

import pocketune
from converter.frontends import decoder as decoder_frontend
from converter.support.errors import UsageError
from tests.decoder_frontend import reference, written

LENGTH = 12


def computed(path: Path, ids: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Logits of the decoder in JAX."""
    model = decoder_frontend.Model(path, length=ids.shape[1], packed=bool(others)).jax_model()
    return np.asarray(jax.jit(model.apply)({name: np.asarray(w) for name, w in model.params.items()}, ids, *others))


def near(got: np.ndarray, wanted: np.ndarray, share: float = 1e-5) -> None:
    assert np.abs(got - wanted).max() <= share * np.ptp(wanted)


@pytest.mark.parametrize("architecture", written.ARCHITECTURES)
def test_logits_are_those_of_the_architecture(architecture: str, tmp_path: Path) -> None:
    entries = written.metadata(architecture)
    tied = architecture != "qwen2"
    arrays = written.write(
        tmp_path / "net.gguf", architecture, entries, written.weights(architecture, entries, 96, tied)
    )
    ids = np.random.default_rng(1).integers(0, 96, (2, LENGTH)).astype(np.int32)
    texts = np.array([[0] * 4 + [1] * 8, [0] * LENGTH], np.int32)
    got = computed(tmp_path / "net.gguf", ids, texts)
    near(got, np.array([reference.logits(architecture, entries, arrays, *row) for row in zip(ids, texts, strict=True)]))
    alone = computed(tmp_path / "net.gguf", ids[1:])
    near(alone, got[1:], 1e-6)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q5_1])
def test_weights_are_what_the_file_says(kind: Kind, tmp_path: Path) -> None:
    arrays = written.write(tmp_path / "net.gguf", "llama", kind=kind)
    found = decoder_frontend.Model(tmp_path / "net.gguf", length=8).parameters()
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        whole = np.asarray(found[name])
        assert whole.shape == array.shape
        close = {Kind.F16: 1e-3, Kind.BF16: 8e-3, Kind.Q8_0: 1e-2}.get(kind, 0.15)
        assert np.abs(whole - array).max() <= close * np.abs(array).max()
        np.testing.assert_array_equal(found[name].rows(3, 7), whole[3:7])


@pytest.mark.quick
@pytest.mark.parametrize(("kind", "bits"), [(Kind.Q4_0, "int4"), (Kind.Q8_0, "int8")])
def test_integers_of_a_file_are_not_rounded_again(kind: Kind, bits: str, tmp_path: Path) -> None:
    """Llama's have rows in another order than the file; the numbers are those that the library `gguf` makes of it."""
    entries = written.metadata("llama", embedding_length=64, feed_forward_length=128)
    arrays = written.write(tmp_path / "net.gguf", "llama", entries, kind=kind)
    options = {"length": LENGTH, "batch": 1, "update": "lora-2:all-linear", "optimizer": "adam"}
    program = pocketune.build(tmp_path / "net.gguf", frozen="int4-blockwise", **options)
    contracted = [layer for layer in program.quantization.layers if layer.why != "small"]
    assert len(contracted) == 12
    assert {layer.form for layer in contracted} == {f"{bits}-blockwise"}
    ids = np.random.default_rng(1).integers(0, 96, (1, LENGTH)).astype(np.int32)
    weights = {name: np.asarray(w) for name, w in decoder_frontend.Model(tmp_path / "net.gguf").parameters().items()}
    assert any((weights[name] != array).any() for name, array in arrays.items())
    with pocketune.TrainingSession(program.data) as session:
        near(session.infer(ids)[0], reference.logits("llama", entries, weights, ids[0], np.zeros(LENGTH)))


def test_a_path_builds_like_a_file_of_an_app(tmp_path: Path) -> None:
    entries = written.metadata("qwen2")
    arrays = written.write(tmp_path / "net.gguf", "qwen2", entries)
    program = pocketune.build(
        tmp_path / "net.gguf", length=LENGTH, update={"*q_proj.weight": pocketune.LoRA(2, 4)}, optimizer="adam", batch=2
    )
    assert program.manifest.losses == {"y": "next_token"}
    ids = np.random.default_rng(1).integers(0, 96, (2, LENGTH)).astype(np.int32)
    with pocketune.TrainingSession(program.data) as session:
        first = session.infer(ids)
        wanted = np.array([reference.logits("qwen2", entries, arrays, row, np.zeros(LENGTH)) for row in ids])
        near(first, wanted)
        y = np.where(np.arange(LENGTH) < 6, -1, np.roll(ids, -1, 1)).astype(np.int32)
        losses = [session.train(ids, y, 0.01) for _ in range(5)]
    shares = np.log(np.exp(wanted).sum(-1)) - np.take_along_axis(wanted, np.maximum(y, 0)[..., None], -1)[..., 0]
    assert losses[0] == pytest.approx(shares[:, 6:].mean(), rel=1e-5)
    assert losses[-1] < losses[0]


def test_length_is_of_language_models(tmp_path: Path) -> None:
    written.write(tmp_path / "net.gguf")
    with pytest.raises(UsageError, match="from 1 to the 64"):
        pocketune.build(tmp_path / "net.gguf", length=65)
    model = pocketune.Model(lambda params, x: x @ params, np.eye(3, dtype=np.float32), [np.zeros((1, 3), np.float32)])
    with pytest.raises(UsageError, match="tokens in a row of a"):
        pocketune.build(model, length=8, loss="mse")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", written.ARCHITECTURES)
def test_logits_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    entries = written.metadata(architecture)
    arrays = written.write(tmp_path / "net.gguf", architecture, entries)
    net = in_transformers(transformers, architecture, entries, 96)
    net.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, strict=True)
    ids = np.random.default_rng(1).integers(0, 96, (2, LENGTH)).astype(np.int32)
    with torch.no_grad():
        wanted = net.eval()(torch.from_numpy(ids).long()).logits.numpy()
    near(computed(tmp_path / "net.gguf", ids), wanted)


def in_transformers(transformers, architecture, entries, rows):
    """The net of a configuration."""
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3"}[architecture]
    text = "Text" if architecture == "gemma3" else ""
    options = {
        "vocab_size": rows,
        "hidden_size": entries["embedding_length"],
        "intermediate_size": entries["feed_forward_length"],
        "num_hidden_layers": entries["block_count"],
        "num_attention_heads": entries["attention.head_count"],
        "num_key_value_heads": entries["attention.head_count_kv"],
        "rms_norm_eps": entries["attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": entries["context_length"],
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    if "attention.key_length" in entries:
        options["head_dim"] = entries["attention.key_length"]
    rope = {"rope_type": "default", "rope_theta": entries["rope.freq_base"]}
    if architecture == "gemma3":
        local = {"rope_type": "default", "rope_theta": 10_000.0}
        options |= {
            "sliding_window": entries["attention.sliding_window"],
            "query_pre_attn_scalar": entries["attention.key_length"],
            "rope_parameters": {"full_attention": rope, "sliding_attention": local},
        }
    else:
        options["rope_parameters"] = rope
    configuration = getattr(transformers, f"{kind}{text}Config")(**options)
    return getattr(transformers, f"{kind}ForCausalLM")(configuration)
