"""Adapters as llama.cpp has them: what it computes with ours, theirs read in, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind

import pocketune
from converter.support.errors import UsageError
from tests.decoder_frontend import reference, written
from tests.decoder_frontend.adapters import llama_cpp
from tests.decoder_frontend.adapters.llama_cpp import IDS, SHOWN
from tests.decoder_frontend.adapters.test_adapters import IDS as FEW
from tests.decoder_frontend.adapters.test_adapters import LENGTH, build, taught
from tests.decoder_frontend.test_decoder import near

TOLD: dict[str, Any] = {}
if llama_cpp.RECORDED.exists():
    with np.load(llama_cpp.RECORDED) as _file:
        TOLD = json.loads(str(_file["told"]))


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {one.name: np.array(one.data) for one in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("kind", TOLD)
def test_llama_cpp_computes_what_a_program_does(kind: str, tmp_path: Path) -> None:
    """Recorded there from files that programs wrote: read in they give the same, and they are written as they were."""
    told = TOLD[kind]
    with np.load(llama_cpp.RECORDED) as file:
        (tmp_path / "theirs.gguf").write_bytes(file[f"{kind}_adapter"].tobytes())
        wanted = file[kind]
    source = llama_cpp.write_source(told["config"], told["shapes"], tmp_path, told["is_file"])
    program = llama_cpp.built(source, tmp_path, told["rules"])
    pocketune.runtime.import_adapter(program, tmp_path / "theirs.gguf", tmp_path / "theirs.state")
    with pocketune.TrainingSession(program) as session:
        before = llama_cpp.log_probabilities(session.infer(IDS)[0])[SHOWN]
        session.restore(tmp_path / "theirs.state")
        near(llama_cpp.log_probabilities(session.infer(IDS)[0])[SHOWN], wanted, 5e-5)
    assert np.abs(before - wanted).max() > 5e-3
    pocketune.runtime.export_adapter(program, tmp_path / "again.gguf", tmp_path / "theirs.state")
    again = tensors(tmp_path / "again.gguf")
    for name, array in tensors(tmp_path / "theirs.gguf").items():
        np.testing.assert_allclose(again[name], array, rtol=1e-6)


def rewritten(
    path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], Any], kind: Kind = Kind.F32
) -> None:
    """Write an adapter again by the library `gguf`, with other entries or tensors."""
    reader = gguf.GGUFReader(path)
    said = {k: f.contents() for k, f in reader.fields.items() if not k.startswith(("GGUF.", "pocketune."))}
    arrays = {one.name: np.array(one.data) for one in reader.tensors}
    change(said, arrays)
    writer = gguf.GGUFWriter(path, said.pop("general.architecture"))
    for key, value in said.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        (writer.add_string if isinstance(value, str) else writer.add_array if isinstance(value, list) else add)(
            key, value
        )
    for name, array in arrays.items():
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A program with adapters of one alpha, and the weights of its base."""
    return build(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16])
def test_files_of_the_converter_are_read(kind: Kind, base: Any, tmp_path: Path) -> None:
    """As convert_lora_to_gguf.py writes them: other kinds of numbers, and no entries of ours."""
    program, arrays = base
    taught(program, tmp_path / "mine.state")
    pocketune.runtime.export_adapter(program, tmp_path / "adapter.gguf", tmp_path / "mine.state")
    rewritten(tmp_path / "adapter.gguf", lambda said, found: None, kind)
    assert pocketune.runtime.import_adapter(program, tmp_path / "adapter.gguf", tmp_path / "theirs.state") == ()
    reader, whole = gguf.GGUFReader(tmp_path / "adapter.gguf"), dict(arrays)
    found = {one.name: gguf.quants.dequantize(one.data, one.tensor_type).astype(np.float64) for one in reader.tensors}
    parts = {"attn_q": "self_attn.q_proj", "attn_v": "self_attn.v_proj", "ffn_down": "mlp.down_proj"}
    for layer in range(2):
        for theirs, ours in parts.items():
            a, b = (found[f"blk.{layer}.{theirs}.weight.lora_{which}"] for which in "ab")
            if theirs == "attn_q":  # LlamaModel.permute of the converter, the other way round
                heads = written.metadata("llama")["attention.head_count"]
                b = b.reshape(heads, -1, 2, b.shape[-1]).swapaxes(1, 2).reshape(b.shape)
            whole[f"model.layers.{layer}.{ours}.weight"] = (
                arrays[f"model.layers.{layer}.{ours}.weight"] + 5 / len(a) * b @ a
            )
    with pocketune.TrainingSession(program) as session:
        session.restore(tmp_path / "theirs.state")
        got = session.infer(FEW)[0]
    near(got, reference.logits("llama", written.metadata("llama"), whole, FEW[0], np.zeros(LENGTH)))


def test_eight_bits_and_a_scale_of_one_are_read(tmp_path: Path) -> None:
    """Q8_0 takes rows of 32; without alpha B A counts once."""
    written.write(tmp_path / "net.gguf", "qwen2")
    program = pocketune.build(
        tmp_path / "net.gguf", length=LENGTH, update={"*k_proj.weight": pocketune.LoRA(32, 32)}, batch=1, check=False
    )
    pocketune.runtime.export_adapter(program.data, tmp_path / "adapter.gguf")
    rewritten(tmp_path / "adapter.gguf", lambda said, found: said.pop("adapter.lora.alpha"), Kind.Q8_0)
    assert pocketune.runtime.import_adapter(program.data, tmp_path / "adapter.gguf", tmp_path / "theirs.state") == ()
    pocketune.runtime.export_adapter(program.data, tmp_path / "again.gguf", tmp_path / "theirs.state")
    wanted = gguf.GGUFReader(tmp_path / "adapter.gguf").tensors
    for got, one in zip(gguf.GGUFReader(tmp_path / "again.gguf").tensors, wanted, strict=True):
        np.testing.assert_array_equal(got.data, gguf.quants.dequantize(one.data, one.tensor_type))


def entry(key: str, value: Any) -> Callable[[dict[str, Any], dict[str, np.ndarray]], Any]:
    return lambda said, found: said.update({key: value})


def each(change: Callable[[str, np.ndarray], tuple[str, np.ndarray] | None]) -> Callable[..., None]:
    """Each tensor under another name, with other numbers, or left out."""

    def changed(said: dict[str, Any], found: dict[str, np.ndarray]) -> None:
        kept = [pair for name, array in found.items() if (pair := change(name, array)) is not None]
        found.clear()
        found.update(kept)

    return changed


Q = "blk.0.attn_q.weight.lora_"
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a model": (entry("general.type", "model"), "is no LoRA adapter: its general.type is 'model'"),
    "another kind": (entry("adapter.type", "control"), "is no LoRA adapter: its adapter.type is 'control'"),
    "another architecture": (
        entry("general.architecture", "qwen2"),
        "architecture 'qwen2', and the program's is 'llama'",
    ),
    "some tokens alone": (entry("adapter.alora.invocation_tokens", [3, 4]), "acts behind these tokens alone"),
    "of tomorrow": (entry("adapter.lora.power", 2), "the entry adapter.lora.power is not known"),
    "another alpha": (
        entry("adapter.lora.alpha", 10.0),
        r"counts 5 times, and in the program 2.5 .*build it with update=.*LoRA\(2, 10\)",
    ),
    "no alpha": (lambda said, found: said.pop("adapter.lora.alpha"), r"counts 1 times.*LoRA\(2, 2\)"),
    "senseless alpha": (entry("adapter.lora.alpha", float("nan")), "is damaged: adapter.lora.alpha is nan"),
    "alpha of words": (entry("adapter.lora.alpha", "16"), "is damaged: adapter.lora.alpha is '16'"),
    "another base": (each(lambda n, w: (n, w[:, :-1] if n == f"{Q}a" else w)), "was trained on another base"),
    "other outputs": (each(lambda n, w: (n, w[:-2] if n == f"{Q}b" else w)), "was trained on another base"),
    "another rank": (each(lambda n, w: (n, w[:1] if n == f"{Q}a" else w[:, :1] if n == f"{Q}b" else w)), "the rank 1"),
    "half of one": (
        each(lambda n, w: None if n == f"{Q}b" else (n, w)),
        "the two factors of blk.0.attn_q.weight do not",
    ),
    "turned": (each(lambda n, w: (n, w.T.copy())), "do not fit each other"),
    "no number": (each(lambda n, w: (n, w * np.nan)), "holds NaN"),
    "a norm": (each(lambda n, w: (n.replace("q.weight.lora_a", "norm.weight"), w)), "is no factor of an adapter"),
    "another layer": (each(lambda n, w: (n.replace("blk.0", "blk.9"), w)), "the program's model has no matrix blk.9"),
    "not adapted": (
        each(lambda n, w: (n.replace("attn_v", "attn_k"), w)),
        r'no adapter for model.layers.0.self_attn.k_proj.*"\*.k_proj.weight": pocketune.LoRA\(3, 5\)',
    ),
    "nothing": (each(lambda n, w: None), "it holds no adapter"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_files_are_refused(what: str, base: Any, tmp_path: Path) -> None:
    change, said = REFUSED[what]
    pocketune.runtime.export_adapter(base[0], tmp_path / "adapter.gguf")
    rewritten(tmp_path / "adapter.gguf", change)
    with pytest.raises(UsageError, match=said):
        pocketune.runtime.import_adapter(base[0], tmp_path / "adapter.gguf", tmp_path / "none.state")
    assert not (tmp_path / "none.state").exists()


def test_damaged_files_are_refused(base: Any, tmp_path: Path) -> None:
    path = tmp_path / "adapter.gguf"
    pocketune.runtime.export_adapter(base[0], path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    cuts = [0, 3, 20, len(whole) // 2, len(whole) - 200]
    damaged = [whole[:cut] for cut in cuts]
    for _ in range(200):
        changed = bytearray(whole)
        changed[rng.integers(400)] = rng.integers(256)
        damaged.append(bytes(changed))
    for data in damaged:
        path.write_bytes(data)
        try:
            pocketune.runtime.import_adapter(base[0], path, tmp_path / "some.state")
        except UsageError:
            continue
        assert data not in damaged[: len(cuts)]
    with pytest.raises(UsageError, match="cannot read"):
        pocketune.runtime.import_adapter(base[0], tmp_path / "nowhere.gguf", tmp_path / "none.state")
    written.write(path, "llama", kind=Kind.Q4_0)
    with pytest.raises(UsageError, match=r"is no LoRA adapter: its general\.type is 'model'"):
        pocketune.runtime.import_adapter(base[0], path, tmp_path / "none.state")


def test_what_has_no_place_in_such_a_file_is_refused(tmp_path: Path) -> None:
    written.write(tmp_path / "net.gguf", "llama")
    program = pocketune.build(tmp_path / "net.gguf", length=LENGTH, update="dora-2:q_proj", batch=1, check=False)
    with pytest.raises(UsageError, match="a DoRA adapter, whose column norms the file cannot hold"):
        pocketune.runtime.export_adapter(program.data, tmp_path / "adapter.gguf")
    import jax

    dense = {"w": np.eye(8, dtype=np.float32)}
    model = pocketune.Model(lambda p, x: x @ p["w"], dense, inputs=[jax.ShapeDtypeStruct((1, 8), np.float32)])
    program = pocketune.build(model, loss="mse", update={"w": pocketune.LoRA(2, 4)}, batch=1, check=False)
    with pytest.raises(UsageError, match=r"does not say what llama\.cpp calls its weights"):
        pocketune.runtime.export_adapter(program.data, tmp_path / "adapter.gguf")
    assert not (tmp_path / "adapter.gguf").exists()


def test_another_base_of_the_same_shape_is_told_by_its_norms(base: Any, tmp_path: Path) -> None:
    arrays = written.weights("llama", written.metadata("llama"))
    arrays["model.norm.weight"] = arrays["model.norm.weight"] * 1.001
    written.write(tmp_path / "other.gguf", "llama", None, arrays)
    rules = {
        f"*{target}.weight": pocketune.LoRA(2 + i, 5) for i, target in enumerate(("q_proj", "v_proj", "down_proj"))
    }
    other = pocketune.build(tmp_path / "other.gguf", length=LENGTH, update=rules, batch=1, check=False)
    pocketune.runtime.export_adapter(other.data, tmp_path / "adapter.gguf")
    with pytest.raises(UsageError, match="the adapters are of another base than net"):
        pocketune.runtime.import_adapter(base[0], tmp_path / "adapter.gguf", tmp_path / "none.state")


@pytest.mark.slow
@pytest.mark.skipif("NODE_LLAMA_CPP" not in os.environ, reason="NODE_LLAMA_CPP names no node-llama-cpp")
def test_llama_cpp_itself_computes_what_programs_do() -> None:
    pytest.importorskip("transformers")
    assert llama_cpp.compare(24, 3) == 0
