"""Opening a program: whatever is wrong with the file is said before LiteRT sees a byte of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from converter.program import checksum
from converter.program.file import read_program
from converter.program.flatbuffer.metadata import read_metadata
from converter.runtime import TrainingSession
from converter.runtime.interpreters.choice import open_engine
from converter.support.errors import UsageError
from tests.backend.stock import file, one_op
from tests.runtime.programs import BATCH, EXAMPLES, program

STATES = ("variables", "stateless", "split")


@pytest.mark.parametrize("state", STATES)
def test_what_was_written_is_what_is_read(tmp_path: Path, state: str) -> None:
    built = program("cnn", state, optimizer="adam", update=0.5)
    path = built.write(tmp_path / "m.tflite")
    opened = read_program(path)
    assert opened.data[:] == built.data == path.read_bytes()
    assert opened.manifest == built.manifest
    for tensor in opened.manifest.state_tensors:
        assert opened.initial(tensor).shape == tensor.shape
    assert [p.name for p in tmp_path.iterdir()] == ["m.tflite"]


@pytest.mark.parametrize("state", STATES)
def test_flipped_bits_are_found(state: str) -> None:
    data = program(state=state).data
    mark = data.index(checksum.BLANK[:17])
    rng = np.random.default_rng(0)
    positions = {
        0,
        4,
        8,
        len(data) - 1,
        mark,
        mark + 5,
        mark + 17,
        mark + 80,
        *rng.integers(0, len(data), 400).tolist(),
    }
    for position in positions:
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(rng.integers(8))
        with pytest.raises(UsageError, match="damaged"):
            TrainingSession(bytes(damaged))


def test_cut_and_longer_files_are_found() -> None:
    data = program().data
    for length in (0, 1, 7, 8, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(UsageError, match="damaged"):
            TrainingSession(data[:length])
    with pytest.raises(UsageError, match="damaged"):
        TrainingSession(data + b"\0")


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    with pytest.raises(UsageError, match=r"m\.tflite: there is no such file"):
        TrainingSession(path)
    with pytest.raises(UsageError, match="is a directory"):
        TrainingSession(tmp_path)
    for content in (b"", b"hello", b"PK\x03\x04", _inference_model()):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"m\.tflite: it is no Pocketune program.*exported has none"):
            TrainingSession(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"shape":[8,12]', b'"shape":[8,21]', "not what its manifest says"),
        (b'"pocketune/1"', b'"pocketune/2"', "update Pocketune"),
        (b'"role":"target"', b'"role":"gargle"', "role: expected one of"),
        (b'"batch":8', b'"batch":9', "no part of a batch of 9"),
        (b"pocketune.initial/layers/0/w", b"pocketune.initial/layers/0/v", "is missing or of another size"),
        (b"pocketune.manifest", b"pocketune.Manifest", "no manifest"),
    ],
)
def test_a_sealed_file_is_not_believed_either(old: bytes, new: bytes, message: str) -> None:
    data = program().data
    assert old in data
    mark = data.index(checksum.BLANK[:17])
    blank = (data[:mark] + checksum.BLANK + data[mark + len(checksum.BLANK) :]).replace(old, new)
    with pytest.raises(UsageError, match=message):
        TrainingSession(checksum.with_new_checksum(blank))


def test_writing_over_a_running_program_and_into_nowhere(tmp_path: Path) -> None:
    path = program().write(tmp_path / "m.tflite")
    with TrainingSession(path) as session:
        before = session.infer(np.ones((3, 12)))
        program("cnn").write(path)
        assert (session.infer(np.ones((3, 12))) == before).all()
        session.reset()
        path.unlink()
        assert (session.infer(np.ones((3, 12))) == before).all()


def test_what_was_checked_is_what_runs(tmp_path: Path) -> None:
    """Another program takes the name between the check and the interpreter."""
    path, descriptors = program().write(tmp_path / "m.tflite"), len(list(Path("/dev/fd").iterdir()))
    opened = read_program(path)
    program("cnn").write(path)
    engine = open_engine(opened)
    assert engine.entry("infer").input("x").shape == (8, 12)
    del opened, engine
    assert len(list(Path("/dev/fd").iterdir())) == descriptors


def test_the_initial_state_is_set_in_one_place() -> None:
    """`initialize` runs what the first call does: a step, `restore` and that assign each tensor once."""
    built = program("cnn", optimizer="adam")
    model = schema.Model.GetRootAs(built.data, 0)
    graphs = [model.Subgraphs(i) for i in range(model.SubgraphsLength())]
    assigns = schema.BuiltinOperator.ASSIGN_VARIABLE
    assert sum(codes(model, graph).count(assigns) for graph in graphs) == 3 * len(built.manifest.state_tensors)
    shapes = {t.shape for t in built.manifest.state_tensors}
    setting = next(g for g in graphs if g.Name().startswith(b"initialize/") and assigns in codes(model, g))
    assert codes(model, setting).count(schema.BuiltinOperator.PAD) <= len(shapes)


def codes(model: Any, graph: Any) -> list[int]:
    """The builtins of a subgraph's operators."""
    operators = (graph.Operators(i) for i in range(graph.OperatorsLength()))
    return [model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode() for operator in operators]


def test_metadata_is_small() -> None:
    """LiteRT copies all of it to the heap: weights are named in it, not held."""
    built = program("cnn", optimizer="adam", update=0.5)
    entries = read_metadata(built.data)
    assert {name.split("/")[0] for name in entries} >= {"pocketune.initial", "pocketune.frozen"}
    assert all(len(entry) == 4 for name, entry in entries.items() if "/" in name)


def test_opening_a_file_keeps_nothing_of_it_on_the_heap(tmp_path: Path) -> None:
    """Read by a process of its own: what this one has freed would hide what it takes."""
    size = 8 << 20
    data = program().data
    mark = data.index(checksum.BLANK[:17])
    padded = data[:mark] + checksum.BLANK + data[mark + len(checksum.BLANK) :] + bytes(size)
    path = tmp_path / "m.tflite"
    path.write_bytes(checksum.with_new_checksum(padded))
    code = (
        "import sys, re; from pathlib import Path; from converter.program.file import read_program\n"
        "def resident(): return int(re.search(r'RssAnon:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) << 10\n"
        "before = resident(); program = read_program(sys.argv[1]); print(resident() - before)"
    )
    grown = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout
    assert int(grown) < size // 4
    for target in (tmp_path / "no" / "m.tflite", tmp_path, ""):
        with pytest.raises(UsageError):
            program().write(target)
    assert [p.name for p in tmp_path.iterdir()] == ["m.tflite"]


def test_the_runtime_needs_no_compiler_to_be_loaded() -> None:
    """On a Raspberry Pi nobody wants to wait for JAX."""
    code = "import sys, converter.runtime; print([m for m in ('jax', 'optax', 'keras', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_steps_need_nothing_more_to_be_loaded(tmp_path: Path) -> None:
    """NumPy's generators take half a megabyte, and `fit` alone draws an order of rows; what writes models takes 7."""
    path, (x, y) = program().write(tmp_path / "m.tflite"), EXAMPLES["mlp"].data(BATCH)
    np.savez(tmp_path / "batch.npz", x=x, y=y)
    code = (
        "import sys, numpy as np; from converter.runtime import TrainingSession; data = np.load(sys.argv[2])\n"
        "with TrainingSession(sys.argv[1], weight_cache=sys.argv[3]) as session: session.train(data['x'], data['y'])\n"
        "more = ('numpy.random', 'converter.ir', 'converter.runtime.export')\n"
        "print([m for m in more if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, path, tmp_path / "batch.npz", tmp_path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def _inference_model() -> bytes:
    from converter.backend import builtins as tfl

    graph, _ = one_op(tfl.Add(), np.ones(3, np.float32), np.ones(3, np.float32))
    return file(graph)
