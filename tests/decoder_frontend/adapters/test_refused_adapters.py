"""Adapters of PEFT that a program does not compute or train are refused by a sentence, and no state is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pocketune
from converter.runtime.export.low_rank import AdapterWarning
from converter.support.errors import UsageError
from tests.decoder_frontend.adapters.test_adapters import LENGTH, build


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    return build(tmp_path_factory.mktemp("peft"))


@pytest.fixture(scope="module")
def dora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    return build(tmp_path_factory.mktemp("dora"), dora=True)


def change_config(**options: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | options))

    return change


def change_weights(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file({k: np.ascontiguousarray(v) for k, v in change(load_file(path)).items()}, path)

    return changed


def of_weights(change: Callable[[str, np.ndarray], tuple[str, np.ndarray] | None]) -> Callable[[Path], None]:
    """Each tensor under another name, with other numbers, or left out."""
    return change_weights(lambda found: dict(pair for name in found if (pair := change(name, found[name])) is not None))


def cut_off(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "another kind": (change_config(peft_type="IA3"), "no LoRA"),
    "half DoRA": (change_config(use_dora=True), "use_dora is true, and the lengths of columns .* are none"),
    "DoRA": (
        lambda folder: (
            change_weights(
                lambda found: (
                    found
                    | {
                        name.replace("lora_B.weight", "lora_magnitude_vector"): np.ones(len(w), np.float32)
                        for name, w in found.items()
                        if "lora_B" in name
                    }
                )
            )(folder),
            change_config(use_dora=True)(folder),
        ),
        r"the adapters are of DoRA, and the program's of LoRA: build it with update=.*LoRA\(3, 5, dora=True\)",
    ),
    "trained head": (change_config(modules_to_save=["lm_head"]), "modules_to_save"),
    "expression": (change_config(rank_pattern={"(.*)+q_proj": 3}), "is not read"),
    "no rank": (change_config(r=0, rank_pattern={}), "r is 0"),
    "no configuration": (lambda folder: (folder / "adapter_config.json").unlink(), "is no adapter of PEFT"),
    "cut off": (cut_off, "cannot be read"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "cannot be read"),
    "no number": (of_weights(lambda name, w: (name, w * np.nan)), "NaN"),
    "another rank": (
        lambda folder: (
            of_weights(lambda name, w: (name, w[:1] if "A" in name else w[:, :1]))(folder),
            change_config(r=1, rank_pattern={})(folder),
        ),
        r"the rank 1, and the program's 4: build it with update=.*LoRA\(1, ",
    ),
    "another base": (of_weights(lambda name, w: (name, w[:, :-1] if "A" in name else w)), "trained on another base"),
    "pickled": (
        lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
        "is pickled",
    ),
    "half of one": (of_weights(lambda name, w: None if "A" in name else (name, w)), "do not fit each other"),
    "overlooked": (change_config(exclude_modules=["v_proj"]), "so that PEFT overlooks them"),
    "layers left out": (change_config(layers_to_transform=1, layers_pattern="layers"), "so that PEFT overlooks them"),
    "rank of another": (change_config(r=3, rank_pattern={}), "by adapter_config.json it is 3"),
    "no targets": (change_config(target_modules=None), "target_modules is missing"),
    "senseless layers": (change_config(layers_to_transform="all"), "layers_to_transform is 'all', not numbers"),
    "other module": (
        lambda folder: (
            of_weights(lambda name, w: (name.replace("q_proj", "o_proj"), w))(folder),
            change_config(target_modules="all-linear", rank_pattern={"v_proj": 3, "down_proj": 4})(folder),
        ),
        r'no adapter for model.layers.*Build it with update=.*"\*.o_proj.weight": pocketune.LoRA\(2, 5\)',
    ),
    "embedding": (of_weights(lambda name, w: (name.replace("A.weight", "embedding_A"), w)), "no factor of a LoRA"),
}


#: Options of PEFT 0.21.2 that no program computes, each as PEFT writes it.
OTHER_OPTIONS: dict[str, Any] = {
    "alora_invocation_tokens": [3, 4],
    "arrow_config": {"top_k": 3},
    "bias": "all",
    "corda_config": {"corda_method": "kpm"},
    "ensure_weight_tying": True,
    "fan_in_fan_out": True,
    "init_lora_weights": "pissa",
    "kasa_config": {"beta": 1e-4},
    "layer_replication": [[0, 2]],
    "loftq_config": {"loftq_bits": 4},
    "lora_bias": True,
    "lora_ga_config": {"scale": "stable"},
    "megatron_config": {"tensor_model_parallel_size": 2},
    "modules_to_save": ["lm_head"],
    "monteclora_config": {"num_samples": 8},
    "target_parameters": ["experts.gate_up_proj"],
    "task_type": "SEQ_CLS",
    "trainable_token_indices": [1],
    "use_bdlora": {"nblocks": 2},
    "use_qalora": True,
    "velora_config": {"num_groups": 8},
    "an_option_of_tomorrow": 0.5,
}


@pytest.mark.parametrize("option", OTHER_OPTIONS)
def test_options_that_change_the_product_or_the_training_are_refused_by_name(
    option: str, base: Any, tmp_path: Path
) -> None:
    check_refused(base[0], change_config(**{option: OTHER_OPTIONS[option]}), f"{option} is ", tmp_path)


@pytest.mark.parametrize("begins", ["pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "mica", "of tomorrow"])
def test_adapters_of_a_changed_base_are_refused(begins: str, base: Any, tmp_path: Path) -> None:
    check_refused(base[0], change_config(init_lora_weights=begins), f"init_lora_weights is '{begins}'", tmp_path)


def test_options_that_change_nothing_are_taken(base: Any, tmp_path: Path) -> None:
    harmless = {
        "init_lora_weights": "gaussian",
        "eva_config": {"rho": 2.0},
        "runtime_config": {"ephemeral_gpu_offload": False},
        "peft_version": "0.99.0",
        "revision": "main",
        "an_option_of_tomorrow": None,
        "another": False,
        "qalora_group_size": 16,
        "layers_to_transform": [0, 1],
    }
    pocketune.runtime.export_adapter(base[0], tmp_path / "adapter")
    change_config(**harmless)(tmp_path / "adapter")
    assert pocketune.runtime.import_adapter(base[0], tmp_path / "adapter", tmp_path / "its.state") == ()


@pytest.mark.parametrize(
    "changes",
    [{"lora_alpha": 10}, {"use_rslora": True}, {"alpha_pattern": {"layers.1.self_attn.q_proj": 7}}],
    ids=lambda changes: next(iter(changes)),
)
def test_another_scale_is_refused_with_what_to_build(changes: dict[str, Any], base: Any, tmp_path: Path) -> None:
    pocketune.runtime.export_adapter(base[0], tmp_path / "adapter")
    change_config(**changes)(tmp_path / "adapter")
    with pytest.raises(
        UsageError, match=r"times, by which its steps would be others: build it with update=\{"
    ) as refused:
        pocketune.runtime.import_adapter(base[0], tmp_path / "adapter", tmp_path / "its.state")
    said = str(refused.value).partition("build it with update=")[2].partition("\n")[0]
    rules = eval(said, {"pocketune": pocketune})
    program = pocketune.build(base[0].parent / "net.gguf", length=LENGTH, update=rules, batch=1, check=False)
    assert pocketune.runtime.import_adapter(program.data, tmp_path / "adapter", tmp_path / "its.state") == ()


def test_another_dropout_is_said(base: Any, tmp_path: Path) -> None:
    pocketune.runtime.export_adapter(base[0], tmp_path / "adapter")
    change_config(lora_dropout=0.05)(tmp_path / "adapter")
    with pytest.warns(AdapterWarning, match=r"lora_dropout is 0.05, and the program was built with 0: .* dropout=0.05"):
        pocketune.runtime.import_adapter(base[0], tmp_path / "adapter", tmp_path / "its.state")


def check_refused(program: Path, change: Callable[[Path], Any], said: str, folder: Path) -> None:
    """A program does not take its own adapter back that was changed, and no state is written."""
    pocketune.runtime.export_adapter(program, folder / "adapter")
    change(folder / "adapter")
    with pytest.raises(UsageError, match=said):
        pocketune.runtime.import_adapter(program, folder / "adapter", folder / "none.state")
    assert not (folder / "none.state").exists()


@pytest.mark.parametrize("what", REFUSED)
def test_other_adapters_are_refused(what: str, base: Any, tmp_path: Path) -> None:
    check_refused(base[0], *REFUSED[what], tmp_path)


REFUSED_OF_DORA: dict[str, tuple[Callable[[Path], None], str]] = {
    "LoRA": (
        lambda folder: (
            change_config(use_dora=False)(folder),
            of_weights(lambda name, w: None if "magnitude" in name else (name, w))(folder),
        ),
        "the adapters are of LoRA, and the program's of DoRA",
    ),
    "no lengths": (
        of_weights(lambda name, w: None if "magnitude" in name else (name, w)),
        "use_dora is true, and the lengths of columns .* are none",
    ),
    "other lengths": (of_weights(lambda name, w: (name, w[:-1] if "magnitude" in name else w)), "of shape .31."),
}


@pytest.mark.parametrize("what", REFUSED_OF_DORA)
def test_other_adapters_are_refused_by_a_program_of_dora(what: str, dora: Any, tmp_path: Path) -> None:
    check_refused(dora[0], *REFUSED_OF_DORA[what], tmp_path)
