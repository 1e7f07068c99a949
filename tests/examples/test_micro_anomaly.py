"""An autoencoder on a microcontroller: pumps and their faults, and what a first hour teaches."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import pocketune
from converter.runtime.engines import engine
from examples import micro_anomaly
from scripts.micro import rehearsal
from scripts.micro.building import lacking
from scripts.micro.machines import found, measured

SOURCES = Path(os.environ["MICRO_SOURCES"]) if "MICRO_SOURCES" in os.environ else None
MISSING = engine("tflm").missing() or lacking(SOURCES)
on_a_board = pytest.mark.skipif(MISSING is not None, reason=f"boards: {MISSING} (MICRO_SOURCES)")


def test_a_pump_is_the_same_each_time_and_its_faults_show() -> None:
    of = micro_anomaly.machine(3)
    usual, again = (micro_anomaly.rows([of], 20, 0) for _ in range(2))
    np.testing.assert_array_equal(usual, again)
    shaft = int(of.shaft // (micro_anomaly.RATE / 2 / micro_anomaly.BANDS))
    louder = micro_anomaly.rows([of], 20, 0, "imbalance") - usual
    assert louder[:, shaft].mean() > 0.1
    worn = micro_anomaly.rows([of], 20, 0, "bearing") - usual
    assert worn[:, 20:].mean() > 0.05


@pytest.mark.parametrize(("usual", "faulty", "area"), [([1, 2], [3, 4], 1), ([3, 4], [1, 2], 0), ([1, 1], [1, 1], 0.5)])
def test_the_area_is_how_often_a_fault_stands_above(usual: list[int], faulty: list[int], area: float) -> None:
    assert micro_anomaly.detection(np.array(usual), np.array(faulty)) == area


def test_a_machine_is_learned_in_its_first_hour() -> None:
    program = micro_anomaly.program(micro_anomaly.pretrained(machines=6, each=60, epochs=20))
    with pocketune.TrainingSession(program.data) as session:
        before = found(session, 100)
        hour = micro_anomaly.rows([micro_anomaly.machine(100)], micro_anomaly.HOUR, 1009)
        for row in hour:
            session.train(row[None], row[None], 0.03)
        assert found(session, 100).mean() > before.mean() + 0.1


@on_a_board
@pytest.mark.parametrize("example", [rehearsal.anomaly, pytest.param(rehearsal.wake_word, marks=pytest.mark.slow)])
def test_an_emulated_board_learns_what_the_wheel_does(example: rehearsal.Example) -> None:
    assert SOURCES is not None
    taken = example(SOURCES)
    assert taken.difference < 1e-5
    assert taken.arena < 44_000


@pytest.mark.slow
@pytest.mark.skipif(engine("tflm").missing() is not None, reason="tflm is not installed")
def test_ten_machines_are_learned_in_the_stock_interpreter() -> None:
    before, after = measured(10)
    assert after.mean() > before.mean() + 0.1
