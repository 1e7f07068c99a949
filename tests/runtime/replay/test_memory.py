"""The file of a memory: read without any of our code, bounded, refused where it is damaged or another program's."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converter
from converter.runtime import ReplayMemory, TrainingSession
from converter.support.errors import UsageError
from tests.runtime.programs import EXAMPLES, program


def opened(tmp_path: Path, **options: Any) -> tuple[TrainingSession, ReplayMemory]:
    session = TrainingSession(program().data)
    return session, ReplayMemory(tmp_path / "m", session.manifest, **options)


def read(path: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray, bytes]:
    """Header, class table and rows by docs/replay-memory.md alone."""
    data = path.read_bytes()
    magic, version, length = struct.unpack_from("<8sII", data)
    assert (magic, version) == (b"PTMEMRY\n", 2)
    assert hashlib.sha256(data[:16] + data[48 : 48 + length]).digest() == data[16:48]
    header = json.loads(data[48 : 48 + length])
    start = (48 + length + 63) // 64 * 64
    assert data[48 + length : start] == bytes(start - 48 - length)
    assert hashlib.sha256(data[start:]).hexdigest() == header["sha256"]
    tables = 2 * header["classes"]
    classes = np.frombuffer(data, "<u4", 2 * tables, start).reshape(2, -1, 2)
    row = np.dtype([("number", "<u8"), ("label", "<u4"), ("x", "<f4", 12), ("y", "<i4"), ("weight", "<f4")])
    rows = np.frombuffer(data, row, offset=start + 8 * tables + 8 * header["classes"])
    return header, classes, rows, data


def test_the_file_is_as_the_page_says_and_holds_the_rows_of_the_user(tmp_path: Path) -> None:
    session, memory = opened(tmp_path, limit=3000, held_out=0.25, seed=5)
    x, y = EXAMPLES["mlp"].data(80)
    weight = np.linspace(0, 1, 80).astype(np.float32)
    for part in (slice(0, 3), slice(3, 70), slice(70, 80)):
        session.remember(memory, x[part], y[part], weight[part])
        header, classes, rows, data = read(tmp_path / "m")
        assert len(data) <= 3000
    assert header["format"] == "pocketune-memory/2"
    assert (header["limit"], header["held_out"], header["seed"], header["seen"]) == (3000, 250_000, 5, 80)
    assert header["program"]["forward"] == session.manifest.identity.forward
    assert len(rows) == header["replay"]["rows"] + header["heldout"]["rows"] == sum(memory.capacity)
    assert len(set(rows["number"])) == len(rows)
    assert 0 not in rows["number"], "a row of weight 0 does not enter"
    for row in rows:
        np.testing.assert_array_equal(row["x"], x[row["number"]])
        assert (row["y"], row["label"]) == (y[row["number"]],) * 2
        assert row["weight"] == weight[row["number"]]
    assert classes[..., 0].sum() == 79
    replayed, held_out = memory.replayed(), memory.held_out()
    assert held_out is not None
    np.testing.assert_array_equal(np.concatenate([replayed[0], held_out[0]]), rows["x"])
    np.testing.assert_array_equal(np.concatenate([replayed[1], held_out[1]]), rows["y"])
    again = ReplayMemory(tmp_path / "m", session.manifest)
    assert (again.seen, again.counts(), again.capacity) == (80, memory.counts(), memory.capacity)
    np.testing.assert_array_equal(again.numbers()[0], memory.numbers()[0])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m"]


def test_a_share_is_kept_aside(tmp_path: Path) -> None:
    session, memory = opened(tmp_path, limit=1 << 20, held_out=0.2)
    session.remember(memory, *EXAMPLES["mlp"].data(1000))
    replay, held_out = memory.numbers()
    assert len(replay) + len(held_out) == 1000
    assert 150 < len(held_out) < 250


def test_in_one_call_or_many_the_file_is_the_same(tmp_path: Path) -> None:
    x, y = EXAMPLES["mlp"].data(150)
    files = []
    for name, size in (("a", 150), ("b", 1), ("c", 31)):
        session = TrainingSession(program().data)
        memory = ReplayMemory(tmp_path / name, session.manifest, limit=2500)
        for i in range(0, 150, size):
            session.remember(memory, x[i : i + size], y[i : i + size])
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("limit", [1800, 2000, 5000, 99_999])
@pytest.mark.parametrize("held_out", [0.0, 0.1, 0.5])
def test_the_file_never_grows_beyond_its_limit(limit: int, held_out: float, tmp_path: Path) -> None:
    session, memory = opened(tmp_path, limit=limit, held_out=held_out, seed=(1 << 53) - 1)
    x, y = EXAMPLES["mlp"].data(sum(memory.capacity) + 200)
    for part in np.array_split(np.arange(len(x)), 4):
        session.remember(memory, x[part], y[part])
        assert (tmp_path / "m").stat().st_size <= limit
    assert limit - (tmp_path / "m").stat().st_size < 600, "little is left unused"


def test_a_limit_without_room_says_how_much_is_needed(tmp_path: Path) -> None:
    for held_out in (0.0, 0.1, 0.5):
        with pytest.raises(UsageError, match="no room for rows of 68 bytes") as refused:
            opened(tmp_path, limit=100, held_out=held_out)
        least = int(str(refused.value).split()[-1])
        opened(tmp_path, limit=least, held_out=held_out)
        assert min(opened(tmp_path, limit=least, held_out=held_out)[1].capacity[: 2 if held_out else 1]) >= 1


@pytest.mark.parametrize(
    "at", ["magic", "version", "digest", "header", "padding", "table", "row", "end", "cut", "more"]
)
def test_a_damaged_file_is_refused_and_stays(at: str, tmp_path: Path) -> None:
    session, memory = opened(tmp_path, limit=3000)
    session.remember(memory, *EXAMPLES["mlp"].data(30))
    path = tmp_path / "m"
    data = bytearray(path.read_bytes())
    length = struct.unpack_from("<I", data, 12)[0]
    start = (48 + length + 63) // 64 * 64
    places = {
        "magic": 0,
        "version": 8,
        "digest": 20,
        "header": 60,
        "padding": 48 + length,
        "table": start,
        "row": start + 99,
    }
    if at == "cut":
        del data[-1]
    elif at == "more":
        data += b"\0"
    else:
        data[places.get(at, len(data) - 1)] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"altered|cut short|no replay memory|not as agreed"):
        ReplayMemory(path, session.manifest)
    assert path.read_bytes() == data


def test_another_file_is_refused(tmp_path: Path) -> None:
    session, memory = opened(tmp_path)
    session.remember(memory, *EXAMPLES["mlp"].data(30))
    session.save(tmp_path / "s")
    with pytest.raises(UsageError, match="no replay memory"):
        ReplayMemory(tmp_path / "s", session.manifest)
    with pytest.raises(UsageError, match="is a directory"):
        ReplayMemory(tmp_path, session.manifest)
    data = (tmp_path / "m").read_bytes()
    newer = bytearray(data[:16])
    newer[8] = 3
    length = struct.unpack_from("<I", data, 12)[0]
    digest = hashlib.sha256(newer + data[48 : 48 + length]).digest()
    (tmp_path / "m").write_bytes(newer + digest + data[48:])
    with pytest.raises(UsageError, match="format version 3"):
        ReplayMemory(tmp_path / "m", session.manifest)


def test_a_memory_of_another_program_is_refused_and_one_of_another_build_is_not(tmp_path: Path) -> None:
    session, memory = opened(tmp_path)
    x, y = EXAMPLES["mlp"].data(30)
    session.remember(memory, x, y)
    for name in ("cnn",):
        other = TrainingSession(program(name).data)
        with pytest.raises(UsageError, match=r"belongs to another program: the forward computation differs"):
            ReplayMemory(tmp_path / "m", other.manifest)
    values = converter.build(EXAMPLES["mlp"].model(), loss="mse", batch=4)
    with pytest.raises(UsageError, match=r"its rows are x float32\[12\], y int32\[\], .* those of this program"):
        ReplayMemory(tmp_path / "m", values.manifest)
    again = TrainingSession(program(optimizer="adam", state="stateless").data)
    same = ReplayMemory(tmp_path / "m", again.manifest)
    again.fit(x, y, memory=same, progress=False)
    assert same.seen == 60


def test_other_numbers_than_it_was_begun_with_are_refused(tmp_path: Path) -> None:
    session, memory = opened(tmp_path, limit=3000, held_out=0.25, seed=1)
    session.remember(memory, *EXAMPLES["mlp"].data(5))
    ReplayMemory(tmp_path / "m", session.manifest, limit=3000, held_out=0.25, keeps="inputs", seed=1)
    for name, value in {"limit": 4000, "held_out": 0.1, "keeps": "features", "seed": 0}.items():
        with pytest.raises(UsageError, match=f"was begun with {name} "):
            ReplayMemory(tmp_path / "m", session.manifest, **{name: value})  # type: ignore[arg-type]
    for name, value in {"limit": -1, "held_out": 0.6, "keeps": "all", "seed": 0.5}.items():
        with pytest.raises(UsageError, match=name):
            ReplayMemory(tmp_path / "n", session.manifest, **{name: value})  # type: ignore[arg-type]


def test_two_that_write_to_a_file_do_not_lose_rows_of_each_other(tmp_path: Path) -> None:
    session, memory = opened(tmp_path)
    x, y = EXAMPLES["mlp"].data(5)
    other = ReplayMemory(tmp_path / "m", session.manifest)
    session.remember(memory, x, y)
    before = (tmp_path / "m").read_bytes()
    with pytest.raises(UsageError, match="not as it was when it was opened"):
        session.remember(other, x, y)
    assert (tmp_path / "m").read_bytes() == before
    (tmp_path / "m").unlink()
    with pytest.raises(UsageError, match="not as it was when it was opened"):
        session.remember(memory, x, y)


def test_rows_of_a_label_are_forgotten(tmp_path: Path) -> None:
    session, memory = opened(tmp_path, limit=3000)
    session.remember(memory, *EXAMPLES["mlp"].data(100))
    counts = memory.counts()
    memory.forget(2)
    assert memory.counts() == {label: count for label, count in counts.items() if label != 2}
    again = ReplayMemory(tmp_path / "m", session.manifest)
    assert again.counts() == memory.counts()
    session.remember(again, *EXAMPLES["mlp"].data(100, seed=1))
    assert 2 in again.counts()


@pytest.mark.parametrize(("loss", "classes"), [("mse", 1), ("categorical_crossentropy", 4), ("binary_crossentropy", 1)])
def test_rows_without_a_label_go_through_a_plain_reservoir(loss: str, classes: int, tmp_path: Path) -> None:
    built = converter.build(EXAMPLES["mlp"].model(), loss=loss, batch=4)
    session = TrainingSession(built.data)
    memory = ReplayMemory(tmp_path / "m", session.manifest, limit=3000)
    x, labels = EXAMPLES["mlp"].data(100)
    session.remember(memory, x, np.eye(4, dtype=np.float32)[labels])
    header = json.loads((tmp_path / "m").read_bytes()[48:].split(b"\0")[0])
    assert header["classes"] == classes
    assert sum(memory.counts().values()) == memory.capacity[0]
    if classes == 4:
        assert max(memory.counts().values()) - min(memory.counts().values()) <= 1


def test_what_a_memory_cannot_be_for_is_refused(tmp_path: Path) -> None:
    silent = converter.build(EXAMPLES["mlp"].model(), batch=4, signatures=("train", "infer"))
    with pytest.raises(UsageError, match="no signature 'evaluate'"):
        ReplayMemory(tmp_path / "m", silent.manifest)
    assert ReplayMemory(tmp_path / "m", silent.manifest, held_out=0).capacity[1] == 0
    with pytest.raises(UsageError, match="no signature 'features'"):
        ReplayMemory(tmp_path / "m", silent.manifest, held_out=0, keeps="features")
