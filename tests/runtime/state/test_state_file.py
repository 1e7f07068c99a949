"""State files: the format, every kind of damage, and the session on top."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.program.manifest import FrozenWeight, Identity, ModelTensor, StateTensor
from converter.runtime import State, StateSpec, StateWarning, TrainingSession, save_state
from converter.runtime.state.saved import previous_of, restore_state
from converter.runtime.state.state_file import DamagedState, ForeignState, pack, unpack
from converter.support.errors import NumericError, UsageError
from tests.runtime.programs import BATCH, EXAMPLES, program

HASH = "ab" * 32
#: What two programs of one model have in common.
IDENTITY = Identity("adam", "0" * 16, "1" * 16, (FrozenWeight("conv/w", (3, 3), "2" * 16),), "", 1)
TENSORS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "größe/b": np.array([-1.5], np.float32),
    "count": np.array([3], np.int32),
    "on": np.array([True, False]),
}
KINDS = (
    StateTensor("w", (2, 3), "float32", slot=False, model=ModelTensor("w", (3, 2), (["transpose", [1, 0]],))),
    StateTensor("größe/b", (1,), "float32", slot=False, model=ModelTensor("größe/b", (4,), (["slice", 0, 0, 1],))),
    StateTensor("count", (1,), "int32", slot=True),
    StateTensor("on", (2,), "bool", slot=False),
)
STATE = State(StateSpec(HASH, KINDS, IDENTITY), 7, TENSORS)
FILLED = (StateTensor("a", (40, 50), "float32", slot=False), StateTensor("b", (3,), "float32", slot=False))
SPEC = StateSpec(HASH, FILLED)
OTHER = StateSpec("cd" * 32, (StateTensor("c", (3,), "float32", slot=False),))


def filled(value: float) -> dict[str, np.ndarray]:
    return {"a": np.full((40, 50), value, np.float32), "b": np.full(3, value, np.float32)}


def value_at(path: Path) -> float:
    """The one number that fills a whole state: a state made of two would show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StateWarning)
        values = np.unique(np.concatenate([a.reshape(-1) for a in restore_state(path, SPEC)[0].values()]))
    assert len(values) == 1
    return float(values[0])


def read_by_the_book(data: bytes) -> dict[str, Any]:
    """Reads the file as docs/state-file.md says, with nothing of ours."""
    magic, version, length = struct.unpack("<8sII", data[:16])
    assert (magic, version) == (b"PTSTATE\n", 2)
    text = data[48 : 48 + length]
    assert hashlib.sha256(data[:16] + text).digest() == data[16:48]
    header = json.loads(text)
    start = (48 + length + 63) // 64 * 64
    tensors = {}
    for entry in header["tensors"]:
        raw = data[start + entry["offset"] :][: entry["nbytes"]]
        assert entry["offset"] % 64 == 0
        assert hashlib.sha256(raw).hexdigest() == entry["sha256"]
        dtype = {"float32": "<f4", "int32": "<i4", "bool": "?"}[entry["dtype"]]
        tensors[entry["name"]] = np.frombuffer(raw, dtype).reshape(entry["shape"])
    return header | {"tensors": tensors}


def packed_in_version_1(program: str, generation: int, tensors: dict[str, np.ndarray]) -> bytes:
    """A file as Pocketune wrote it before states had an identity; version 2 has more fields in its header."""
    entries, data = [], b""
    for name, array in tensors.items():
        data += bytes(-len(data) % 64)
        raw = array.tobytes()
        place = {"offset": len(data), "nbytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        entries.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape), **place})
        data += raw
    header = {"format": "pocketune-state/1", "program": program, "generation": generation, "tensors": entries}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    fixed = struct.pack("<8sII", b"PTSTATE\n", 1, len(text))
    head = fixed + hashlib.sha256(fixed + text).digest() + text
    return head + bytes(-len(head) % 64) + data


def test_the_format_is_as_documented() -> None:
    data = pack(STATE)
    header = read_by_the_book(data)
    assert (header["format"], header["program"], header["generation"]) == ("pocketune-state/2", HASH, 7)
    for tensors in (header["tensors"], unpack(data).tensors):
        assert list(tensors) == list(STATE.tensors)
        for name, array in STATE.tensors.items():
            np.testing.assert_array_equal(tensors[name], array)
    assert {n: a.dtype for n, a in unpack(data).tensors.items()} == {n: a.dtype for n, a in STATE.tensors.items()}


def test_the_format_does_not_change() -> None:
    """Phones hold such files: other bytes for the same state need a new format version."""
    assert hashlib.sha256(pack(STATE)).hexdigest() == "c85cf1965b4c7103ea369fb5f409c49802da8ef86380fa2bc06090790dc11d24"


def test_a_file_of_version_1_is_read() -> None:
    data = packed_in_version_1(HASH, 7, TENSORS)
    assert hashlib.sha256(data).hexdigest() == "47abec6410932af629a5efd50aa60fb16f86ed2ee6bfb923242079e22347259f"
    state = unpack(data)
    assert (state.version, state.generation, state.spec.program, state.spec.identity) == (1, 7, HASH, None)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(state.tensors[name], array)


def test_every_flipped_bit_is_found() -> None:
    data = pack(STATE)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(DamagedState):
            unpack(bytes(damaged))


def test_every_missing_or_added_byte_is_found() -> None:
    data = pack(STATE)
    for length in range(len(data)):
        with pytest.raises(DamagedState):
            unpack(data[:length])
    with pytest.raises(DamagedState, match="1 bytes follow"):
        unpack(data + b"\0")


@given(st.binary(max_size=200))
def test_noise_is_damaged(noise: bytes) -> None:
    for data in (noise, b"PTSTATE\n" + noise):
        with pytest.raises(DamagedState):
            unpack(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.quick
@settings(max_examples=200)
@given(
    st.sampled_from(
        ["format", "program", "generation", "tensors", "name", "dtype", "shape", "offset", "nbytes", "more"]
    )
    | st.sampled_from(["identity", "model", "slot"]),
    json_values,
)
def test_nonsense_with_a_good_digest_is_refused_or_read(field: str, value: Any) -> None:
    """A header that another program wrote: no error of Python's, no memory for what is not there."""
    data = pack(STATE)
    length = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[48 : 48 + length])
    (header if field in header or field == "more" else header["tensors"][1])[field] = value
    text = json.dumps(header).encode()
    fixed = struct.pack("<8sII", b"PTSTATE\n", 2, len(text))
    head = fixed + hashlib.sha256(fixed + text).digest() + text
    start = (48 + length + 63) // 64 * 64
    with contextlib.suppress(DamagedState, ForeignState):
        unpack(head + bytes(-len(head) % 64) + data[start:])


@pytest.mark.parametrize(("version", "advice"), [(3, "update Pocketune"), (0, "older Pocketune")])
def test_another_format_is_not_called_damaged(version: int, advice: str) -> None:
    data = bytearray(pack(STATE))
    struct.pack_into("<I", data, 8, version)
    length = struct.unpack_from("<I", data, 12)[0]
    data[16:48] = hashlib.sha256(data[:16] + data[48 : 48 + length]).digest()
    with pytest.raises(ForeignState, match=advice):
        unpack(bytes(data))


def test_generations(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert [save_state(path, SPEC, filled(i)) for i in (1, 2, 3)] == [1, 2, 3]
    assert value_at(path) == 3
    assert unpack(previous_of(path).read_bytes()).generation == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s", "s.previous"]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "missing"])
def test_the_older_generation_stands_in(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s"
    save_state(path, SPEC, filled(1))
    save_state(path, SPEC, filled(2))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"flipped": bytes(data), "cut": bytes(data[:-100]), "empty": b""}[damage])
    with pytest.warns(StateWarning, match="generation 1"):
        restore_state(path, SPEC)
    assert value_at(path) == 1
    # A save over the damaged file keeps the good older one until the new one is there.
    assert save_state(path, SPEC, filled(3)) == 2
    assert value_at(path) == 3
    assert unpack(previous_of(path).read_bytes()).generation == 1


def test_both_damaged(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for value in (1, 2):
        save_state(path, SPEC, filled(value))
    for file in (path, previous_of(path)):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"cut short or altered; s\.previous: .* cut short"):
        restore_state(path, SPEC)
    assert save_state(path, SPEC, filled(3)) == 1
    assert value_at(path) == 3


def test_another_programs_state_is_neither_read_nor_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_state(path, OTHER, {"c": np.ones(3, np.float32)})
    before = path.read_bytes()
    for call in (lambda: restore_state(path, SPEC), lambda: save_state(path, SPEC, filled(2))):
        with pytest.raises(UsageError, match="another program"):
            call()
    assert path.read_bytes() == before


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "thesis.tex"
    path.write_text("years of work")
    with pytest.raises(UsageError, match="not overwritten"):
        save_state(path, SPEC, filled(1))
    assert path.read_text() == "years of work"
    with pytest.raises(UsageError, match="no state file"):
        restore_state(path, SPEC)


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "s", tmp_path, ""):
        with pytest.raises(UsageError):
            save_state(path, SPEC, filled(1))
        with pytest.raises(UsageError):
            restore_state(path, SPEC)
    with pytest.raises(UsageError, match="there is no such state file"):
        restore_state(tmp_path / "s", SPEC)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_written(tmp_path: Path, value: float) -> None:
    path = tmp_path / "s"
    save_state(path, SPEC, filled(1))
    before = path.read_bytes()
    with pytest.raises(NumericError, match="not saved: b"):
        save_state(path, SPEC, filled(2) | {"b": np.array([1, value], np.float32)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_training_goes_on_in_another_session_of_either_export(tmp_path: Path, name: str, optimizer: str) -> None:
    x, y = EXAMPLES[name].data(BATCH)
    states = {s: program(name, s, optimizer=optimizer).data for s in ("variables", "stateless", "split")}
    for first, second in (("variables", "stateless"), ("stateless", "variables"), ("split", "split")):
        path = tmp_path / first
        with TrainingSession(states[first], xnnpack=False) as a, TrainingSession(states[second], xnnpack=False) as b:
            for _ in range(3):
                a.train(x, y, learning_rate=0.01)
            a.save(path)
            b.train(x, y, learning_rate=0.5)
            b.infer(x)
            b.restore(path)
            assert a.evaluate(x, y) == b.evaluate(x, y)
            np.testing.assert_array_equal(a.infer(x), b.infer(x))
            # The optimizer's slots went along, or Adam would now differ.
            assert [a.train(x, y, learning_rate=0.01) for _ in range(3)] == [
                b.train(x, y, learning_rate=0.01) for _ in range(3)
            ]
            for tensor, array in a.state().items():
                np.testing.assert_array_equal(array, b.state()[tensor])


def test_a_foreign_or_damaged_state_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "s"
    x, y = EXAMPLES["mlp"].data(BATCH)
    with TrainingSession(program("cnn").data) as other:
        other.save(path)
    with TrainingSession(program().data) as session:
        session.train(x, y)
        before = session.state()
        with pytest.raises(UsageError, match="another program"):
            session.restore(path)
        with pytest.raises(UsageError, match="another program"):
            session.save(path)
        session.save(tmp_path / "own")
        (tmp_path / "own").write_bytes((tmp_path / "own").read_bytes()[:-1])
        with pytest.raises(UsageError, match="cut short"):
            session.restore(tmp_path / "own")
        wrong = {name: np.zeros(99, array.dtype) for name, array in before.items()}
        kinds = tuple(StateTensor(t.tensor, (99,), t.dtype, t.slot) for t in session.manifest.state_tensors)
        save_state(tmp_path / "wrong", StateSpec(session.manifest.graph_hash, kinds), wrong)
        with pytest.raises(UsageError, match="not those of this program"):
            session.restore(tmp_path / "wrong")
        for name, array in session.state().items():
            np.testing.assert_array_equal(array, before[name])
