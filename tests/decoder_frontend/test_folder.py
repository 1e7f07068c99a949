"""Folders of transformers are the same models as their files of llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pocketune
from converter.frontends import decoder as decoder_frontend
from converter.support.errors import UsageError
from tests.decoder_frontend import reference, written
from tests.decoder_frontend.test_decoder import LENGTH, computed, in_transformers, near

IDS = np.random.default_rng(1).integers(0, 96, (1, LENGTH)).astype(np.int32)


def configuration(architecture: str, entries: dict[str, Any]) -> dict[str, Any]:
    """What `config.json` says."""
    gemma = architecture == "gemma3"
    return {
        "model_type": "gemma3_text" if gemma else architecture,
        "num_hidden_layers": entries["block_count"],
        "hidden_size": entries["embedding_length"],
        "intermediate_size": entries["feed_forward_length"],
        "num_attention_heads": entries["attention.head_count"],
        "num_key_value_heads": entries["attention.head_count_kv"],
        "max_position_embeddings": entries["context_length"],
        "rms_norm_eps": entries["attention.layer_norm_rms_epsilon"],
        "rope_theta": entries["rope.freq_base"],
        "vocab_size": 96,
        "tie_word_embeddings": False,
        **({"head_dim": entries["attention.key_length"]} if "attention.key_length" in entries else {}),
        **({"sliding_window": entries["attention.sliding_window"], "query_pre_attn_scalar": 16} if gemma else {}),
    }


def folder(path: Path, architecture: str, half: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Write a random model, in two files of weights."""
    entries = written.metadata(architecture)
    arrays = written.weights(architecture, entries)
    if half:
        arrays = {name: w.astype(ml_dtypes.bfloat16) for name, w in arrays.items()}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(configuration(architecture, entries)))
    names = sorted(arrays)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: arrays[name] for name in part}, path / f"model-{number}.safetensors")
    return entries, {name: w.astype(np.float32) for name, w in arrays.items()}


@pytest.mark.parametrize(("architecture", "half"), [("qwen2", True), ("gemma3", False)])
def test_logits_are_those_of_the_weights(architecture: str, half: bool, tmp_path: Path) -> None:
    entries, arrays = folder(tmp_path / "net", architecture, half)
    wanted = reference.logits(architecture, entries, arrays, IDS[0], np.zeros(LENGTH))
    near(computed(tmp_path / "net", IDS)[0], wanted)


def test_a_folder_builds_like_a_file(tmp_path: Path) -> None:
    folder(tmp_path / "net-0.5B", "llama")
    program = pocketune.build(tmp_path / "net-0.5B", length=8, update="lora-2:q_proj", batch=1, signatures=("train",))
    assert program.manifest.name == "net-0.5B"


def config(**options: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        said = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**said, **options}))

    return change


def weights(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Callable[[Path], None]:
    def changed(path: Path) -> None:
        save_file(change(load_file(path / "model-0.safetensors")), path / "model-0.safetensors")

    return changed


def cut_off(path: Path) -> None:
    whole = (path / "model-1.safetensors").read_bytes()
    (path / "model-1.safetensors").write_bytes(whole[:-5])


def no_weights(path: Path) -> None:
    for file in path.glob("*.safetensors"):
        file.unlink()


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "architecture": (config(model_type="mamba"), "architecture 'mamba'"),
    "no JSON": (lambda path: (path / "config.json").write_text("{"), "cannot read"),
    "no number": (config(hidden_size=None), "hidden_size is None"),
    "other size": (config(intermediate_size=65), "has the shape"),
    "layers": (config(num_hidden_layers=500), "too few for these"),
    "a billion layers": (config(num_hidden_layers=10**9), "num_hidden_layers is 1e\\+09, not a whole number"),
    "rotations": (config(rope_scaling={"rope_type": "dynamic", "factor": 4.0}), "stretched by 'dynamic'"),
    "activation": (config(hidden_act="mish"), "the activation .mish."),
    "window": (config(use_sliding_window=True), "asks for use_sliding_window True"),
    "cut off": (cut_off, "is damaged"),
    "layers without weights": (lambda path: (no_weights(path), config(num_hidden_layers=10**9)(path)), "is damaged"),
    "integers": (weights(lambda found: {n: w.astype(np.int8) for n, w in found.items()}), "is stored as I8"),
    "other tensor": (weights(lambda found: {**found, "model.visual": np.ones(2, np.float32)}), "model.visual is none"),
    "no head": (
        weights(lambda found: {n: w for n, w in found.items() if n != "lm_head.weight"}),
        "lacks lm_head.weight",
    ),
    "missing": (weights(lambda found: dict(list(found.items())[:-1])), "lacks model"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_such_model_is_refused(what: str, tmp_path: Path) -> None:
    change, said = REFUSED[what]
    folder(tmp_path / "net", "llama")
    change(tmp_path / "net")
    with pytest.raises(UsageError, match=said):
        decoder_frontend.Model(tmp_path / "net", length=8)


@pytest.mark.parametrize(
    ("architecture", "tied"),
    [("qwen2", True), *(pytest.param(a, False, marks=pytest.mark.slow) for a in written.ARCHITECTURES)],
)
def test_a_folder_without_weights_is_planned_and_not_built(tmp_path: Path, architecture: str, tied: bool) -> None:
    folder(tmp_path / "net", architecture)
    if tied:  # a head with numbers of its own would be one, whatever the configuration says
        weights(lambda found: {n: w for n, w in found.items() if n != "lm_head.weight"})(tmp_path / "net")
    config(tie_word_embeddings=tied)(tmp_path / "net")
    asked: dict[str, Any] = {"length": 8, "batch": 1, "signatures": ("train",)}
    whole = pocketune.compare_schemes(tmp_path / "net", ["lora-2:q_proj"], **asked)
    no_weights(tmp_path / "net")
    assert pocketune.compare_schemes(tmp_path / "net", ["lora-2:q_proj"], **asked) == whole
    with pytest.raises(UsageError, match="has no weights"):
        pocketune.build(tmp_path / "net", update="lora-2:q_proj", **asked)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", written.ARCHITECTURES)
def test_what_transformers_saves_is_read(architecture: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    net = in_transformers(transformers, architecture, written.metadata(architecture), 96).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    net.save_pretrained(tmp_path / "net")
    with torch.no_grad():
        near(computed(tmp_path / "net", IDS), net(torch.from_numpy(IDS).long()).logits.numpy())
