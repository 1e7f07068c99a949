"""Memory of the keyword net of MLPerf Tiny on a board, as predicted; what QEMU measures stands in the docs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import converter
from converter.program.file import read_program
from converter.tools.micro.entries import entries
from converter.tools.micro.joined import joined
from tests.runtime.engines.micro_nets import keyword_net


@pytest.mark.parametrize(
    ("update", "frozen", "kib"),
    [
        ("head", "int8", 25.6),  # of which plain inference takes 23.4
        ("head", "float32", 74),
        ({"point3/*": 1, "head/*": 1}, "int8", 94.5),
        ({"point3/*": 1, "head/*": 1}, "float32", 110),
        ("full", "float32", 480),
    ],
)
def test_a_step_of_the_keyword_net_takes(update: Any, frozen: str, kib: float) -> None:
    net = keyword_net()
    options: dict[str, Any] = {"update": update, "optimizer": "sgd", "batch": 1, "target": "tflm", "check": False}
    if frozen == "int8":
        options |= {"frozen": "int8", "calibration": {"x": net.rows(16, np.random.default_rng(0))}}
    program = converter.build(net.model(), loss="sparse_categorical_crossentropy", **options)
    assert program.costs["arena_bytes"] <= kib * 1024
    file = read_program(program.data)
    # Nothing is kept from one call to the next that an operator could make in passing.
    assert "BATCH_MATMUL" not in joined(file, entries(file)).operators
