"""Configurations and checkpoints that are damaged, lack what they ask for or ask for more are refused by a sentence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from converter.frontends import decoder as decoder_frontend
from converter.support.errors import UsageError
from tests.decoder_frontend import converted, nets, oracle

TOLD: dict[str, Any] = json.loads(str(np.load(oracle.RECORDED)["told"]))


def opened(path: Path, name: str, left_out: str = "", added: str = "", **other: Any) -> decoder_frontend.Model:
    """The folder of a recorded net with another configuration, without a tensor, or with one more."""
    told = TOLD[name]
    arrays = nets.weights(told["config"], told["shapes"])
    arrays = {n: a for n, a in arrays.items() if not left_out or left_out not in n}
    arrays |= {added: np.ones(3, np.float32)} if added else {}
    nets.write_folder(path, told["config"] | other, arrays)
    return decoder_frontend.Model(path, length=8)


def refusal(path: Path, *args: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as refused:
        opened(path, *args, **options)
    assert "bug" not in str(refused.value)
    return str(refused.value)


DAMAGED: list[tuple[str, dict[str, Any], str]] = [
    ("llama_0", {"num_attention_heads": 3, "num_key_value_heads": 2, "hidden_size": 48}, "no groups for 2 heads"),
    ("qwen3_0", {"head_dim": 15}, "heads of 15 numbers"),
    ("qwen3_0", {"head_dim": 1 << 40}, "head_dim is"),
    ("llama_0", {"hidden_size": 33, "head_dim": None}, "no multiple of num_attention_heads"),
    ("llama_0", {"rope_parameters": [1], "rope_scaling": None}, "rope_parameters is [1], not an object"),
    ("llama_0", {"rope_scaling": "linear"}, "rope_scaling is 'linear', not an object"),
    ("llama_0", {"rope_scaling": {"rope_type": "linear"}}, "factor is None"),
    ("llama_0", {"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor is '2'"),
    ("llama_0", {"rope_scaling": {"rope_type": "linear", "factor": float("inf")}}, "cannot read"),
    ("qwen2_0", {"layer_types": 5}, "layer_types is no list"),
    ("qwen2_0", {"layer_types": ["full_attention"] * 5}, "layer_types is no list of a word for each"),
    ("qwen2_0", {"layer_types": [1]}, "layer_types is no list"),
    ("qwen2_0", {"max_window_layers": "two", "use_sliding_window": True}, "max_window_layers is 'two'"),
    ("gemma2_0", {"sliding_window": None, "layer_types": None}, "sliding_window is null"),
    ("gemma3_text_0", {"rope_parameters": {"full_attention": [1], "sliding_attention": {}}}, "is damaged"),
    ("gemma3_text_0", {"rope_parameters": {"full_attention": {}, "sliding_attention": "x"}}, "is damaged"),
    ("gemma3_text_0", {"sliding_window": -3}, "sliding_window is -3"),
    ("smollm3_0", {"no_rope_layers": [2]}, "no_rope_layers is no list"),
    ("phi3_0", {"partial_rotary_factor": 3.0}, "numbers of a head rotate"),
    ("phi3_0", {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "not a list of"),
    ("llama_0", {"tie_word_embeddings": "yes"}, "neither true nor false"),
    ("llama_0", {"rms_norm_eps": True}, "rms_norm_eps is True"),
    ("llama_0", {"num_hidden_layers": 2.5}, "not a whole number"),
    ("llama_0", {"hidden_size": [48]}, "hidden_size is [48]"),
    ("llama_0", {"hidden_act": ["silu"]}, "the activation ['silu']"),
]


@pytest.mark.parametrize(("name", "other", "said"), DAMAGED)
def test_damaged_configurations_are_named(name: str, other: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path / "net", name, **other)


def test_any_value_of_any_key_is_read_or_refused(tmp_path: Path) -> None:
    strange: tuple[Any, ...] = (None, True, -1, 0, 0.5, 1 << 70, "x", [], [1], {}, {"a": [1]}, ["full_attention"])
    for name in ("llama_0", "phi3_1", "gemma3_text_0", "smollm3_1", "granite_0", "qwen2_1"):
        config = TOLD[name]["config"]
        folder = tmp_path / name
        opened(folder, name)
        for key in [*config, "rope_parameters", "rope_scaling", "layer_types", "sliding_window", "text_config"]:
            for value in strange:
                (folder / "config.json").write_text(json.dumps(config | {key: value}))
                with contextlib.suppress(UsageError):
                    decoder_frontend.Model(folder, length=8)


ASKED_FOR: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3_text_0", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
    ("gemma3_text_0", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping 30"),
    ("gemma_0", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
    ("llama_0", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping 30"),
    ("llama_0", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ("llama_0", {"sliding_window": 8}, "sliding_window 8"),
    ("llama_0", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ("llama_0", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "stretched by 'dynamic'"),
    ("llama_0", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "warp": 3}}, "the entry warp = 3"),
    ("qwen2_0", {"layer_types": ["chunked_attention"]}, "layers of chunked_attention"),
    ("qwen2_0", {"key_that_nobody_knows": 3}, "the entry key_that_nobody_knows = 3, which is not known here"),
    ("gemma3_text_0", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "without a rope_type"),
    ("llama_0", {"hidden_act": "mish"}, "the activation 'mish'"),
]


@pytest.mark.parametrize(("name", "other", "said"), ASKED_FOR)
def test_what_is_not_computed_is_named(name: str, other: dict[str, Any], said: str, tmp_path: Path) -> None:
    if "layer_types" in other:
        other = {"layer_types": other["layer_types"] * TOLD[name]["config"]["num_hidden_layers"]}
    assert said in refusal(tmp_path / "net", name, **other)


def test_what_says_nothing_is_passed_over_and_dropout_is_noted(tmp_path: Path) -> None:
    harmless = {"pretraining_tp": 2, "torch_dtype": "bfloat16", "is_causal": True, "made_up": None, "top_p": 0.9}
    assert opened(tmp_path / "net", "llama_0", **harmless).opened.notes == ()
    (note,) = opened(tmp_path / "other", "llama_0", attention_dropout=0.1).opened.notes
    assert (note.subject, note.status) == ("attention_dropout", "left out")


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("qwen2_0", "k_proj.bias"),
        ("qwen2_0", "layers.0.self_attn.q_proj.bias"),
        ("llama_0", "o_proj.bias"),
        ("llama_0", "down_proj.bias"),
        ("qwen3_0", "q_norm"),
        ("olmo2_0", "post_feedforward_layernorm"),
        ("gemma2_0", "pre_feedforward_layernorm"),
        ("phi3_0", "qkv_proj"),
    ],
)
def test_what_the_configuration_asks_for_is_in_the_folder(name: str, left_out: str, tmp_path: Path) -> None:
    config = TOLD[name]["config"] | ({"attention_bias": True, "mlp_bias": True} if name == "llama_0" else {})
    found = decoder_frontend.names.shapes_of(_of(config, tmp_path / "shapes"))
    arrays = {n: a for n, a in nets.weights(config, found).items() if left_out not in n}
    assert len(arrays) < len(found)
    nets.write_folder(tmp_path / "net", config, arrays)
    with pytest.raises(UsageError, match=rf"lacks model\.layers\.0\..*{left_out.rpartition('.')[2]}"):
        decoder_frontend.Model(tmp_path / "net", length=8)


def _of(config: Mapping[str, Any], path: Path) -> Any:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return decoder_frontend.Model(path, length=8).configuration


def test_a_head_of_its_own_is_asked_for_and_strange_tensors_are_refused(tmp_path: Path) -> None:
    name = next(n for n, told in TOLD.items() if not told["config"].get("tie_word_embeddings", True))
    assert "lacks lm_head.weight" in refusal(tmp_path / "net", name, "lm_head")
    for strange in ("model.layers.0.self_attn.sinks", "score.weight", "model.layers.0.mlp.gate_proj.scale"):
        assert f"the tensor {strange} is none" in refusal(tmp_path / strange, "qwen2_0", added=strange)
    biased = "model.layers.0.mlp.gate_proj.bias"
    assert f"the tensor {biased} is none" in refusal(tmp_path / biased, "qwen2_0", added=biased)
    opened(tmp_path / "older", "qwen2_0", added="model.layers.0.self_attn.rotary_emb.inv_freq")


def test_a_tied_head_is_what_the_checkpoint_has(tmp_path: Path) -> None:
    """transformers ties what is equal, or there once; a head with other numbers is one of its own."""
    name = next(n for n, told in TOLD.items() if told["config"].get("tie_word_embeddings") and n.startswith("llama"))
    arrays = nets.weights(TOLD[name]["config"], TOLD[name]["shapes"])
    table = arrays["model.embed_tokens.weight"]
    for heads, tied in (({"lm_head.weight": table}, True), ({"lm_head.weight": 2 * table}, False)):
        nets.write_folder(tmp_path / "net", TOLD[name]["config"], arrays | heads)
        assert decoder_frontend.Model(tmp_path / "net", length=8).configuration.tied == tied
    del arrays["model.embed_tokens.weight"]
    nets.write_folder(tmp_path / "net", TOLD[name]["config"], arrays | {"lm_head.weight": table})
    found = decoder_frontend.Model(tmp_path / "net", length=8).parameters()
    np.testing.assert_array_equal(np.asarray(found["model.embed_tokens.weight"]), table)


def in_file(path: Path, name: str, left_out: str = "", **entries: Any) -> decoder_frontend.Model:
    """The file of a recorded net without some tensors, or with other entries."""
    told = TOLD[name]
    arrays = nets.weights(told["config"], told["shapes"])
    add = gguf.GGUFWriter.write_header_to_file

    def with_entries(writer: Any, *args: Any) -> None:
        for key, value in entries.items():
            for part in writer.kv_data:
                part.pop(key, None)
            kind = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}[type(value)]
            getattr(writer, f"add_{kind}")(key, value)
        add(writer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", with_entries)
        converted.write(path, told["config"], {n: a for n, a in arrays.items() if not left_out or left_out not in n})
    return decoder_frontend.Model(path, length=8)


#: A net of each that the converter knows.
FILES = {n.rpartition("_")[0]: n for n, told in TOLD.items() if not converted.cannot(told["config"])}


@pytest.mark.parametrize(
    ("kind", "entries", "said"),
    [
        ("gemma3_text", {"gemma3.attention.causal": False}, "gemma3.attention.causal False"),
        ("llama", {"llama.attention.head_count_kv": 7}, "are no groups for 7 heads"),
        ("qwen3", {"qwen3.attention.key_length": 15}, "heads of 15 numbers"),
        ("llama", {"llama.rope.scaling.attn_factor": 1.2}, "rope.scaling.attn_factor 1.2"),
        ("llama", {"llama.rope.scaling.yarn_attn_factor": 1.2}, "yarn_attn_factor"),
        ("llama", {"llama.rope.freq_base": "x"}, "rope.freq_base is 'x'"),
        ("olmo2", {"olmo2.attention.made_up": 3}, "the entry olmo2.attention.made_up = 3"),
        (
            "qwen2",
            {"qwen2.attention.sliding_window_pattern": [True] * 9, "qwen2.attention.sliding_window": 3},
            "no list",
        ),
        ("qwen2", {"qwen2.rope.freq_base_swa": 9.0, "qwen2.attention.sliding_window": 3}, "a sliding window of layers"),
        ("qwen2", {"general.type": "adapter"}, "is an adapter for a model of qwen2"),
        ("qwen2", {"general.type": "mmproj"}, "without its language model"),
        ("qwen2", {"split.count": 2}, "is one of 2 parts"),
    ],
)
def test_entries_of_a_file_are_read_or_refused(kind: str, entries: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        in_file(tmp_path / "net.gguf", FILES[kind], **entries)
    assert said in str(refused.value)


def test_entries_of_a_file_that_others_write_are_computed(tmp_path: Path) -> None:
    def of(kind: str, **entries: Any) -> Any:
        return in_file(tmp_path / "net.gguf", FILES[kind], **entries).configuration

    plain = of("qwen2", **{"qwen2.rope.scaling.type": "none"}).ropes[0]
    for entries in ({"rope.scale_linear": 4.0}, {"rope.scaling.factor": 4.0}):
        halved = of("qwen2", **{f"qwen2.{key}": value for key, value in entries.items()}).ropes[0]
        assert halved.frequencies != plain.frequencies
    assert of("qwen2", **{"qwen2.attention.scale": 0.25}).scales.scores == 4.0
    layers = TOLD[FILES["gemma3_text"]]["config"]["num_hidden_layers"]
    windows = of("gemma3_text", **{"gemma3.attention.sliding_window_pattern": [False] * layers}).windows
    assert windows == (None,) * layers
    assert of("gemma3_text", **{"gemma3.attention.sliding_window_pattern": 1}).windows == (None,) * layers


@pytest.mark.parametrize("left_out", ["layers.0.self_attn.k_proj.bias", "k_proj.bias", "q_proj.weight", "model.norm"])
def test_what_a_file_has_in_part_is_missing(left_out: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lacks model"):
        in_file(tmp_path / "net.gguf", FILES["qwen2"], left_out)
