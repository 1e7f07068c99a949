"""Exported programs on a Cortex-M4 and a Cortex-M55 that QEMU emulates, beside LiteRT.

`MICRO_SOURCES=FOLDER pytest tests/tools/micro/test_boards.py`, where the folder holds checkouts of TensorFlow Lite
Micro and what it includes; see `scripts/micro/building.py`.
"""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import converter
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.tools.micro.entries import row_values
from converter.tools.micro.export import export_c
from scripts.micro.boards import BOARDS
from scripts.micro.building import firmware, lacking, symbols
from scripts.micro.device import Device, command
from tests.runtime.engines.micro_nets import NETS, image
from tests.tools.micro import hostile

SOURCES = Path(os.environ["MICRO_SOURCES"]) if "MICRO_SOURCES" in os.environ else None
pytestmark = pytest.mark.skipif(lacking(SOURCES) is not None, reason=f"boards: {lacking(SOURCES)} (MICRO_SOURCES)")
STEPS, CLOSE = 100, 1e-5
MODEL_HEADER = "c/src/pocketune_model.h"
NOT_FINITE = (np.nan, np.inf, -np.inf)
ON_FEATURES = ("train", "features", "evaluate", "infer")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "keyword": ("keyword", {"update": "head", "batch": 1, "optimizer": "sgd"}),
    "rows-added-up": ("mlp-elu", {"update": "full", "batch": 4, "micro_batch": 1, "optimizer": "adam"}),
    "features": ("keyword", {"update": "head", "batch": 1, "optimizer": "sgd", "signatures": ON_FEATURES}),
    "features-added-up": (
        "mlp-elu",
        {"update": "head", "batch": 4, "micro_batch": 2, "optimizer": "adam", "signatures": ON_FEATURES},
    ),
    "recurrent": ("recurrent", {"update": "head", "batch": 2, "optimizer": "sgd"}),
}
IN_INT8: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": (
        "image",
        {"update": "head", "batch": 1, "optimizer": "sgd", "signatures": ON_FEATURES, "frozen": "int8",
         "calibration": image().rows(8, np.random.default_rng(0))},
    ),
}  # fmt: skip
#: Steps that overshoot: a first loss is finite, and no weight behind it.
OVERSHOOTING: dict[str, tuple[str, dict[str, Any]]] = {
    "at-once": ("mlp-elu", {"update": "full", "batch": 1, "optimizer": optax.sgd(3e38)}),
    "added-up": ("mlp-elu", {"update": "full", "batch": 2, "micro_batch": 1, "optimizer": optax.sgd(3e38)}),
}


def device_of(board: str, case: str, folder: Path) -> tuple[Path, Device]:
    net, options = (CASES | IN_INT8 | OVERSHOOTING)[case]
    path = folder / "p.tflite"
    settings = {"loss": "sparse_categorical_crossentropy", "check": False, **options}
    converter.build((NETS | {"image": image})[net]().model(), target="tflm", **settings).write(path)
    made = export_c(path, folder / "c")
    assert SOURCES is not None
    sizes = {"ARENA_BYTES": made.arena, "VALUES_BYTES": 1 << 16, "RESULT_BYTES": 1 << 16}
    elf = firmware(folder / "c", SOURCES, BOARDS[board], SOURCES / board, sizes)
    device = Device(elf, BOARDS[board], folder)
    assert max(made.arenas.values()) < made.arena
    return path, device


def rows_of(path: Path, count: int, seed: int) -> list[list[np.ndarray]]:
    """Values of rows: numbers, and labels of four classes."""
    rng, specs = np.random.default_rng(seed), row_values(read_program(path).manifest)
    return [
        [
            rng.integers(0, 4, s.shape[1:]).astype(s.dtype) if s.dtype == "int32" else
            rng.standard_normal(s.shape[1:]).astype(np.float32)
            for s in specs
        ]
        for _ in range(count)
    ]  # fmt: skip


def stacked(rows: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.stack(values) for values in zip(*rows, strict=True)]


def state_of(path: Path, data: bytes) -> dict[str, np.ndarray]:
    found, at = {}, 0
    for tensor in read_program(path).manifest.state_tensors:
        array = np.frombuffer(data, tensor.dtype, int(np.prod(tensor.shape)), at).reshape(tensor.shape)
        found[tensor.tensor], at = array, at + array.nbytes
    return found


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_steps_are_those_of_litert(case: str, board: str, tmp_path: Path) -> None:
    path, device = device_of(board, case, tmp_path)
    batch = read_program(path).manifest.batch
    steps = [rows_of(path, batch, seed) for seed in range(STEPS)]
    judged, asked = rows_of(path, batch + 1, 1000), rows_of(path, 1, 1001)
    commands = [command("t", 2, rows) for rows in steps]
    commands += [command("e", 2, judged), command("i", 2, asked), command("d", 2), command("s", 2)]
    *trained, evaluated, inferred, dumped, saved = device.run(commands)
    assert {answer.status for answer in (*trained, evaluated, inferred, dumped, saved)} == {"ok"}
    with TrainingSession(path) as session:
        losses = [session.train(*stacked(rows)) for rows in steps]
        np.testing.assert_allclose([answer.floats()[0] for answer in trained], losses, atol=CLOSE)
        wanted = session.evaluate(*stacked(judged))
        np.testing.assert_allclose(evaluated.floats()[:2], [wanted["loss"], wanted["accuracy"]], atol=CLOSE)
        np.testing.assert_allclose(inferred.floats(), session.infer(stacked(asked)[0])[0], atol=CLOSE)
        for name, array in state_of(path, dumped.data).items():
            np.testing.assert_allclose(array, session.state()[name], atol=CLOSE)
    # What it saved goes on in Python, and what Python saves of that goes on there.
    with TrainingSession(path) as other:
        other.restore(tmp_path / "place-0.state")
        other.train(*stacked(steps[0]))
        other.save(tmp_path / "place-0.state")
        loaded, found = device.run([command("l", 2), command("d", 2)])
        assert loaded.status == "ok"
        assert all((a == other.state()[name]).all() for name, a in state_of(path, found.data).items())


def test_features_that_are_known_are_learned_from_as_rows(tmp_path: Path) -> None:
    path, device = device_of("cortex-m4", "features", tmp_path)
    rows = rows_of(path, 20, 0)
    known = device.run([*(command("k", 2, [row]) for row in rows), command("d", 2)])
    whole = device.run([*(command("a", 2, [row]) for row in rows), command("d", 2)])
    assert [answer.status for answer in known] == ["ok"] * 21
    assert [answer.data for answer in known] == [answer.data for answer in whole]


@pytest.mark.parametrize("board", BOARDS)
def test_neither_a_heap_nor_exceptions_are_in_it(board: str, tmp_path: Path) -> None:
    _, device = device_of(board, "keyword", tmp_path)
    found = symbols(device.elf)
    words = ("malloc", "calloc", "operator new", "sbrk", "__cxa_throw", "__gxx_personality", "typeinfo")
    assert [name for name in found if any(word in name for word in words)] == []


def test_wrong_rows_are_refused_and_change_nothing(tmp_path: Path) -> None:
    path, device = device_of("cortex-m4", "keyword", tmp_path)
    (x, y), *_ = rows_of(path, 1, 0)
    wrong = [[x, np.int32(4)], [x, np.int32(-1)], [np.full_like(x, np.nan), y]]
    commands = [command("d", 2), *(command("t", 2, [row]) for row in wrong), command("t", 2, [[x, y]] * 2)]
    before, *refused, after = device.run([*commands, command("d", 2)])
    assert [answer.status for answer in refused] == ["target", "target", "row", "rows"]
    assert before.data == after.data


def test_rows_of_what_is_int8_in_front_come_as_numbers_or_integers(tmp_path: Path) -> None:
    """Integers do not show that a number was NaN or infinite, so these are refused as they are made."""
    path, device = device_of("cortex-m4", "int8", tmp_path)
    rows = [row for (row,) in (rows_of(path, 1, seed) for seed in range(10))]
    scale, zero = re.findall(r"return quantized\(number, (\S+)f, (\S+)\)", (tmp_path / MODEL_HEADER).read_text())[0]
    stored = [np.clip(np.round(x / np.float32(scale)) + int(zero), -128, 127).astype(np.int8) for x, _ in rows]
    bad = [np.where(np.arange(x.size).reshape(x.shape) == 5, number, x) for x in (rows[0][0],) for number in NOT_FINITE]
    steps = [command("a", 2, [row]) for row in rows]
    *trained, before, refused, worse, unseen, after, as_numbers, as_integers = device.run(
        [*steps, command("d", 2)]
        + [command("a", 2, [[x.astype(np.float32), rows[0][1]]]) for x in bad[:2]]
        + [command("i", 2, [[bad[2].astype(np.float32)]]), command("d", 2)]
        + [command("i", 2, [[rows[3][0]]]), command("j", 2, [[stored[3]]])]
    )
    assert [answer.status for answer in (refused, worse, unseen)] == ["row"] * 3
    assert before.data == after.data
    assert as_numbers.data == as_integers.data
    with TrainingSession(path) as session:
        losses = [session.train(*stacked([row])) for row in rows]
        # LiteRT rounds int8 in another way than the reference kernels.
        np.testing.assert_allclose([answer.floats()[0] for answer in trained], losses, atol=1e-2)
        np.testing.assert_allclose(as_integers.floats(), session.infer(rows[3][0][None])[0], atol=1e-2)


@pytest.mark.parametrize(
    ("case", "stride"), [("keyword", 512), pytest.param("keyword", 16, marks=pytest.mark.slow), ("features", 512)]
)
def test_an_arena_that_is_too_small_by_any_amount_is_refused(case: str, stride: int, tmp_path: Path) -> None:
    """TFLM's kernels write where they get no room for what they keep: such arenas never come so far."""
    _, device = device_of("cortex-m4", case, tmp_path)
    header = (tmp_path / MODEL_HEADER).read_text()
    enough = int(re.findall(r"kArenaBytes = (\d+)", header)[0])
    sizes = [0, 1, 15, *range(16, enough, stride), *range(enough - 1024, enough, 16), enough]
    answers = device.run([command("b", 2, [[np.uint32(size)]]) for size in sizes])
    said = [answer.status for answer in answers]
    assert set(said) == {"ok", "arena too small"}
    first = said.index("ok")
    assert all(status == "ok" for status, size in zip(said, sizes, strict=True) if size >= sizes[first])
    assert device.arena_used <= sizes[first] <= enough


@pytest.mark.parametrize("case", OVERSHOOTING)
def test_a_step_behind_which_weights_are_not_finite_changes_nothing(case: str, tmp_path: Path) -> None:
    path, device = device_of("cortex-m4", case, tmp_path)
    (x, _), *_ = rows_of(path, 1, 0)
    with TrainingSession(path) as session:  # the label that the model takes for the least likely one
        y = np.int32(session.infer(100 * x[None])[0].argmin())
    rows = [[100 * x, y]] * read_program(path).manifest.batch
    evaluated, before, trained, after = device.run(
        [command("e", 2, rows), command("d", 2), command("t", 2, rows), command("d", 2)]
    )
    assert evaluated.status == "ok"
    assert np.isfinite(evaluated.floats()[0])
    assert trained.status == "not finite"
    assert before.data == after.data


@pytest.mark.parametrize("cuts", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_power_that_fails_while_it_saves_loses_no_state(cuts: int, tmp_path: Path) -> None:
    path, device = device_of("cortex-m4", "keyword", tmp_path)
    (row,), chance = rows_of(path, 1, 0), random.Random(0)
    turn = [command("t", 2, [row]), command("s", 2)]
    with TrainingSession(path) as session:
        states = [session.state()]  # behind each number of steps on the same row
        known = torn = 0
        for _ in range(cuts):
            process = device.start([command("l", 2), *turn * 200])
            time.sleep(chance.uniform(0.2, 1.2))
            process.kill()
            process.wait()
            saved = [answer for answer in device.answers()[1:] if len(answer.data) == 8] if device.began() else []
            known = max([known, *(int.from_bytes(answer.data, "little") for answer in saved if answer.status == "ok")])
            loaded, found = device.run([command("l", 2), command("d", 2)])
            generation = int.from_bytes(loaded.data, "little")
            assert known <= generation <= known + 1
            assert loaded.status == ("ok" if generation else "no state")
            torn += sum(not _is_state(path, tmp_path / f"place-{i}.state") for i in (0, 1))
            while len(states) <= generation:
                session.train(*stacked([row]))
                states.append(session.state())
            for name, array in state_of(path, found.data).items():
                np.testing.assert_allclose(array, states[generation][name], atol=1e-4)
            known = generation
        assert known > 0
        assert torn > 0 or cuts < 50  # some cuts did meet a save


@pytest.mark.slow
def test_damaged_programs_end_in_a_sentence_or_a_status() -> None:
    """With mended checksums: what `export-c` does not refuse stops no board in a fault."""
    options = {"loss": "sparse_categorical_crossentropy", "optimizer": "sgd", "update": "head", "batch": 1}
    built = converter.build(NETS["mlp-relu"]().model(), target="tflm", check=False, **options)
    assert SOURCES is not None
    found = hostile.cases(bytes(built.data), range(50), SOURCES)
    assert "wrong" not in found
    assert found["refused"] > 0
    assert found["ran"] > 0


def _is_state(path: Path, file: Path) -> bool:
    from converter.runtime.state.state_file import DamagedState, unpack

    try:
        unpack(file.read_bytes())
    except (DamagedState, FileNotFoundError):
        return False
    return True
