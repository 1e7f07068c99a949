"""Packed weights in a file: the same numbers as the interpreter's, and never a file that is not what it should be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.driver.program import Program
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.support.logs import listening
from tests.backend.schedule.process import STEADY_HEAP
from tests.runtime.programs import BATCH, EXAMPLES, program


def everything(session: TrainingSession, path: Path) -> list[np.ndarray]:
    """What a session says and keeps over all its signatures."""
    x, y = EXAMPLES["cnn"].data(3 * BATCH + 1)
    said = [np.array(session.train(x[:BATCH], y[:BATCH], 0.1)), np.array(session.train(x[:3], y[:3], 0.1))]
    session.save(path)
    said += [np.array(session.fit(x, y, epochs=2, progress=False)["loss"]), session.infer(x)]
    said += [np.array(list(session.evaluate(x, y).values())), *session.state().values()]
    session.restore(path)
    said += [session.infer(x)]
    session.reset()
    return [*said, session.infer(x)]


@pytest.mark.parametrize("from_bytes", [True, False])
@pytest.mark.parametrize(
    ("state", "micro_batch"), [*((s, m) for s in ("variables", "stateless") for m in (None, 2)), ("split", 2)]
)
def test_the_same_as_the_interpreter(state: str, micro_batch: int | None, from_bytes: bool, tmp_path: Path) -> None:
    built = converter.build(
        EXAMPLES["cnn"].model(), optimizer=optax.adam(1.0), update={"conv2*": 0.5, "head*": 1.0}, batch=BATCH,
        state=state, micro_batch=micro_batch,
    )  # fmt: skip
    file = built.data if from_bytes else built.write(tmp_path / "m.tflite")
    with TrainingSession(file) as session:
        expected = everything(session, tmp_path / "a.state")
    for _ in range(2):  # the second session finds the file
        with TrainingSession(file, weight_cache=tmp_path / "cache") as session:
            actual = everything(session, tmp_path / "b.state")
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_two_sessions_at_once(tmp_path: Path) -> None:
    x, y = EXAMPLES["mlp"].data(BATCH)
    built = program("mlp", update="head").data
    with TrainingSession(built, weight_cache=tmp_path) as a, TrainingSession(built, weight_cache=tmp_path) as b:
        first = a.train(x, y, 0.5)
        assert a.train(x, y, 0.5) != first
        assert b.train(x, y, 0.5) == first


def test_threads_that_listen_leave_the_output_where_it_was() -> None:
    """What LiteRT says while it opens programs is taken away from the whole process, and given back to it."""
    inside, left = threading.Event(), threading.Event()

    def first() -> None:
        with listening():
            inside.wait(0.2)  # the other one comes now, unless it has to wait
        left.set()

    def second() -> None:
        with listening():
            inside.set()
            left.wait(0.2)

    before = [os.fstat(number).st_ino for number in (1, 2)]
    threads = [threading.Thread(target=function) for function in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [os.fstat(number).st_ino for number in (1, 2)] == before


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    built, (x, _) = program("mlp", update="head").data, EXAMPLES["mlp"].data(BATCH)
    with TrainingSession(built, weight_cache=tmp_path) as session:
        expected = session.infer(x)
    (packed,) = tmp_path.iterdir()
    good = packed.read_bytes()
    flipped = bytearray(good)
    flipped[-9] ^= 64
    for bad in (bytes(flipped), good[: len(good) // 2], b""):
        packed.write_bytes(bad)
        with TrainingSession(built, weight_cache=tmp_path) as session:
            np.testing.assert_array_equal(session.infer(x), expected)
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [good]


def test_another_program_has_another_file(tmp_path: Path) -> None:
    x, _ = EXAMPLES["mlp"].data(BATCH)
    (tmp_path / "mine.txt").write_text("left alone")
    for update in ("head", {"layers/0/*": 1.0}):
        built = converter.build(EXAMPLES["mlp"].model(), update=update, batch=BATCH).data
        with TrainingSession(built) as plain, TrainingSession(built, weight_cache=tmp_path) as session:
            np.testing.assert_array_equal(session.infer(x), plain.infer(x))
    assert len(list(tmp_path.glob("*.packed"))) == 2
    assert (tmp_path / "mine.txt").read_text() == "left alone"


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="xnnpack=False"):
        TrainingSession(program().data, xnnpack=False, weight_cache=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=re.escape(f"cannot use the folder {tmp_path / 'file'}")):
        TrainingSession(program().data, weight_cache=tmp_path / "file")
    with pytest.raises(UsageError, match="damaged"):
        TrainingSession(program().data[:-1], weight_cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


_ANONYMOUS = """
import ctypes, re, sys
from pathlib import Path
import numpy as np
from converter.runtime import TrainingSession
from converter.support.logs import listening

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

x, y = np.ones((8, int(sys.argv[2])), np.float32), np.zeros(8, np.int32)
# What imports freed would hide what the session takes: much, where they had to compile their sources.
ctypes.CDLL(None).malloc_trim(0)
before = anonymous()
with TrainingSession(sys.argv[1], weight_cache=sys.argv[3] if len(sys.argv) > 3 else None) as session:
    session.train(x, y)
    for name in {"evaluate", "infer"} & set(session.manifest.signatures):
        session.evaluate(x, y) if name == "evaluate" else session.infer(x)
    print(anonymous() - before)
"""


def wide() -> Program:
    """A frozen layer of 16 MB below a small one that trains."""
    rng = np.random.default_rng(0)
    params = {
        "wide": rng.standard_normal((1024, 4096)).astype(np.float32),
        "head": rng.standard_normal((4096, 4)).astype(np.float32),
    }

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params["wide"]) @ params["head"]

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, 1024), np.float32)])
    return converter.build(model, update={"head": 1.0}, batch=8, check=False)


def test_weights_are_packed_once_and_not_into_memory(tmp_path: Path) -> None:
    path = wide().write(tmp_path / "wide.tflite")
    plain, *cached = (grown(path, 1024, cache) for cache in (None, tmp_path / "cache", tmp_path / "cache"))
    assert plain > 3 * (16 << 20)
    # Not what it packed in either, which is as large.
    assert all(growth < 12 << 20 for growth in cached)


def test_rows_have_no_copy_in_python(tmp_path: Path) -> None:
    """The interpreter's arena and LiteRT's buffer hold one each."""
    features, nbytes = 1 << 19, 16 << 20
    head = np.zeros((128, 4), np.float32)
    model = jax_frontend.Model(
        lambda params, x: x.reshape(8, -1, 128).mean(axis=1) @ params["head"], {"head": head},
        inputs=[jax.ShapeDtypeStruct((8, features), np.float32)],
    )  # fmt: skip
    program = converter.build(model, batch=8, signatures=("train",), check=False)
    assert grown(program.write(tmp_path / "rows.tflite"), features, tmp_path / "cache") < 2.5 * nbytes


def grown(path: Path, features: int, cache: Path | None) -> int:
    """Anonymous bytes that a session of a process of its own takes, its rows aside."""
    arguments = [str(path), str(features), *([] if cache is None else [str(cache)])]
    command = [sys.executable, "-c", _ANONYMOUS, *arguments]
    return int(subprocess.run(command, capture_output=True, check=True, env=os.environ | STEADY_HEAP).stdout)
