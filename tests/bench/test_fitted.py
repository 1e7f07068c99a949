"""A table of the machine's own: what was measured stands in it, and it is a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fitted import fitted

from converter.targets import tables, target


def test_what_was_measured_is_in_the_table(tmp_path: Path) -> None:
    like = target("litert-2/x86-64")
    measured = {"batch_matmul": 1.5, "delegated": 2.5, "delegated beyond": 3.5, "not a form of the table": 4.5}
    # Of an operand of n bytes: 1.25 n at 1, and 2.25 n at 3.
    measured |= {"compare beyond": 1.0, "compare + select beyond": (1.25 * 1 + 2.25 * 3) / 3.5}
    file = tmp_path / "mine.toml"
    file.write_text(fitted(tables()[like.name], measured, file, "instructions", "a machine"))
    beyond = {**like.per_byte_beyond, "delegated": 3.5, "compare": 1.0, "select": pytest.approx(3.0)}
    assert target(str(file)) == replace(
        like,
        name="mine",
        description="instructions, one thread, on a machine",
        unit="instructions",
        per_mac={**like.per_mac, "batch_matmul": 1.5},
        per_byte={**like.per_byte, "delegated": 2.5},
        per_byte_beyond=beyond,
    )
