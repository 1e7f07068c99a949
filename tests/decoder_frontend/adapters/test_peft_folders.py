"""Folders of PEFT, as random as people's: a program infers and trains on as PEFT does, or refuses them by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import pocketune
from converter.runtime.export.peft import read_folder
from converter.support.errors import UsageError
from tests.decoder_frontend import written
from tests.decoder_frontend.adapters import peft_folders
from tests.decoder_frontend.adapters.peft_folders import IDS, LABELS, STEPS, Case
from tests.decoder_frontend.test_decoder import near

CASES = peft_folders.recorded() if peft_folders.RECORDED.exists() else {}


def check(case: Case, folder: Path, work: Path) -> str:
    """Import a folder into a program of its ranks and scales, and compare; return what became of it."""
    written.write(work / "net.gguf", "llama", peft_folders.ENTRIES, peft_folders.WEIGHTS)
    options: dict[str, Any] = {"dora": True} if case.dora else {}
    rules = {
        name: pocketune.LoRA(rank, alpha, **options)
        for name, (rank, alpha) in case.rules.items()
        if name in peft_folders.WEIGHTS  # and no copy of a layer
    }
    program = pocketune.build(
        work / "net.gguf",
        length=8,
        update=rules,
        optimizer=case.optimizer,
        batch=1,
        signatures=("train", "infer"),
        check=False,
    )
    try:
        left = pocketune.runtime.import_adapter(program.data, folder, work / "theirs.state")
    except UsageError as error:
        if not (case.hard or "PEFT overlooks them" in str(error)):
            raise
        return "refused"
    # What a folder was edited to target has no tensors in it: PEFT, too, begins with B of zero there.
    held = load_file(folder / "adapter_model.safetensors")
    assert {f"base_model.model.{name.removesuffix('.weight')}.lora_B.weight" for name in left}.isdisjoint(held)
    with pocketune.TrainingSession(program.data) as session:
        session.restore(work / "theirs.state")
        near(session.infer(IDS)[0], case.logits, 2e-5)
        if len(case.losses):
            losses = [session.train(IDS, LABELS, case.rate) for _ in range(STEPS)]
            np.testing.assert_allclose(losses, case.losses, rtol=3e-4)
    return "right"


@pytest.mark.filterwarnings("ignore::converter.runtime.export.low_rank.AdapterWarning")
@pytest.mark.parametrize("seed", CASES)
def test_recorded_folders_compute_and_train_as_in_peft(seed: int, tmp_path: Path) -> None:
    case, config, tensors = CASES[seed]
    peft_folders.write_recorded(tmp_path / "adapter", config, tensors)
    check(case, tmp_path / "adapter", tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::converter.runtime.export.low_rank.AdapterWarning")
@pytest.mark.parametrize("seed", range(60))
def test_random_folders_compute_and_train_as_in_peft(seed: int, tmp_path: Path) -> None:
    for library in ("torch", "transformers", "peft"):
        pytest.importorskip(library)
    case = peft_folders.write_case(seed, tmp_path / "adapter")
    if case is None:
        pytest.skip("PEFT itself does not take it")
    print(
        seed,
        check(case, tmp_path / "adapter", tmp_path),
        json.loads((tmp_path / "adapter/adapter_config.json").read_text()),
    )


@pytest.mark.slow
def test_random_folders_are_read_as_by_peft(tmp_path: Path) -> None:
    """The weights that an adapter makes of the base's, and which modules have one, without a program."""
    for library in ("torch", "transformers", "peft"):
        pytest.importorskip(library)
    became: dict[str, int] = {"right": 0, "refused": 0, "none of PEFT": 0}
    for seed in range(1000, 1400):
        folder = tmp_path / str(seed)
        if (case := peft_folders.write_case(seed, folder, trains=False)) is None:
            became["none of PEFT"] += 1
            continue
        try:
            config, found, _ = read_folder(folder)
        except UsageError as error:
            if not (case.hard or "PEFT overlooks them" in str(error)):
                raise
            became["refused"] += 1
            continue
        ours = {f"{module}.weight": (one.rank, pytest.approx(one.alpha)) for module, one in found.items()}
        assert ours == {name: rule for name, rule in case.rules.items() if name in ours}, seed
        drawn = config.options["init_lora_weights"] is False  # PEFT draws what the folder has no tensors of
        for name in () if drawn or case.hard else case.rules.keys() - ours.keys():  # B is zero
            near(case.merged[name], peft_folders.WEIGHTS[name])
        for module, one in found.items():
            weight = peft_folders.WEIGHTS[f"{module}.weight"] + one.scale * one.b.astype(np.float64) @ one.a
            if one.lengths is not None:
                weight *= (one.lengths / np.linalg.norm(weight, axis=1))[:, None]
            if not case.hard:  # of these PEFT merges some only
                near(weight, case.merged[f"{module}.weight"])
        assert config.dora == case.dora
        became["right"] += 1
    print(became)
    assert became["right"] > 200
