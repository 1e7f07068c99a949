"""The C++ of saved states on this machine: the bytes of Python's files, and power that fails at any byte."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import converter
import jax_frontend
from converter.runtime import TrainingSession
from converter.tools.micro.body import add_of
from converter.tools.micro.export import export_c
from tests.runtime.engines.micro_nets import NETS
from tests.tools.micro import recorded

HERE = Path(__file__).parent
with_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
FLAGS = ("-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror")
NAME = 'a "name"\\ of ü'


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slots, a count that is one number, rows added up, and names and labels that JSON and C++ escape."""
    net = NETS["mlp-elu"]()
    params = {(NAME if name == "head" else name): value for name, value in net.params.items()}

    def apply(given: Any, x: Any) -> Any:
        return net.apply({("head" if name == NAME else name): value for name, value in given.items()}, x)

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, *net.shape), np.float32)])
    settings = {"loss": "mse", "optimizer": "adam", "update": {"layer0*": 0, "*": 1}, "batch": 4, "micro_batch": 1}
    settings["labels"] = [NAME, "\0", "sha256", "d"]
    path = tmp_path_factory.mktemp("program") / "p.tflite"
    converter.build(model, target="tflm", check=False, **settings).write(path)
    return path


@pytest.fixture(scope="module")
def states(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of states.cc."""
    return compiled(program, tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
def recorded_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of states.cc over what a board ran."""
    return compiled(recorded.program(), tmp_path_factory.mktemp("recorded"))


def compiled(program: Path | bytes, folder: Path, *flags: str) -> Path:
    """Return states.cc over an exported program, with the interpreter left out."""
    made = export_c(program, folder)
    adds = " ".join(f"void {add_of(name)}() {{}}" for name in made.operators)
    (folder / "stub/tensorflow/lite/micro").mkdir(parents=True)
    (folder / "stub/tensorflow/lite/micro/micro_mutable_op_resolver.h").write_text(
        '#include "tensorflow/lite/micro/micro_op_resolver.h"\nnamespace tflite {\n'
        f"template <int n> struct MicroMutableOpResolver : MicroOpResolver {{ {adds} }};\n}}\n"
    )
    places = [f"-I{folder / 'src'}", f"-I{folder / 'stub'}", f"-I{HERE / 'stub'}"]
    sources = [*(folder / "src").glob("*.cc"), HERE / "states.cc"]
    subprocess.run(["g++", *FLAGS, *flags, *places, *map(str, sources), "-o", str(folder / "states")], check=True)
    return folder / "states"


def run(states: Path, *arguments: str) -> str:
    done = subprocess.run([str(states), *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def hexadecimal(session: TrainingSession) -> str:
    return " ".join(f"{byte:02x}" for array in session.state().values() for byte in array.tobytes())


@pytest.mark.quick
@with_compiler
@pytest.mark.parametrize("stride", [37, pytest.param(1, marks=pytest.mark.slow)])
def test_power_that_fails_at_any_byte_loses_no_state(stride: int, states: Path) -> None:
    assert int(run(states, "cuts", str(stride))) > 1000  # bytes of a state: every such one was where it failed


@with_compiler
def test_python_goes_on_with_what_was_saved_and_writes_the_same_bytes(
    program: Path, states: Path, tmp_path: Path
) -> None:
    run(states, "save", str(tmp_path / "board.state"))
    with TrainingSession(program) as session:
        session.save(tmp_path / "python.state")
        assert (tmp_path / "board.state").read_bytes() == (tmp_path / "python.state").read_bytes()
        assert session.restore(tmp_path / "board.state").generation == 1


@with_compiler
def test_what_python_saved_is_loaded_and_no_change_of_it(program: Path, states: Path, tmp_path: Path) -> None:
    with TrainingSession(program) as session:
        session.train(np.ones((4, 12), np.float32), np.ones((4, 4), np.float32))
        for _ in range(12):
            session.save(tmp_path / "p.state")
        assert run(states, "load", str(tmp_path / "p.state")) == (
            f"ok; generation 12; {hexadecimal(session)}; changed -1"
        )


@with_compiler
def test_damaged_states_with_mended_digests_end_nothing_and_change_nothing(program: Path, tmp_path: Path) -> None:
    """Under the sanitizers, which end the process at a byte that is read or written outside of its array."""
    with TrainingSession(program) as session:
        session.train(np.ones((4, 12), np.float32), np.ones((4, 4), np.float32))
        session.save(tmp_path / "p.state")
    states = compiled(program, tmp_path / "c", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    refused = int(run(states, "damaged", str(tmp_path / "p.state")))
    assert 10_000 < refused <= 20_000  # the rest: zeros over zeros, a generation that is another


def test_a_state_of_a_board_goes_on_in_python_as_on_the_phone() -> None:
    x, y = (part.reshape(-1, recorded.BATCH, *part.shape[1:]) for part in recorded.rows())
    with TrainingSession(recorded.program()) as session:
        for step in range(recorded.STEPS):
            session.train(x[step], y[step], recorded.RATE)
        ours = session.state()
        assert session.restore(recorded.HERE / "board.state").generation == 1
        for name, array in session.state().items():
            np.testing.assert_allclose(array, ours[name], atol=1e-6)
        session.train(x[-1], y[-1], recorded.RATE)
        ours = session.state()
        assert session.restore(recorded.HERE / "phone.state").generation == 2
        for name, array in session.state().items():
            np.testing.assert_allclose(array, ours[name], atol=1e-6)


@with_compiler
@pytest.mark.parametrize(("who", "generation"), [("board", 1), ("phone", 2)])
def test_what_a_board_and_a_phone_saved_is_loaded_by_the_board(
    who: str, generation: int, recorded_states: Path
) -> None:
    saved = recorded.HERE / f"{who}.state"
    with TrainingSession(recorded.program()) as session:
        session.restore(saved)
        expected = f"ok; generation {generation}; {hexadecimal(session)}; changed -1"
    assert run(recorded_states, "load", str(saved)) == expected


@with_compiler
@pytest.mark.parametrize("what", ["another program", "another version", "something else", "cut short", "nothing"])
def test_what_is_no_state_of_the_program_is_refused(what: str, program: Path, states: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    if what == "another program":
        other = tmp_path / "other.tflite"
        converter.build(
            NETS["mlp-elu"]().model(), loss="mse", optimizer="sgd", batch=1, target="tflm", check=False
        ).write(other)
        with TrainingSession(other) as session:
            session.save(path)
    else:
        with TrainingSession(program) as session:
            session.save(path)
            built = hexadecimal(session)
        data = path.read_bytes()
        path.write_bytes(
            {"another version": data[:8] + b"\3" + data[9:], "something else": b"hello" * 50, "cut short": data[:-1],
             "nothing": b""}[what]
        )  # fmt: skip
        expected = "holds the state of another program" if what == "something else" else "no saved state"
        said = run(states, "load", str(path))
        assert expected in said
        assert f"generation 0; {built};" in said
        return
    assert "holds the state of another program" in run(states, "load", str(path))


@with_compiler
def test_a_session_with_features_saves_and_loads(tmp_path: Path) -> None:
    net, path = NETS["keyword"](), tmp_path / "p.tflite"
    settings = {"update": "head", "optimizer": "sgd", "batch": 1, "signatures": ("train", "features")}
    converter.build(net.model(), target="tflm", check=False, **settings).write(path)
    assert int(run(compiled(path, tmp_path / "c"), "cuts", "97")) > 0
