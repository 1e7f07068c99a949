"""Adapters of PEFT: what a program learned is a folder of that library's, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pocketune
from converter.program.adapters import read_adapters
from converter.program.file import read_program
from converter.program.flatbuffer.schema import generated
from converter.support.errors import UsageError
from converter.support.litert import Interpreter
from tests.decoder_frontend import reference, written
from tests.decoder_frontend.test_decoder import near

LENGTH = 8
IDS = np.random.default_rng(1).integers(0, 96, (1, LENGTH)).astype(np.int32)
TARGETS = ("q_proj", "v_proj", "down_proj")


def build(folder: Path, name: str = "net", **options: bool) -> tuple[Path, dict[str, np.ndarray]]:
    """A program with adapters of such options, and the weights of its base."""
    arrays = written.write(folder / f"{name}.gguf", "llama")
    rules = {f"*{target}.weight": pocketune.LoRA(2 + i, 5, **options) for i, target in enumerate(TARGETS)}
    program = pocketune.build(
        folder / f"{name}.gguf", length=LENGTH, update=rules, optimizer="adam", batch=1, signatures=("train", "infer")
    )
    return program.write(folder / f"{name}.tflite"), arrays


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    return build(tmp_path_factory.mktemp("peft"))


@pytest.fixture(scope="module")
def dora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    return build(tmp_path_factory.mktemp("dora"), dora=True)


def taught(program: Path, state: Path) -> np.ndarray:
    """Logits after some steps, whose state is saved."""
    with pocketune.TrainingSession(program) as session:
        for _ in range(3):
            session.train(IDS, np.roll(IDS, -1, 1), 0.03)
        session.save(state)
        return session.infer(IDS)[0]


def merged(arrays: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """The weights of a base with the adapters of a folder, as PEFT's documentation says they are met."""
    config = json.loads((folder / "adapter_config.json").read_text())
    found = {name: w.astype(np.float64) for name, w in load_file(folder / "adapter_model.safetensors").items()}
    whole = dict(arrays)
    for key in found:
        if key.endswith(".lora_A.weight"):
            module = key.removesuffix(".lora_A.weight")
            name = module.removeprefix("base_model.model.")
            rank = config["rank_pattern"].get(name, config["r"])
            scale = config["alpha_pattern"].get(name, config["lora_alpha"]) / rank
            assert found[key].shape[0] == rank
            weight = whole[f"{name}.weight"] + scale * found[f"{module}.lora_B.weight"] @ found[key]
            if config.get("use_dora"):
                lengths = found[f"{module}.lora_magnitude_vector"]
                weight *= (lengths / np.linalg.norm(weight, axis=1))[:, None]
            whole[f"{name}.weight"] = weight
    return whole


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["LoRA", "LoRA-FA", "DoRA"])
def test_what_was_learned_is_an_adapter_of_peft(kind: str, base: Any, dora: Any, tmp_path: Path) -> None:
    program, arrays = {"LoRA": base, "DoRA": dora}.get(kind) or build(tmp_path, train_a=False)
    first = reference.logits("llama", written.metadata("llama"), arrays, IDS[0], np.zeros(LENGTH))
    after = taught(program, tmp_path / "mine.state")
    pocketune.runtime.export_adapter(program, tmp_path / "adapter", tmp_path / "mine.state", base="me/net")
    weights = merged(arrays, tmp_path / "adapter")
    wanted = reference.logits("llama", written.metadata("llama"), weights, IDS[0], np.zeros(LENGTH))
    assert np.abs(wanted - first).max() > 0.05
    near(after, wanted)
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["base_model_name_or_path"] == "me/net"


@pytest.mark.parametrize("use_dora", [False, True])
def test_an_adapter_of_peft_goes_on_here(use_dora: bool, base: Any, dora: Any, tmp_path: Path) -> None:
    program, arrays = dora if use_dora else base
    rng, tensors = np.random.default_rng(3), dict[str, np.ndarray]()
    for layer in range(2):
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{module}.lora_A.weight"] = (0.3 * rng.standard_normal((2, 32))).astype(np.float16)
        tensors[f"{module}.lora_B.weight"] = (0.3 * rng.standard_normal((32, 2))).astype(np.float16)
        if use_dora:
            tensors[f"{module}.lora_magnitude_vector"] = rng.uniform(0.5, 2, 32).astype(np.float16)
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 5,
        "target_modules": ["q_proj"],
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_dora": use_dora,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    left = pocketune.runtime.import_adapter(program, folder, tmp_path / "theirs.state")
    assert set(left) == {
        f"model.layers.{i}.{n}.weight" for i in range(2) for n in ("self_attn.v_proj", "mlp.down_proj")
    }
    weights = merged(arrays, folder)
    with pocketune.TrainingSession(program) as session:
        session.restore(tmp_path / "theirs.state")
        got = session.infer(IDS)[0]
        assert np.isfinite(session.train(IDS, np.roll(IDS, -1, 1), 0.03))
    near(got, reference.logits("llama", written.metadata("llama"), weights, IDS[0], np.zeros(LENGTH)))


@pytest.mark.parametrize("kind", ["LoRA", "DoRA"])
def test_out_and_in_again_is_the_same_to_the_bit(kind: str, base: Any, dora: Any, tmp_path: Path) -> None:
    program, _ = base if kind == "LoRA" else dora
    after = taught(program, tmp_path / "mine.state")
    pocketune.runtime.export_adapter(program, tmp_path / "adapter", tmp_path / "mine.state")
    assert pocketune.runtime.import_adapter(program, tmp_path / "adapter", tmp_path / "again.state") == ()
    with pocketune.TrainingSession(program) as session:
        session.restore(tmp_path / "again.state")
        np.testing.assert_array_equal(session.infer(IDS)[0], after)


def test_a_full_disk_leaves_the_adapter_that_was_there(base: Any, tmp_path: Path, full: Callable[[int], None]) -> None:
    program, _ = base
    taught(program, tmp_path / "mine.state")
    pocketune.runtime.export_adapter(program, tmp_path / "adapter")
    before = {path.name: path.read_bytes() for path in (tmp_path / "adapter").iterdir()}
    for room in range(2):  # of the weights, and of the configuration behind them
        for folder in (tmp_path / "adapter", tmp_path / "new" / "adapter"):
            full(room)
            with pytest.raises(UsageError, match=f"cannot write {folder}: No space left on device"):
                pocketune.runtime.export_adapter(program, folder, tmp_path / "mine.state")
        assert {path.name: path.read_bytes() for path in (tmp_path / "adapter").iterdir()} == before
        assert not (tmp_path / "new").exists()
    full(0)
    with pytest.raises(UsageError, match="No space left on device"):
        pocketune.runtime.import_adapter(program, tmp_path / "adapter", tmp_path / "mine.state")


def test_a_base_of_the_same_shape_is_told_by_its_norms(tmp_path: Path) -> None:
    entries = written.metadata("llama", feed_forward_length=512)
    arrays = written.weights("llama", entries)
    written.write(tmp_path / "net.gguf", "llama", entries, arrays)
    arrays["model.layers.1.input_layernorm.weight"] = arrays["model.layers.1.input_layernorm.weight"] * 1.001
    written.write(tmp_path / "other.gguf", "llama", entries, arrays)
    rules = {f"*{target}.weight": pocketune.LoRA(2 + i, 5) for i, target in enumerate(TARGETS)}
    options = {"length": LENGTH, "update": rules, "optimizer": "adam", "batch": 1, "signatures": ("train", "infer")}
    first, other = (pocketune.build(tmp_path / f"{name}.gguf", **options) for name in ("net", "other"))
    pocketune.runtime.export_adapter(first.data, tmp_path / "adapter")
    with pytest.raises(UsageError, match="of another base than other"):
        pocketune.runtime.import_adapter(other.data, tmp_path / "adapter", tmp_path / "none.state")
    rounded = pocketune.build(tmp_path / "net.gguf", **options, frozen="int4")
    assert pocketune.runtime.import_adapter(rounded.data, tmp_path / "adapter", tmp_path / "same.state") == ()


def test_a_program_without_adapters_says_so(tmp_path: Path) -> None:
    written.write(tmp_path / "net.gguf", "llama")
    program = pocketune.build(tmp_path / "net.gguf", length=LENGTH, update="head", batch=1, signatures=("train",))
    assert not read_program(program.data).metadata.keys() & {"pocketune.adapters"}
    with pytest.raises(UsageError, match="has no low-rank adapters"):
        pocketune.runtime.export_adapter(program.data, tmp_path / "adapter")


def test_a_program_of_dora_writes_what_it_infers(tmp_path: Path) -> None:
    written.write(tmp_path / "net.gguf", "llama")
    signatures = ("train", "infer", "generate")
    program = pocketune.build(
        tmp_path / "net.gguf",
        length=LENGTH,
        update="dora-2:all-linear",
        optimizer="adam",
        batch=1,
        signatures=signatures,
    )
    assert any(note.subject == "generate" and "lengths of columns again" in note.why for note in program.notes)
    with pocketune.TrainingSession(program.data) as session:
        for _ in range(20):
            session.train(IDS, np.roll(IDS, -1, 1), 0.03)
        (first,) = pocketune.runtime.generate(session, IDS[0, :5].tolist(), most=1, temperature=0)
        assert first == session.infer(IDS)[0, 4].argmax() == IDS[0, 5]


@pytest.mark.parametrize("tied", [True, False])
def test_targets_are_those_of_peft(tied: bool, tmp_path: Path) -> None:
    entries = written.metadata("llama")
    written.write(tmp_path / "net.gguf", "llama", entries, written.weights("llama", entries, 96, tied))

    def adapted(update: str) -> set[str]:
        program = pocketune.build(
            tmp_path / "net.gguf", length=LENGTH, update=update, batch=1, signatures=("train",), check=False
        )
        assert all("/lora_" in p.name for p in program.manifest.parameters)
        return {one.weight for one in read_adapters(read_program(program.data))}

    all_linear = {name for name in written.weights("llama", entries) if "_proj.weight" in name}
    assert adapted("lora-2:all-linear") == all_linear
    assert adapted("lora-2:q_proj,mlp.up_proj") == {n for n in all_linear if "q_proj" in n or "up_proj" in n}
    if not tied:  # the head has the shape of the embedding
        assert adapted("lora-2") == all_linear
    for update, said in (("lora-2:q_prj", "Did you mean 'q_proj'"), ("lora-2:", "unknown update scheme")):
        with pytest.raises(UsageError, match=said):
            adapted(update)


def test_adapters_of_litert_lm_hold_the_factors(tmp_path: Path) -> None:
    """As litert-torch reads them: names, shapes [inputs, rank] and [rank, outputs], the scale in A, the rank."""
    written.write(tmp_path / "net.gguf", "llama")
    program = pocketune.build(
        tmp_path / "net.gguf",
        length=LENGTH,
        update="lora-4:q_proj,k_proj,v_proj,o_proj",
        optimizer="adam",
        batch=1,
        signatures=("train", "infer"),
    )
    path = program.write(tmp_path / "net.tflite")
    taught(path, tmp_path / "mine.state")
    pocketune.runtime.export_litert_lm_adapter(path, tmp_path / "lora.tflite", tmp_path / "mine.state")
    pocketune.runtime.export_adapter(path, tmp_path / "adapter", tmp_path / "mine.state")
    theirs = load_file(tmp_path / "adapter/adapter_model.safetensors")
    data = (tmp_path / "lora.tflite").read_bytes()
    assert data[4:8] == b"TFL3"
    model = generated.ModelT.InitFromObj(generated.Model.GetRootAs(data))
    assert [(entry.name, entry.buffer) for entry in model.metadata] == [(b"lora_rank", 4)]
    (graph,) = model.subgraphs
    found = {tensor.name.decode(): model.buffers[tensor.buffer].data.tobytes() for tensor in graph.tensors}
    assert len(found) == 2 * 4 * 2
    for layer in range(2):
        for letter in "qkvo":
            module = f"base_model.model.model.layers.{layer}.self_attn.{letter}_proj"
            a, b = (theirs[f"{module}.lora_{which}.weight"].T for which in "AB")
            assert found[f"lora_atten_{letter}_a_prime_weight_{layer}"] == np.ascontiguousarray(a * 2).tobytes()
            assert found[f"lora_atten_{letter}_b_prime_weight_{layer}"] == np.ascontiguousarray(b).tobytes()
    Interpreter(model_content=data)


def test_adapters_that_litert_lm_has_no_place_for_are_refused(tmp_path: Path) -> None:
    written.write(tmp_path / "net.gguf", "llama")
    for update, said in (
        ("lora-4:all-linear", "down_proj.weight is none|gate_proj.weight is none"),
        ("lora-4:q_proj,v_proj", "some have none"),
        ("lora-2:q_proj,k_proj,v_proj,o_proj", "a multiple of 4, and these have 2"),
        ("dora-4:q_proj,k_proj,v_proj,o_proj", "a DoRA adapter, whose column norms"),
    ):
        program = pocketune.build(
            tmp_path / "net.gguf", length=LENGTH, update=update, batch=1, signatures=("train",), check=False
        )
        with pytest.raises(UsageError, match=said):
            pocketune.runtime.export_litert_lm_adapter(program.data, tmp_path / "lora.tflite")
