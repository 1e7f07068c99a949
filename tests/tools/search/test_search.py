"""A small search from the command line to a program: costs are those of the build, the recipe builds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import optax
import pytest

import converter
from converter.backend import builtins as tfl
from converter.backend.costs.step_cost import product_cost, step_cost
from converter.backend.targets import target
from converter.cli.recipe import Recipe, read_recipe
from converter.cli.recipe_text import recipe_text
from converter.ir import Builder, TensorType
from converter.support.errors import UsageError
from converter.tools.search.subject import Subject
from tests.cli.conftest import FACTORIES, Run, next_command, run  # noqa: F401  a fixture
from tests.cli.factories import good, wide

ROWS = 160


def data(path: Path) -> Path:
    x = np.random.default_rng(0).standard_normal((ROWS, 6), np.float32)
    np.savez(path, x=x, y=x[:, :3].argmax(1).astype(np.int32), group=np.arange(ROWS) % 4)
    return path


def test_a_whole_search(run: Run, tmp_path: Path) -> None:  # noqa: F811
    data(tmp_path / "rows.npz")
    arguments = ["--data", "rows.npz", "--batch", "4", "--samples", "24", "--epochs", "2", "--seeds", "2"]
    arguments += ["--rates", "0.1", "--ratios", "0.5,1", "--generations", "1", "--workers", "0", "--minutes", "0"]
    arguments += ["--budget", "step=100%"]
    found = run("search", f"{FACTORIES}:good", *arguments, "--json").json
    assert found == json.loads((tmp_path / "found/search.json").read_text())
    by_name = {scheme["name"]: scheme for scheme in found["schemes"]}
    assert {"full", "head", "bias-only", "last-2", "pockengine"} <= by_name.keys()
    assert "lora" in found["refused"]
    assert found["limits"] == {"step_cost": 1.0 * by_name["full"]["costs"]["step_cost"]}

    built = run("build", "--recipe", "found/recipe.toml", "--trust", "--json", "--out", "p.tflite").json
    costs = by_name[found["found"]]["costs"]
    assert {**costs, "file_bytes": built["costs"]["file_bytes"]} == built["costs"]
    assert built["manifest"]["update"]["scheme"] in ("rules", found["update"])
    # A combination costs what its program says, too.
    combined = next(scheme for scheme in found["schemes"] if scheme["predicted_gain"] is not None)
    program = converter.build(good(), loss="sparse_categorical_crossentropy", update=combined["update"], batch=4)
    assert combined["costs"] == {name: value for name, value in program.costs.items() if name != "file_bytes"}

    journal = (tmp_path / "found/journal.jsonl").read_text()
    told = run("search", f"{FACTORIES}:good", *arguments)
    assert (tmp_path / "found/journal.jsonl").read_text() == journal
    assert json.loads((tmp_path / "found/search.json").read_text()) == found
    assert f"found: {found['found']}" in told.out
    assert all(sentence in told.out for sentence in found["sentences"][:1])
    assert run(*next_command(told)).code == 0

    told = run("search", f"{FACTORIES}:good", *arguments, "--named")
    assert ("gains alone" in told.out, "proposals" in told.out) == (False, False)
    assert (tmp_path / "found/journal.jsonl").read_text() == journal

    refused = run("search", f"{FACTORIES}:good", *arguments, "--epochs", "3")
    assert (refused.code, "another search" in refused.err) == (2, True)
    refused = run("search", f"{FACTORIES}:good", *arguments, "--budget", "memory=2KB")
    assert (refused.code, "the head alone takes" in refused.err) == (2, True)


def test_what_is_frozen_may_be_int8(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """In all candidates that leave something to it, and in the recipe where the found one is among these."""
    rows = np.load(data(tmp_path / "rows.npz"))
    np.savez(tmp_path / "calibration.npz", x=rows["x"][:32], y=rows["y"][:32])
    arguments = ["--data", "rows.npz", "--batch", "4", "--samples", "24", "--epochs", "1", "--seeds", "2"]
    arguments += ["--rates", "0.1", "--ratios", "1", "--generations", "0", "--workers", "0", "--frozen", "int8"]
    arguments += ["--calibration", "calibration.npz", "--budget", "memory=head+10%", "--affordable"]
    found = run("search", f"{FACTORIES}:wide", *arguments, "--json").json
    assert found["frozen"] == "int8"
    by_name = {scheme["name"]: scheme["costs"] for scheme in found["schemes"]}
    int8 = {"frozen": "int8", "calibration": (rows["x"][:32], rows["y"][:32])}
    for update, how in (("full", {}), ("head", int8)):
        program = converter.build(wide(), "sparse_categorical_crossentropy", update=update, batch=4, **how)
        assert by_name[update] == {name: value for name, value in program.costs.items() if name != "file_bytes"}
    built = run("build", "--recipe", "found/recipe.toml", "--trust", "--json", "--out", "p.tflite").json
    assert by_name[found["found"]]["resident_bytes"] == built["costs"]["resident_bytes"]

    np.savez(tmp_path / "other.npz", x=rows["x"][32:64], y=rows["y"][32:64])
    refused = run("search", f"{FACTORIES}:wide", *arguments, "--calibration", "other.npz")
    assert (refused.code, "another search" in refused.err) == (2, True)
    # Of a scheme with nothing in int8 the recipe does not ask for it: `build` would refuse.
    monkeypatch.setattr(Subject, "frozen", lambda self, update: "float32")
    run("search", f"{FACTORIES}:wide", *arguments)
    read = read_recipe(tmp_path / "found/recipe.toml")
    assert (read.get("update"), read.get("frozen"), read.get("calibration")) == (found["update"], None, None)


def test_rows_that_the_model_does_not_take(run: Run, tmp_path: Path) -> None:  # noqa: F811
    x = np.zeros((ROWS, 6), np.float32)
    for wrong, y, said in ((x, np.full(ROWS, 7), "labels go from 0 to 2"), (x[:, :5], np.zeros(ROWS, int), "[160, 5]")):
        np.savez(tmp_path / "rows.npz", x=wrong, y=y.astype(np.int32))
        refused = run("search", f"{FACTORIES}:good", "--data", "rows.npz", "--batch", "4", "--workers", "0")
        assert refused.code == 2
        assert said in refused.err
        assert not (tmp_path / "found").exists()


def test_arguments_that_are_wrong(run: Run, tmp_path: Path) -> None:  # noqa: F811
    np.savez(tmp_path / "x.npz", x=np.zeros((8, 6), np.float32))
    for arguments, said in (
        ([], "--data ROWS.npz"),
        (["--data", "x.npz"], "y is missing"),
        (["--data", str(data(tmp_path / "rows.npz")), "--rates", "0.1,a"], "--rates: expected numbers"),
        (["--data", "rows.npz", "--ratios", "2"], "--ratios: expected numbers"),
        (["--data", "rows.npz", "--budget", "step=3ms"], "not in time"),
        (["--data", "rows.npz", "--measure"], "the table of litert-2 holds no times"),
        (["--data", "rows.npz", "--warmup", "2"], "warmup: expected a share"),
    ):
        refused = run("search", f"{FACTORIES}:good", *arguments)
        assert refused.code == 2
        assert said in refused.err


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UsageError, match=r"search needs scipy.*: pip install 'pocketune\[search\]'"):
        converter.search(good(), (np.zeros((8, 6), np.float32), np.zeros(8, np.int32)))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--ray needs .*ray.*: pip install 'pocketune\[ray\]'"):
        converter.search(good(), (np.zeros((8, 6), np.float32), np.zeros(8, np.int32)), ray="local")


def test_a_recipe_is_read_as_it_was_written(tmp_path: Path) -> None:
    update = {'a [[]0]/"k"\\': 0.125, "é/*": "bias", "head": {"lora": 4, "train_a": False}}
    loss = {"name": "huber", "delta": 0.5}
    said = {"batch": 4, "update": update, "loss": loss, "signatures": ("train",)}
    recipe = Recipe(model="nets/m.keras", options=said)
    (tmp_path / "found").mkdir()
    file = tmp_path / "found" / "recipe.toml"
    file.write_text(recipe_text(recipe, Path("found"), "made\nby a test"))
    read = read_recipe(file)
    assert Path(str(read.model)).resolve() == (tmp_path / "nets/m.keras").resolve()
    assert read.options == said


def test_the_cost_of_a_step_is_that_of_its_operators() -> None:
    b, table = Builder(), target("litert-2/x86-64")
    x = b.input("x", TensorType((4, 8, 16)))
    product = b(tfl.BatchMatmul(), x, b.constant(np.ones((16, 24), np.float32)))
    b.graph.outputs = {"y": b(tfl.Exp(), b(tfl.Reshape((32, 24)), product))}
    expected = table.product(8, 16, 24, constant=True, times=4) + table.moved("delegated", 2 * 4 * 32 * 24)
    assert step_cost(b.graph, table) == round(expected)
    assert product_cost(b.graph, table) == round(table.product(8, 16, 24, constant=True, times=4))
    halves = [converter.build(good(), batch=8, micro_batch=rows, check=False).costs["step_cost"] for rows in (8, 4)]
    assert halves[1] > halves[0]


def test_a_rate_that_runs_in_the_program_is_refused_before_a_scheme_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subject, "__call__", lambda *_: pytest.fail("a scheme was priced"))
    fading = optax.adam(optax.linear_schedule(1e-2, 0.0, 10))
    with pytest.raises(UsageError, match="search tries learning rates"):
        converter.search(good(), (np.zeros((40, 6), np.float32), np.arange(40, dtype=np.int32) % 3), optimizer=fading)


def test_ctrl_c_gives_the_best_so_far(tmp_path: Path) -> None:
    """Of a process of its own, which was asked for far more than it gets the time for."""
    data(tmp_path / "rows.npz")
    command = [sys.executable, "-m", "converter", "search", f"{FACTORIES}:good", "--data", "rows.npz", "--batch", "4"]
    command += ["--epochs", "400", "--seeds", "3", "--workers", "1", "--minutes", "0"]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit that it is ignored
    try:
        search = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert search.stderr is not None
    for line in search.stderr:
        if "best so far" in line:
            break
    search.send_signal(signal.SIGINT)
    said, heard = search.communicate(timeout=120)
    assert search.returncode == 0, heard
    assert "stopping with the best so far" in heard
    found = json.loads((tmp_path / "found/search.json").read_text())
    assert found["cut"]
    assert f"found: {found['found']}" in said
    assert (tmp_path / "found/recipe.toml").exists()
