"""Tables of one's own devices: what was measured stands in them, and they are targets."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from converter.backend.targets import tables, target
from converter.support.errors import UsageError
from converter.tools.measure import cases, figures, fitted, machine, measured_table
from converter.tools.measure.programs import timed_programs
from tests.steps import stepped

X86, ARM64 = "litert-2/x86-64", "litert-2"
#: The builtin of some forms.
BUILTINS = {
    "batch_matmul": "BATCH_MATMUL",
    "conv.runtime": "CONV_2D",
    "fully_connected.int8": "FULLY_CONNECTED",
    "conv.dynamic": "CONV_2D",
    "compare": "GREATER",
    "packed": "BATCH_MATMUL",
}


def test_what_was_measured_is_in_the_table(tmp_path: Path) -> None:
    like = target(X86)
    measured = {"batch_matmul": 1.5, "delegated": 2.5, "delegated beyond": 3.5, "not a form of the table": 4.5}
    # Of an operand of n bytes: 1.25 n at 1, and 2.25 n at 3.
    measured |= {"compare beyond": 1.0, "compare + select beyond": (1.25 * 1 + 2.25 * 3) / 3.5}
    file = tmp_path / "mine.toml"
    found = {form: {"one": 0.9 * cost, "another": cost, "third": 2 * cost} for form, cost in measured.items()}
    file.write_text(fitted(tables()[like.name], found, "mine", "ns", "a machine", cache_bytes=1 << 24))
    beyond = {**like.per_byte_beyond, "delegated": 3.5, "compare": 1.0, "select": pytest.approx(3.0)}
    assert target(str(file)) == replace(
        like,
        name="mine",
        description="ns, one thread, on a machine",
        per_mac={**like.per_mac, "batch_matmul": 1.5},
        per_byte={**like.per_byte, "delegated": 2.5},
        per_byte_beyond=beyond,
        cache_bytes=1 << 24,
        shared_cache_bytes=1 << 24,
    )


def test_what_was_not_measured_is_told_in_the_new_unit(tmp_path: Path) -> None:
    """Nanoseconds beside a table of instructions: half of one each, as far as is known."""
    like, file = target(ARM64), tmp_path / "phone.toml"
    found = {form: {"": like.per_mac[form] * factor} for form, factor in (("batch_matmul", 0.5), ("conv.int8", 0.25))}
    found["delegated"] = {"": like.per_byte["delegated"] * 0.6}
    file.write_text(fitted(tables()[ARM64], found, "phone", "ns", "a phone"))
    phone = target(str(file))
    assert phone.unit == "ns"
    assert phone.per_mac["batch_matmul"] == pytest.approx(0.5 * like.per_mac["batch_matmul"])
    assert phone.per_mac["conv.int8"] == pytest.approx(0.25 * like.per_mac["conv.int8"])
    assert phone.per_mac["conv.constant"] == pytest.approx(0.5 * like.per_mac["conv.constant"])
    assert phone.per_byte_beyond["select"] == pytest.approx(0.5 * like.per_byte_beyond["select"])
    assert (phone.per_operator, phone.run) == (0.5 * like.per_operator, 0.5 * like.run)
    assert (phone.lanes, phone.depth, phone.cache_bytes) == (like.lanes, like.depth, like.cache_bytes)


def test_limits_of_a_runtime_stay(tmp_path: Path) -> None:
    file = tmp_path / "phone.toml"
    file.write_text(fitted(tables()["tflite-2.16"], {"batch_matmul": {"": 0.1}}, "phone", "ns", "a phone"))
    assert tomllib.loads(file.read_text())["limits"] == dict(target("tflite-2.16").limits)


def test_every_figure_of_a_table_is_measured() -> None:
    """But those of `run`, `per_operator` and what a kernel computes at once."""
    like = target(X86)
    table = tomllib.loads(fitted(tables()[X86], figures([(case, 1.0) for case in cases()], like), "mine", "ns", "here"))
    for section in ("per_mac", "per_byte", "per_byte_beyond"):
        known = getattr(like, section)
        assert [form for form, cost in table[section].items() if cost == known[form]] == []


def test_this_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.FOLDER, str(tmp_path / "tables"))
    monkeypatch.setattr(machine, "_SECONDS", 0.0)
    file = measured_table()
    found, written = target(str(file)), file.stat().st_mtime_ns
    assert found.unit == "ns"
    assert found.per_mac["batch_matmul"] < found.per_mac["conv.runtime"]
    assert measured_table(None) == file
    assert file.stat().st_mtime_ns == written


@pytest.mark.parametrize("other", ["gpu", "tflite-2.14", "mine.toml"])
def test_this_machine_is_no_other(other: str) -> None:
    with pytest.raises(UsageError, match=f"not of {other}"):
        measured_table(other)


def test_programs_run_the_operators_of_their_cases() -> None:
    """In a training that goes on as the one without: next to nothing is added to its loss."""
    chosen = [next(case for case in cases() if case.form == form) for form in BUILTINS]
    programs = timed_programs(chosen, target(X86))
    x, y = np.full((1, 1), 0.5, np.float32), np.zeros((1, 1), np.float32)
    losses = []
    for timed in programs:
        codes = [getattr(node.op, "op", node.op).code for node in timed.program.signatures["train"].nodes]
        if timed.case is not None:
            alone = [getattr(n.op, "op", n.op).code for n in programs[0].program.signatures["train"].nodes]
            more = {code: codes.count(code) - alone.count(code) for code in set(codes)}
            assert more[BUILTINS[timed.case.form]] == timed.repeats >= 1
        assert {"train", "evaluate", "infer"} <= timed.program.manifest.signatures.keys()  # the app asks for them
        losses.append(stepped(timed.program, [(x, y)] * 3, 0.1).losses)
    np.testing.assert_allclose(losses[0], [0.25 * (1 - 0.05) ** (2 * n) for n in range(3)], rtol=1e-5)
    for others in losses[1:]:
        np.testing.assert_allclose(others, losses[0], rtol=0.05)
        assert others != losses[0]


def test_operators_are_counted_as_often_as_they_run() -> None:
    """The kernel that has no constants runs at least eight times, one with constants of its own at most sixteen."""
    repeats = {t.name: t.repeats for t in timed_programs(cases(), target(ARM64)) if t.case is not None}
    assert len(repeats) == len(cases())
    assert min(repeats.values()) >= 1
    small = next(n for name, n in repeats.items() if "compare" in name and "beyond" not in name)
    assert small >= 8
