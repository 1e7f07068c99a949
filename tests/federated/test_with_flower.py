"""Servers that lie or go away (`faulty`, `runs.hostile`), and mods and strategies (`strategies`) of Flower's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.federated.flower import all_went, needs_flower
from tests.federated.people import built, rows_of, write_rows


@pytest.mark.quick
@needs_flower
@pytest.mark.parametrize("module", ["faulty", pytest.param("runs.hostile", marks=pytest.mark.slow)])
def test_a_hostile_server_at_worst_ends_the_round(module: str, tmp_path: Path) -> None:
    built("head").write(tmp_path / "program.tflite")
    x, y = rows_of(0)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    all_went(f"tests.federated.{module}", tmp_path)


@needs_flower
def test_strategies_and_mods_of_flower(tmp_path: Path) -> None:
    for name, program in {
        "plain": built("head"),
        "adam": built("head", "adam"),
        "prox": built("head", proximal=0.01),
    }.items():
        program.write(tmp_path / f"{name}.tflite")
    write_rows(tmp_path, 3)
    all_went("tests.federated.strategies", tmp_path)
