"""Every bad input ends with its exit code, a message that helps, and no file (the fixture `run` looks for one)."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

import converter.cli.app
from converter import Program
from converter.program.manifest import Manifest
from converter.support.errors import DeviceError, NumericError
from tests.cli import factories
from tests.cli.conftest import FACTORIES, Run

GOOD = f"{FACTORIES}:good"
USAGE, UNSUPPORTED, NUMERIC, DEVICE = 2, 3, 4, 5


def line_of(mark: str) -> int:
    """The line of the factories module that carries a mark."""
    lines = Path(factories.__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# line of {mark}"))


def archive(path: Path, layer: str) -> None:
    """A `.keras` file as Keras writes it, as far as one reads before loading."""
    config = {"class_name": layer, "module": "keras.layers", "registered_name": None, "config": {"name": "magic"}}
    model = {"class_name": "Sequential", "module": "keras", "registered_name": None, "config": {"layers": [config]}}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("metadata.json", "{}")
        file.writestr("config.json", json.dumps(model))
        file.writestr("model.weights.h5", b"")


def test_a_missing_file_is_named_with_its_neighbour(run: Run, tmp_path: Path) -> None:
    (tmp_path / "digits.keras").write_bytes(b"")
    ran = run("build", "digit.keras")
    assert ran.code == USAGE
    assert "no such file: digit.keras. Did you mean 'digits.keras'?" in ran.err


def test_a_truncated_archive(run: Run, tmp_path: Path) -> None:
    archive(tmp_path / "whole.keras", "Dense")
    whole = (tmp_path / "whole.keras").read_bytes()
    (tmp_path / "cut.keras").write_bytes(whole[: len(whole) // 2])
    ran = run("build", "cut.keras")
    assert ran.code == USAGE
    assert "cut.keras" in ran.err
    assert "truncated" in ran.err


def test_an_archive_that_holds_code(run: Run, tmp_path: Path) -> None:
    archive(tmp_path / "code.keras", "Lambda")
    ran = run("build", "code.keras")
    assert ran.code == UNSUPPORTED
    assert "layer 'magic'" in ran.err
    assert "Lambda" in ran.err


def test_inputs_that_do_not_fit_the_weights(run: Run) -> None:
    ran = run("build", f"{FACTORIES}:wrong_shape")
    assert ran.code == USAGE
    assert "factories.py:" in ran.err
    assert "dot_general" in ran.err
    assert "Traceback" not in ran.err


def test_a_keras_model_with_an_open_shape(run: Run) -> None:
    ran = run("build", f"{FACTORIES}:open_shape")
    assert ran.code == USAGE
    assert "needs a fixed size" in ran.err


def test_two_unsupported_operations_are_both_reported(run: Run) -> None:
    ran = run("build", f"{FACTORIES}:unsupported")
    assert ran.code == UNSUPPORTED
    for name in ("fft", "nextafter"):
        assert name in ran.err
        assert f"factories.py:{line_of(name)}" in ran.err


def test_weights_that_are_not_numbers(run: Run) -> None:
    ran = run("build", f"{FACTORIES}:nan")
    assert ran.code == NUMERIC
    assert "layers/1/w" in ran.err
    assert "NaN" in ran.err


def test_a_parameter_without_a_gradient(run: Run) -> None:
    ran = run("build", f"{FACTORIES}:no_gradient")
    assert ran.code == NUMERIC
    assert "stopped" in ran.err
    assert "no gradient" in ran.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--update", "sparce"], "unknown update scheme 'sparce'. Did you mean 'sparse'"),
        (["--update", "last-0"], "unknown update scheme 'last-0'"),
        (["--update", "lora-0"], "unknown update scheme 'lora-0'"),
        (["--loss", "msee"], "unknown loss 'msee'. Did you mean 'mse'"),
        (["--optimizer", "adamn"], "adamw"),
        (["--target", "litert-3"], "Did you mean 'litert-2'"),
        (["--state", "variable"], "'variable'"),
        (["--batch", "0"], "batch must be at least 1, got 0"),
        (["--batch", "many"], "--batch"),
        (["--out", "no/such/folder/x.tflite"], "there is no directory no/such/folder"),
        (["--out", "model.keras"], "must end with .tflite"),
        (["--update", "rules.toml"], "no such file: rules.toml"),
        (["--recipe", "recipe.toml"], "no such file: recipe.toml"),
        (["--loss", f"{FACTORIES}:absolut"], "has no 'absolut'. Did you mean 'absolute'?"),
        (["--optimizer", f"{FACTORIES}:not_callable"], "is not a function"),
        (["--y", "int64"], "expected a type such as int32"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_a_wrong_option(run: Run, flags: list[str], message: str) -> None:
    ran = run("build", GOOD, *flags)
    assert ran.code == USAGE
    assert message in ran.err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("digitz", "unknown model 'digitz'. Did you mean 'digits'?"),
        ("no_such_module:make", "there is no module 'no_such_module'"),
        (f"{FACTORIES}:god", "Did you mean 'good'?"),
        (f"{FACTORIES}:", "not of the form package.module:name"),
        (f"{FACTORIES}:needs", "needs the argument 'width'"),
        (f"{FACTORIES}:exits", "sys.exit(0)"),
        (f"{FACTORIES}:not_a_model", "cannot build a builtins.dict"),
    ],
)
def test_a_wrong_model(run: Run, model: str, message: str, examples: None) -> None:
    ran = run("build", model)
    assert ran.code == USAGE
    assert message in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = \nbatch = 3", "recipe.toml is not valid TOML"),
        ("modle = 'x.keras'", "recipe.toml: recipe: unknown field 'modle'. Did you mean 'model' or 'profile'?"),
        ("batch = '8'", "recipe.batch: expected an integer, got '8'"),
        ("optimizer = 3", "optimizer: expected a name"),
        ("loss = 3", "loss: expected a name"),
        ("loss = {name = 'huber', detla = 1.0}", "has no option 'detla'. Did you mean 'delta'"),
        (
            "optimizer = {name = 'adamw', weight_decai = 1.0}",
            "has no option 'weight_decai'. Did you mean 'weight_decay'",
        ),
        ("optimizer = {name = 'adamn', b1 = 0.5}", "unknown optimizer 'adamn'. Did you mean"),
        ("optimizer = {name = 'adamw', weight_decay = 'much'}", "adamw cannot compute with weight_decay = 'much'"),
        (
            "optimizer = {name = 'adamw', weight_decay = [1, 2, 3]}",
            "adamw cannot compute with weight_decay = [1, 2, 3]",
        ),
        ("optimizer = {name = 'adamw', b1 = 'x'}", "adamw cannot compute with b1 = 'x'"),
        ("optimizer = {name = 'apply_updates'}", "unknown optimizer 'apply_updates'"),
        ("optimizer = {name = '__loader__'}", "unknown optimizer '__loader__'"),
        ("optimizer = {name = 'tree.map'}", "unknown optimizer"),
        ("update = {}", "update: expected a name, or a table of rules"),
        ("update = {'*' = 1.5}", "rule '*': expected a fraction in 0..1"),
        ("update = {'*' = 'some'}", '"bias", "all", {lora = 8}, {skip_lora = 8} or {channels = 0.25}, got \'some\''),
        ("update = {'*' = {lora = 0}}", "rule '*': LoRA: rank must be a whole number of at least 1, got 0"),
        ("update = {'*' = {lora = 2, alfa = 8}}", "unknown option 'alfa'. Did you mean 'alpha'"),
        ("update = {'*' = {alpha = 8}}", "the rank is missing"),
        ("update = {'*/b' = {lora = 2}}", "LoRA adapts kernels, and it matches none, only layers/0/b (a bias)"),
        ("update = {'layers/2/weight' = 1}", "Did you mean 'layers/2/w'"),
        ("update = {'layers/*/k' = 'bias'}", "update rule 'layers/*/k' matches no parameter"),
    ],
)
def test_a_wrong_recipe(run: Run, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    ran = run("build", GOOD, "--recipe", "recipe.toml")
    assert ran.code == USAGE
    assert message in ran.err


@pytest.mark.parametrize(
    "text",
    [
        "optimizer = {name = 'subprocess:check_output', args = ['touch', 'executed']}",
        "optimizer = 'subprocess:check_output'",
        "optimizer = 'mine:make'",
        "loss = 'mine:make'",
        "loss = 'builtins:print'",
        "loss = {a = 'mine:make', b = 'mse'}",
        "model = 'mine:make'",
        "augment = 'mine:make'",
    ],
)
def test_a_recipe_runs_no_code_that_it_names(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath('executed').touch()\ndef make(*_): pass\n")
    ran = run("build", *([] if "model" in text else [GOOD]), "--recipe", "recipe.toml")
    assert ran.code == USAGE
    assert "names code" in ran.err
    assert "--trust" in ran.err
    assert not (tmp_path / "executed").exists()


def test_a_recipe_that_is_trusted_runs_what_it_names(run: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f"model = '{GOOD}'\noptimizer = {{name = '{FACTORIES}:adam', b1 = 0.5}}")
    assert run("build", "--recipe", "recipe.toml").code == USAGE
    assert run("build", GOOD, "--optimizer", "sgd", "--recipe", "recipe.toml", "--no-check").code == 0
    assert run("build", "--recipe", "recipe.toml", "--trust", "--no-check").code == 0


@pytest.mark.parametrize("kind", ["a FIFO", "a directory", "a device"])
@pytest.mark.parametrize("role", ["model", "recipe", "rules", "target", "samples", "program", "profiled"])
def test_what_is_no_file_is_not_opened(run: Run, tmp_path: Path, kind: str, role: str) -> None:
    suffix = {"model": "keras", "samples": "npz", "program": "tflite", "profiled": "tflite"}.get(role, "toml")
    path = tmp_path / f"x.{suffix}"
    {"a FIFO": os.mkfifo, "a directory": Path.mkdir, "a device": lambda p: p.symlink_to("/dev/zero")}[kind](path)
    arguments = {
        "model": ("build", path.name),
        "recipe": ("build", GOOD, "--recipe", path.name),
        "rules": ("build", GOOD, "--update", path.name),
        "target": ("build", GOOD, "--target", path.name),
        "samples": ("build", GOOD, "--frozen", "int8", "--calibration", path.name),
        "program": ("inspect", path.name),
        "profiled": ("profile", path.name),
    }[role]
    ran = run(*arguments)
    assert ran.code == USAGE
    assert kind in ran.err


def test_samples_that_are_larger_than_their_file(run: Run, tmp_path: Path) -> None:
    flags = ("build", GOOD, "--update", "head", "--frozen", "int8", "--calibration", "x.npz")
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1 << 22, 6), np.float32))
    assert "expands to" in run(*flags).err
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 6)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("x.npy", header.getvalue() + bytes(64))
    assert "more than it holds" in run(*flags).err


def test_a_recipe_of_any_size_is_not_read(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "recipe.toml").open("wb") as file:
        file.truncate(1 << 25)
    assert "more than any recipe" in run("build", GOOD, "--recipe", "recipe.toml").err


def test_an_exception_of_the_persons_code_is_shown_with_its_place(run: Run) -> None:
    ran = run("build", f"{FACTORIES}:broken")
    assert ran.code == USAGE
    assert f"factories.py:{line_of('broken')} in broken" in ran.err
    assert "LookupError: the weights [of] this model are lost" in ran.err
    assert "Traceback" not in ran.err
    assert "bug" not in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def make(:", "mine.py:1: SyntaxError"),
        ("\nimport no_such_library", "mine.py:2 in <module>\nModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemExit(3)", "sys.exit(3)"),
    ],
)
def test_a_module_that_cannot_be_imported(run: Run, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    ran = run("build", "mine:make")
    assert ran.code == USAGE
    assert message in ran.err


def test_control_c_ends_with_130(run: Run) -> None:
    ran = run("build", f"{FACTORIES}:interrupted")
    assert ran.code == 130
    assert "Traceback" not in ran.err


def test_a_failed_check_keeps_the_file_that_is_there(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(program: Program) -> None:
        raise NumericError("layers/0/w does not move")

    monkeypatch.setattr(Program, "check", check)
    (tmp_path / "good.tflite").write_bytes(b"of yesterday")
    ran = run("build", GOOD)
    assert ran.code == NUMERIC
    assert "layers/0/w does not move" in ran.err


def test_a_device_error_has_its_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(program: Program) -> None:
        raise DeviceError("the device went away")

    monkeypatch.setattr(Program, "check", check)
    assert run("build", GOOD).code == DEVICE


def test_a_bug_is_called_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter.cli.app, "build_program", Manifest.to_bytes)  # called as it cannot be
    ran = run("build", GOOD)
    assert ran.code == 1
    assert "This is a bug in Pocketune" in ran.err
    assert "Traceback" not in ran.err
    assert "Traceback" in run("build", GOOD, "--debug").err
    monkeypatch.setenv("POCKETUNE_DEBUG", "1")
    assert "Traceback" in run("build", GOOD).err


def test_a_damaged_program_is_not_inspected(run: Run, tmp_path: Path) -> None:
    assert run("build", GOOD, "--out", "p.tflite", "--no-check").code == 0
    whole = (tmp_path / "p.tflite").read_bytes()
    (tmp_path / "cut.tflite").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1
    (tmp_path / "flipped.tflite").write_bytes(flipped)
    (tmp_path / "other.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(64))
    for name in ("cut", "flipped", "other", "missing"):
        ran = run("inspect", f"{name}.tflite")
        assert ran.code == USAGE
        assert f"{name}.tflite" in ran.err
