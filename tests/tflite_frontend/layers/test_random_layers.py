"""Random layers of Keras in .tflite files: gradients are what the stock interpreter's outputs change by."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tflite_frontend.layers.judged_layers import judge, written

pytest.importorskip("tensorflow")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 4))
def test_gradients_are_those_of_differences(first: int, tmp_path: Path) -> None:
    wrong = {seed: judge(tmp_path / f"{seed}.tflite") for seed in written(range(first, first + 4), tmp_path)}
    assert not any(wrong.values()), wrong
