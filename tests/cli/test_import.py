"""`import`: an adapter of PEFT becomes a state, with which a session infers what the merged weights give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from converter.runtime import TrainingSession
from tests.cli.conftest import FACTORIES, Run
from tests.cli.factories import good

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["layers.0.w"]}
RULES = "'layers/[01]/w' = {lora = 2, alpha = 6}"


def test_an_adapter_becomes_a_state(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f"batch = 2\n[update]\n{RULES}")
    assert run("build", f"{FACTORIES}:good", "--recipe", "mine.toml", "--out", "m.tflite", "--no-check").code == 0
    layers, rng = good().params["layers"], np.random.default_rng(0)
    inputs, outputs = layers[0]["w"].shape
    a, b = rng.normal(size=(2, inputs)).astype("f"), rng.normal(size=(outputs, 2)).astype("f")
    (tmp_path / "adapter").mkdir()
    factors = {f"base_model.model.layers.0.w.lora_{which}.weight": array for which, array in (("A", a), ("B", b))}
    save_file(factors, tmp_path / "adapter/adapter_model.safetensors")
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(CONFIG))
    done = run("import", "m.tflite", "adapter", "--out", "theirs.state")
    assert (done.code, done.out.splitlines()[1:]) == (
        0,
        ["1 weight without an adapter in adapter, as they were built:", "  layers/1/w"],
    )
    merged = good()
    merged.params["layers"][0]["w"] = layers[0]["w"] + 3 * (b @ a).T
    x = rng.normal(size=(2, inputs)).astype("f")
    with TrainingSession(tmp_path / "m.tflite") as session:
        before = session.infer(x)
        session.restore(tmp_path / "theirs.state")
        np.testing.assert_allclose(session.infer(x), merged.apply(merged.params, x), rtol=1e-5, atol=1e-5)
    assert np.abs(before - merged.apply(merged.params, x)).max() > 0.01


def test_what_is_no_adapter_of_it(run: Run, tmp_path: Path) -> None:
    run("build", f"{FACTORIES}:good", "--update", "head", "--batch", "2", "--out", "m.tflite", "--no-check")
    refused = run("import", "m.tflite", "nowhere", "--out", "theirs.state")
    assert (refused.code, "nowhere is no adapter of PEFT" in refused.err) == (2, True)
    assert "--out" in run("import", "m.tflite", "nowhere").err
