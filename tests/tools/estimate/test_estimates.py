"""Estimates: against published times of phones, and against what the harness measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from converter.backend.targets import tables, target
from converter.support.errors import UsageError
from converter.tools.estimate import Device, Estimate, device, devices, estimate, estimate_rows, read_measured, setting
from converter.tools.estimate.catalogue import Core, check, class_of
from converter.tools.estimate.estimates import ENERGY, PROGRAMS_DIFFER, energy_class
from scripts.harness.log import read_results
from tests.cli.factories import good, wide
from tests.tools.estimate.common import program, results_of

#: Instructions by the table and bytes of traffic of `infer` for one row of nets of keras.applications with 10 classes.
NETS = {
    "MobileNet": (202_974_478, 52_562_432),
    "MobileNetV2": (113_219_658, 57_820_928),
    "MobileNetV3Large": (85_231_694, 61_115_464),
    "MobileNetV3Small": (23_882_964, 12_192_936),
}
#: Milliseconds of these on one thread, by XNNPACK's README of 2020, and the cores of the phones.
PUBLISHED = {("Cortex-A73", 2.35): (86, 53, 42, 14), ("Cortex-A75", 2.0): (88, 55, 44, 14)}


def row(instructions: int, traffic: int, resident: int = 1 << 20) -> dict[str, object]:
    return {
        "scheme": "full",
        "step_cost": instructions,
        "traffic_bytes": traffic,
        "resident_bytes": resident,
        **dict.fromkeys(("trained_parameters", "flops_forward", "flops_backward", "flops_update"), 1),
        **dict.fromkeys(("residual_bytes", "state_bytes"), 1),
    }


def phone(kind: str, ghz: float, memory: float = 4, **more: object) -> Device:
    fields = {"kind": "phone", "soc": "s", "abi": "arm64-v8a", "target": "litert-2", "sources": (), **more}
    return Device("p", "P", ("P",), memory_gib=memory, cores=(Core(kind, 2, ghz), Core("Cortex-A53", 6, 1.7)), **fields)


def only(found: object) -> Estimate:
    (one,) = found.rows
    assert isinstance(one, Estimate)
    return one


@pytest.mark.parametrize(("core", "times"), PUBLISHED.items())
def test_published_times_lie_in_the_interval(core: tuple[str, float], times: tuple[float, ...]) -> None:
    for (name, costs), ms in zip(NETS.items(), times, strict=True):
        step = only(estimate_rows([row(*costs)], phone(*core), target("litert-2"), 1)).step
        assert ms / 1e3 in step, name
        assert step.high < 6 * step.low, name


def test_what_is_known_of_devices_and_cores_is_whole() -> None:
    known = devices()
    assert {"pixel-8", "raspberry-pi-4", "raspberry-pi-5"} <= known.keys()
    assert sum(one.kind == "phone" for one in known.values()) >= 12
    for name, one in known.items():
        check(one, name)
        assert one.sources, name
        assert one.target in tables()
        assert setting(name, None)[1].name == one.target
        for core in one.cores:
            least, most = class_of(core.kind).per_cycle
            assert 0 < least <= most
    for own in known.values():  # two devices that call themselves the same would be taken for each other
        assert sum(other.is_called(own.models[0].replace("*", "")) for other in known.values()) == 1


def test_a_larger_step_takes_longer_and_a_slower_core_too() -> None:
    def step(instructions: int, traffic: int, kind: str, ghz: float) -> object:
        return only(estimate_rows([row(instructions, traffic)], phone(kind, ghz), target("litert-2"), 1)).step

    plain = step(10**9, 0, "Cortex-A76", 2.0)
    for other in (step(2 * 10**9, 0, "Cortex-A76", 2.0), step(10**9, 0, "Cortex-A76", 1.0)):
        assert (other.low, other.high) > (plain.low, plain.high)
    assert step(10**9, 10**9, "Cortex-A76", 2.0).high == pytest.approx(plain.high + 1 / 5)
    assert step(10**9, 10**9, "Cortex-A76", 2.0).low == plain.low


def test_memory_is_judged_by_the_device() -> None:
    verdicts = [
        only(estimate_rows([row(1, 1, resident=mib << 20)], phone("Cortex-A76", 2.0, memory=2), target("litert-2"), 1))
        for mib in (500, 600, 1100)
    ]
    assert [v.memory for v in verdicts] == ["fits", "tight", "too much"]


def test_energy_is_a_class() -> None:
    assert energy_class(1, 9) == "A"
    assert energy_class(11, 5_000) == "B-D"
    assert energy_class(1e5, 1e6) == "E"
    assert list(ENERGY.values()) == sorted(ENERGY.values())


def test_the_training_is_so_many_steps() -> None:
    found = estimate(good(), "pixel-8", ["head"], samples=20, epochs=3, batch=8)
    one = only(found)
    assert found.steps == 9
    assert one.training.low == pytest.approx(9 * one.step.low)
    assert json.loads(json.dumps(found.to_json()))["schemes"][0]["scheme"] == "head"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    program("good").write(tmp_path / "good.tflite")
    program("wide").write(tmp_path / "wide.tflite")
    return tmp_path


def test_a_measured_step_is_taken_as_it_is(folder: Path) -> None:
    results = results_of(folder, {"good.tflite": [2.0, 3.0, 4.0, 5.0]}, available=1 << 30)
    assert read_results(results).results  # the harness takes this file for one of its own
    found = estimate(good(), "pixel-8", ["head", "full"], results=[results], programs=[folder / "good.tflite"])
    head, full = found.rows
    assert isinstance(head, Estimate)
    assert isinstance(full, Estimate)
    assert (head.is_measured, full.is_measured) == (True, False)
    assert (head.step.low, head.step.high) == (2e-3, 5e-3)
    assert head.memory_limits[1] == 1 << 30
    assert (head.peak_bytes, full.peak_bytes) == (4 << 20, None)
    # Another step of this device: as fast as the one that was measured.
    rate = 3.5e-3 / head.costs["step_cost"] * full.costs["step_cost"]
    assert full.step.low == pytest.approx(rate / PROGRAMS_DIFFER)
    assert full.step.high == pytest.approx(rate * PROGRAMS_DIFFER)
    assert "good.tflite" in found.speed


def test_a_device_with_such_cores_tells_the_instructions_of_a_cycle(folder: Path) -> None:
    results = results_of(folder, {"wide.tflite": [2.0] * 4}, model="Raspberry Pi 5 Model B Rev 1.0")
    asked = {"results": [results], "programs": [folder / "wide.tflite"]}
    found = estimate(good(), "galaxy-a54", ["head"], **asked)  # Cortex-A78 is of the class of the Pi's Cortex-A76
    per_cycle = program("wide").costs["step_cost"] / (2e-3 * 2.4e9)
    assert f"{per_cycle / PROGRAMS_DIFFER:.2g} to {per_cycle * PROGRAMS_DIFFER:.2g} instructions a cycle" in found.speed
    assert "as measured on Raspberry Pi 5" in found.speed
    assert estimate(good(), "redmi-9a", ["head"], **asked).speed == estimate(good(), "redmi-9a", ["head"]).speed


def test_what_says_nothing_is_left_out_with_the_reason(folder: Path) -> None:
    times = {"good.tflite": [2.0] * 4}
    emulated = results_of(folder, times, is_emulator=True, name="emulated.jsonl")
    unknown = results_of(folder, times, model="Nobody's", name="unknown.jsonl")
    threads = results_of(folder, times, threads=4, name="threads.jsonl")
    nameless = results_of(folder, {"wide.tflite": [2.0] * 4}, name="nameless.jsonl")
    results = [emulated, unknown, threads, nameless]
    found = estimate(good(), "pixel-8", ["head"], results=results, programs=[folder / "good.tflite"])
    assert not only(found).is_measured
    assert only(found).step == only(estimate(good(), "pixel-8", ["head"])).step
    assert len(found.notes) == 4
    for words in ("emulated", "Nobody's", "one thread", "--program wide.tflite"):
        assert any(words in note for note in found.notes)


def test_files_that_are_none_are_refused(folder: Path) -> None:
    good_results = results_of(folder, {"good.tflite": [2.0] * 4}).read_text()
    for text, words in (
        ("no json\n", "no JSON"),
        ('{"type": "step"}\n', "no result file"),
        (good_results.replace('"ms": [[', '"ms": [["'), "no JSON"),
        (good_results.replace('"is_emulator"', '"emulated"'), "not as it should be"),
        (good_results.replace("2.0", "-2.0"), "not as it should be"),
    ):
        (folder / "bad.jsonl").write_text(text)
        with pytest.raises(UsageError, match=words):
            read_measured([folder / "bad.jsonl"], [folder / "good.tflite"])
    with pytest.raises(UsageError, match=r"cannot read .*none\.jsonl"):
        read_measured([folder / "none.jsonl"], [])
    with pytest.raises(UsageError):
        read_measured([], [folder / "none.tflite"])


def test_a_device_of_ones_own(tmp_path: Path) -> None:
    text = """
name = "mine"
title = "Mine"
models = ["Mine*"]
kind = "phone"
soc = "unknown"
abi = "arm64-v8a"
target = "litert-2"
memory_gib = 4
cores = [{ kind = "Cortex-A75", count = 2, ghz = 2.0 }]
sources = ["its box"]
"""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert estimate(wide(), str(path), ["head"]).device == device(str(path))
    for old, new, words in (
        ("Cortex-A75", "Cortex-A57", "Did you mean"),
        ("2.0 }", "2000 }", "GHz"),
        ("memory_gib = 4", "", "memory_gib"),
        ("cores =", "core =", "unknown field 'core'"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(UsageError, match=words):
            device(str(path))


def test_a_table_without_times_of_this_processor_is_refused() -> None:
    for asked in ("gpu", "litert-2/x86-64", "gpu,litert-2"):
        with pytest.raises(UsageError, match="litert-2"):
            setting("pixel-8", asked)
    assert setting("pixel-8", "tflite-2.16")[1].name == "tflite-2.16"
    with pytest.raises(UsageError, match="Did you mean 'pixel-8'"):
        setting("pixel8", None)
