"""Every architecture computes what `transformers` computes, from a folder and from a file of llama.cpp's converter.

What is compared with was recorded by `python -m tests.decoder_frontend.oracle record`; the long form draws new nets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketune
from converter.frontends import decoder as decoder_frontend
from converter.frontends.decoder.architectures import BY_NAME
from pocketune import runtime
from tests.decoder_frontend import converted, nets, oracle
from tests.steps import stepped

RECORD = np.load(oracle.RECORDED)
TOLD: dict[str, Any] = json.loads(str(RECORD["told"]))
FILES = [name for name, told in TOLD.items() if not converted.cannot(told["config"])]


def some(*quick: str) -> list[Any]:
    """The first net of each architecture, of which a few are quick."""
    return [
        pytest.param(f"{kind}_0", id=kind, marks=() if kind in quick else pytest.mark.slow) for kind in nets.MODEL_TYPES
    ]


def folder(path: Path, name: str, **other: Any) -> Path:
    """Write the folder of a recorded net."""
    told = TOLD[name]
    nets.write_folder(path, told["config"] | other, nets.weights(told["config"], told["shapes"]))
    return path


def near(path: Path, name: str) -> None:
    got = oracle.logits_here(path, nets.rows(oracle.LENGTH))[oracle.SHOWN]
    assert oracle.separate(got, RECORD[name]) < 1e-5


def test_each_architecture_is_recorded() -> None:
    kinds = {row.model_type or row.name for row in BY_NAME.values()}
    assert kinds == set(nets.MODEL_TYPES) == {name.rpartition("_")[0] for name in TOLD}
    files = {TOLD[name]["config"]["model_type"] for name in FILES}
    assert files == kinds - {*converted.WITHOUT}


def file(path: Path, name: str) -> Path:
    """Write the file of llama.cpp's converter of a recorded net."""
    told = TOLD[name]
    converted.write(path, told["config"], nets.weights(told["config"], told["shapes"]))
    return path


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n.endswith("1") else ()) for n in TOLD])
def test_a_folder_has_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    near(folder(tmp_path / "net", name), name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n.endswith("0") else ()) for n in FILES])
def test_a_file_has_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    near(file(tmp_path / "net.gguf", name), name)


@pytest.mark.quick
@pytest.mark.parametrize("name", some("phi3"))
def test_steps_of_lora_are_those_of_peft(name: str, tmp_path: Path) -> None:
    folder(tmp_path / "net", name)
    oracle.write_adapter(tmp_path, oracle.adapters(TOLD[name]["shapes"]))
    ids = nets.rows(oracle.LENGTH)
    losses = oracle.losses_here(tmp_path / "net", tmp_path, ids, np.roll(ids, -1, 1), oracle.RATE, 5)
    np.testing.assert_allclose(losses, RECORD[f"{name}_losses"], rtol=2e-5)


@pytest.mark.quick
@pytest.mark.parametrize("name", some("gemma2"))
def test_what_is_written_is_what_the_whole_row_gives(name: str, tmp_path: Path) -> None:
    """Windows, caps, layers that do not rotate and factors of long rows hold with keys and values that are kept."""
    program = pocketune.build(
        folder(tmp_path / "net", name),
        length=40,
        batch=1,
        update="lora-2:o_proj",
        optimizer="sgd",
        signatures=("train", "infer", "generate"),
        check=False,
    )
    with pocketune.TrainingSession(program.data) as session:
        for start in (3, 33):
            text = nets.rows(start)[0].tolist()
            written = list(runtime.generate(session, text, most=5))
            for token in written:
                row = np.zeros((1, 40), np.int32)
                row[0, : len(text)] = text
                assert int(session.infer(row)[0, len(text) - 1].argmax()) == token
                text.append(token)


@pytest.mark.parametrize("name", some())
def test_blocks_packed_rows_and_int4_hold(name: str, tmp_path: Path) -> None:
    """Texts that share a row, in blocks and with frozen integers, give the losses of a step of the whole net."""
    told = TOLD[name]
    wide = dict.fromkeys(("hidden_size", "intermediate_size"), 64)
    if told["config"]["num_attention_heads"] == 6:
        wide["hidden_size"] = 96
    config = told["config"] | wide
    if "head_dim" not in config and "rope_scaling" in config and "short_factor" in (config["rope_scaling"] or {}):
        config["rope_scaling"] = None
    nets.write_folder(tmp_path / "net", config, {})
    (tmp_path / "net" / "model.safetensors").unlink()
    found = decoder_frontend.Model(tmp_path / "net", length=8).parameters()
    nets.write_folder(tmp_path / "net", config, nets.weights(config, {n: t.shape for n, t in found.items()}))
    model = decoder_frontend.Model(tmp_path / "net", length=16, packed=True)
    ids, texts = nets.rows(16)[:1], np.array([[0] * 6 + [1] * 10], np.int32)
    losses = []
    for blocks in ("off", "on"):
        program = pocketune.build(
            model, batch=1, update="lora-2:all-linear", optimizer="sgd", frozen="int4-blockwise", blocks=blocks,
            signatures=("train",), check=False,
        )  # fmt: skip
        losses.append(stepped(program, [((ids, texts), np.roll(ids, -1, 1))] * 3, 0.1).losses)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_of_a_model_of_images_the_text_part_is_read(prefix: str, tmp_path: Path) -> None:
    told = TOLD["gemma3_text_0"]
    arrays = nets.weights(told["config"], told["shapes"])
    renamed = {
        name.replace("lm_head.", "language_model.lm_head.") if name.startswith("lm_head.") else
        prefix + name.removeprefix("model."): array
        for name, array in arrays.items()
    }  # fmt: skip
    renamed |= {"vision_tower.x.weight": np.ones(3, np.float32), "multi_modal_projector.y": np.ones(3, np.float32)}
    tied = told["config"].get("tie_word_embeddings", True)
    outer = {"model_type": "gemma3", "text_config": told["config"], "vision_config": {"hidden_size": 3}}
    nets.write_folder(tmp_path / "net", outer | {"tie_word_embeddings": tied, "mm_tokens_per_image": 256}, renamed)
    whole, ids = folder(tmp_path / "text", "gemma3_text_0", final_logit_softcapping=None), nets.rows(oracle.LENGTH)
    assert oracle.separate(oracle.logits_here(tmp_path / "net", ids), oracle.logits_here(whole, ids)) < 1e-6
    notes = decoder_frontend.Model(tmp_path / "net", length=8).opened.notes
    assert [note.subject for note in notes] == ["multi_modal_projector", "vision_tower"]


@pytest.mark.slow
def test_new_nets_are_those_of_transformers() -> None:
    pytest.importorskip("transformers", reason="the nets are compared with those of transformers")
    pytest.importorskip("peft", reason="steps are compared with those of PEFT")
    assert oracle.compare(24, int(np.random.default_rng().integers(1 << 30)), 12) == 0
