"""Tables of devices: by the programs that the harness trains there."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from converter.backend.targets import target
from converter.support.errors import UsageError
from converter.tools.measure import Case, cases
from scripts.harness import pricing
from scripts.harness.bench import Options
from scripts.harness.device import Device
from scripts.harness.devices.hosts import local
from scripts.harness.log import read_results

ALLOWED = ("BUSY", "SPACE", "MEMORY")
LIKE = "litert-2/x86-64"


def of(*forms: str) -> list[Case]:
    return [next(case for case in cases() if case.form == form) for form in forms]


def measured(device: Device, chosen: list[Case], like: str | None, folder: Path) -> tuple[str, list]:
    options = Options(folder / "results", "session", allowed=ALLOWED)
    return pricing.table_of(device, chosen, like, "mine", folder, options, lambda said: None)


def test_this_machine_by_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "_ROUNDS", 1)
    text, problems = measured(local(), of("batch_matmul", "conv.runtime"), LIKE, tmp_path)
    assert problems == []
    (tmp_path / "mine.toml").write_text(text)
    found, like = target(str(tmp_path / "mine.toml")), target(LIKE)
    assert (found.name, found.unit) == ("mine", "ns")
    assert "ai-edge-litert" in found.description
    assert 0 < found.per_mac["batch_matmul"] < found.per_mac["conv.runtime"]
    changed = {form for form, cost in found.per_mac.items() if cost != like.per_mac[form]}
    assert changed == {"batch_matmul", "conv.runtime"}
    file = read_results(tmp_path / "results" / "local.jsonl")
    assert all(check.ok for check in file.checks.values())


def test_without_a_target_it_is_that_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []

    def no_programs(cases: list[Case], like: object) -> list:
        chosen.append(like)
        raise UsageError("enough")

    monkeypatch.setattr(pricing, "timed_programs", no_programs)
    device = local()
    facts = device.facts()
    for abis in (facts.abis, ("arm64-v8a", "armeabi-v7a"), ("aarch64",), ("x86_64",)):
        monkeypatch.setattr(device, "facts", lambda abis=abis: replace(facts, abis=abis))
        with pytest.raises(UsageError, match="enough"):
            measured(device, of("delegated"), None, tmp_path)
    here = LIKE if platform.machine() == "x86_64" else "litert-2"
    assert chosen == [target(name) for name in (here, "litert-2", "litert-2", LIKE)]


def test_what_a_runtime_has_no_kernel_of_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_programs(cases: list[Case], like: object) -> list:
        raise UsageError(", ".join(case.form for case in cases))

    monkeypatch.setattr(pricing, "timed_programs", no_programs)
    chosen = of("fully_connected.dynamic", "fully_connected.int8", "batch_matmul", "delegated")
    with pytest.raises(UsageError, match=r"^fully_connected.int8, batch_matmul, delegated$"):
        measured(local(), chosen, "tflite-2.16", tmp_path)


@pytest.mark.parametrize("like", ["tflite-2.14", "gpu", "gpu,litert-2"])
def test_a_table_is_like_a_complete_one(like: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no table of its own"):
        measured(local(), of("delegated"), like, tmp_path)
