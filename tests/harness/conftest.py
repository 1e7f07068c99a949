"""A tiny program, a private adb server, and phones that are none."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import converter
from jax_frontend import Model
from scripts.harness.bench import Options, run_all
from scripts.harness.device import Device
from scripts.harness.devices.adb import Adb, AdbTransport, adb_binary
from scripts.harness.devices.phone import PACKAGE, Phone
from scripts.harness.log import ResultFile, read_results
from scripts.harness.plan import Bench, read_plan
from tests.harness.fake import AdbServer, FakeDevice

APP = f"{sys.executable} -m tests.harness.fake.app {{job}} {{files}} {{root}}"
#: Of the app on a fake phone; what it does is another matter.
BUILD = b"one build"
STEPS, ROUNDS = 4, 2


def build_program(
    path: Path, width: int = 16, batch: int = 8, micro_batch: int | None = None, state: str = "variables"
) -> Path:
    """A dense net: 12 features, 3 classes."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(width)
    params = {
        "a": jnp.asarray(rng.standard_normal((12, width)) / 3, "float32"),
        "b": jnp.asarray(rng.standard_normal((width, 3)) / 4, "float32"),
    }

    def apply(params: dict, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    model = Model(apply, params, [jax.ShapeDtypeStruct((1, 12), "float32")])
    program = converter.build(
        model,
        loss="sparse_categorical_crossentropy",
        optimizer="sgd",
        batch=batch,
        micro_batch=micro_batch,
        target="tflite-2.16",
        state=state,
    )
    program.write(path)
    return path


@pytest.fixture(scope="session", autouse=True)
def private_scratch(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes of the suite that run side by side are other people to each other: `local` is locked while in use."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("programs") / "tiny.tflite")


@pytest.fixture(scope="session")
def adb_server() -> Iterator[AdbServer]:
    with AdbServer(adb_binary()) as server:
        yield server


@pytest.fixture
def adb(adb_server: AdbServer, monkeypatch: pytest.MonkeyPatch) -> Adb:
    """A client of the private server, less patient than a user's."""
    for name, value in adb_server.environment.items():
        monkeypatch.setenv(name, value)
    # The app that the fake phone starts is a program of this checkout.
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setattr(Phone, "poll_seconds", 0.05)
    return Adb(adb_server.adb, patience=0.2)


MakeFake = Callable[[], FakeDevice]


@pytest.fixture
def make_fake(adb: Adb, adb_server: AdbServer) -> Iterator[MakeFake]:
    """Makes connected fake phones with the app on them; afterwards none of them may have had an error of its own."""
    with ExitStack() as stack:
        made: list[FakeDevice] = []

        def make() -> FakeDevice:
            fake = stack.enter_context(FakeDevice(app=APP, reboot_seconds=0.3, boot_seconds=0.2))
            fake.install(PACKAGE, BUILD)
            adb_server.connect(fake.serial)
            made.append(fake)
            return fake

        yield make
        for fake in made:
            adb.run("disconnect", fake.serial)
        assert [error for fake in made for error in fake.errors] == []


@pytest.fixture
def fake(make_fake: MakeFake) -> FakeDevice:
    return make_fake()


@pytest.fixture
def bench(program: Path, tmp_path: Path) -> Bench:
    """A plan of one variant."""
    return write_plan(tmp_path, program)


def write_plan(folder: Path, program: Path, more: str = "") -> Bench:
    """A short plan for a program."""
    path = folder / "tiny-plan.toml"
    path.write_text(
        f'programs = ["{program}"]\nrounds = {ROUNDS}\nsteps = {STEPS}\nwarmup = 1\ncheck_steps = 2\n'
        f"stall_seconds = 30\n{more}\n[cooling]\nseconds = 1\ncelsius = 1\n"
    )
    return read_plan(path)


def impatient(bench: Bench) -> Bench:
    """The same plan, which takes a silence of a second for a standstill."""
    return replace(bench, plan=replace(bench.plan, stall_seconds=1.0))


def phone_of(adb: Adb, fake: FakeDevice) -> Phone:
    return Phone(AdbTransport(adb, fake.serial))


def run(
    device: Device,
    bench: Bench,
    out: Path,
    *,
    resume: bool = False,
    retries: int = 0,
    allowed: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Exception | None, ResultFile | None]:
    """Runs a plan on one device: what ended it, and what stands in the file."""
    options = Options(out, "test", resume, allowed, retries)
    ended = run_all([device], bench, options, say)[device.name]
    (path,) = out.glob("*.jsonl")
    return ended[-1] if ended else None, read_results(path) if path.stat().st_size else None
