"""Tables fit 80 columns, and of long ones the head's layers are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from converter.cli.tables import Results
from converter.program.manifest import Certificate, UpdateRow
from converter.support.folding import fold
from tests.cli.conftest import FACTORIES, Run
from tests.runtime.programs import program


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def tables(out: str) -> dict[str, list[str]]:
    """The lines of each table by its heading, the columns' names first."""
    found, lines = {}, out.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("\u2500"):
            rest = lines[number + 1 :]
            found[lines[number - 1].split()[0]] = [lines[number - 1], *rest[: rest.index("") if "" in rest else None]]
    return found


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "m.tflite"),
        ("profile", "m.tflite", "--steps", "1"),
        ("ops",),
        ("estimate", f"{FACTORIES}:good", "--device", "pixel-8"),
    ],
    ids=lambda command: command[0],
)
def test_narrow_tables_break_no_word_and_wide_ones_have_more_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    if "m.tflite" in command:
        Path("m.tflite").write_bytes(program("mlp").data)
    narrow = tables(run(*command).out)
    monkeypatch.setenv("COLUMNS", "400")
    wide = tables(run(*command, "--wide").out)
    assert narrow.keys() == wide.keys()
    for heading, lines in narrow.items():
        firsts = {line.split()[0] for line in wide[heading] if line[:1].strip()}
        assert max(map(len, lines)) <= 80
        assert {line.split()[0] for line in lines if line[:1].strip()} <= firsts  # no name is broken
    more = [heading for heading in wide if len(wide[heading][0].split()) > len(narrow[heading][0].split())]
    assert bool(more) == (command[0] != "profile"), more


def test_certificates_fit(capsys: pytest.CaptureFixture[str]) -> None:
    errors = {"loss_error": 1e-7, "update_error": 2e-7, "output_error": None, "floor": 1e-3}
    said = {
        "on": "hexagon:SM8650",
        "precision": "float16",
        "steps": 10,
        "engine": "a long name",
        "version": "2.3.4",
        "driver": "a driver",
        "date": "2026-11-26",
    }
    certificate = Certificate(ok=True, whole=True, failures=(), **said, **errors)  # type: ignore[arg-type]
    Results().certificates([certificate])
    (lines,) = tables(capsys.readouterr().out).values()
    assert lines[1].split()[:2] == ["hexagon:SM8650", "certified"]
    assert max(map(len, lines)) <= 80
    assert "a long name" not in lines[1]


def test_frozen_layers_in_a_row_are_one_and_the_head_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [UpdateRow("stem/w", 1.0, "asked for")]
    rows += [UpdateRow(f"layers/{i}/{name}", 0.0, "not chosen") for i in range(23) for name in "wb"]
    names = (f"{chr(97 + i % 26)}{i}/w" for i in range(50))
    rows += [UpdateRow(name, 1.0, "asked for") for name in names] + [UpdateRow("head/w", 1.0, "asked for")]
    Results().update_table(rows)
    out = capsys.readouterr().out
    lines = tables(out)["parameter"]
    assert [line.split()[0] for line in lines[1:3]] == ["stem/w", "23"]
    assert lines[2].split() == ["23", "layers", "frozen", "not", "chosen"]
    assert lines[-1].split()[0] == "head/w"
    assert any("(24 more: --wide)" in line for line in lines)
    assert len(lines) == 31
    assert "52 of 98 parameters train" in out
    Results(wide=True).update_table(rows)
    assert len(tables(capsys.readouterr().out)["parameter"]) == 99


def test_adapters_of_many_layers_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [UpdateRow("embed/w", 0.0, "not chosen")]
    for i in range(24):
        for name in ("q", "v"):
            weight = f"layers.{i}.{name}.weight"
            rows += [UpdateRow(weight, 0.0, "its adapter trains")]
            rows += [UpdateRow(f"{weight}/lora_{which}", 1.0, f"LoRA of {weight}") for which in "ab"]
    rows += [UpdateRow("layers.24.q.weight/lora_a", 1.0, "LoRA of layers.24.q.weight")]
    Results().update_table(rows)
    lines = [line.split() for line in tables(capsys.readouterr().out)["parameter"]][1:]
    assert [line[0] for line in lines] == [
        "25",  # the embedding, and q of all layers
        "layers.0-24.q.weight/lora_a",
        "layers.0-23.q.weight/lora_b",
        "layers.0-23.v.weight",
        "layers.0-23.v.weight/lora_a",
        "layers.0-23.v.weight/lora_b",
    ]
    assert lines[1][1:] == ["all", "LoRA", "of", "layers.0-24.q.weight"]


def test_rows_that_differ_by_more_than_a_number_stay() -> None:
    rows = [("a.0.w", "1"), ("a.1.w", "2"), ("a.2.w", "1"), ("a.4.w", "1"), ("b", ""), ("c_7", "a.7"), ("a.5.w", "1")]
    assert fold(rows) == [(("a.0,2,4-5.w", "1"), (0, 2, 3, 6)), *((rows[i], (i,)) for i in (1, 4, 5))]
