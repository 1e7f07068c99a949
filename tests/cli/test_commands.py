"""build, inspect and schemes on models that are all right."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import converter
from converter.cli.recipe import ENTRIES
from converter.ir import INT32, TensorType
from converter.support.invocation import command
from tests.cli import factories
from tests.cli.conftest import FACTORIES, Run, next_command

GOOD = f"{FACTORIES}:good"
PARAMETERS = {f"layers/{i}/{part}" for i in range(3) for part in "wb"}


def test_report_says_which_form_each_layer_got_and_what_the_others_cost(run: Run) -> None:
    built = run("build", GOOD, "--batch", "4", "--report", "--json")
    assert built.code == 0
    report = json.loads(built.out)["report"]
    assert {choice["phase"] for choice in report} == {"forward", "backward"}
    for choice in report:
        assert choice["form"] not in choice["alternatives"]
        assert choice["cost"] <= min(choice["alternatives"].values(), default=choice["cost"])
    shown = run("build", GOOD, "--batch", "4", "--report").out
    assert all(choice["form"] in shown for choice in report)


def test_build_then_inspect(run: Run, tmp_path: Path) -> None:
    built = run("build", GOOD, "--update", "head", "--batch", "4")
    assert built.code == 0
    assert "layers/2/w" in built.out
    assert "in 2 of 6 parameters: layers/2/" in built.out
    assert len(built.out.splitlines()) <= 15
    for word in ("trains", "memory", "step", "time", "wrote"):
        assert any(line.startswith(word) for line in built.out.splitlines()), word
    wide = run("build", GOOD, "--update", "head", "--batch", "4", "--wide").out
    for title in ("What trains", "Costs of a training step"):
        assert title in wide
        assert title not in built.out
    assert "wrote good.tflite" in built.out
    assert "compile" in built.err
    assert "a model factory may print" in built.err
    assert [p.name for p in tmp_path.iterdir()] == ["good.tflite"]
    assert next_command(built) == ["inspect", "good.tflite"]
    shown = run(*next_command(built), "--wide")
    assert shown.code == 0
    for word in ("scheme head", "float32[4, 6]", "learning_rate", "initial_state", "frozen", "arena"):
        assert word in shown.out


@pytest.mark.quick
@pytest.mark.parametrize("path", [str(Path(sys.executable).parent), "/usr/bin:/bin", ""], ids=["own", "system", "none"])
def test_a_command_is_printed_as_it_can_be_run(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path)
    for folder in (tmp_path, Path(sys.executable).parents[2]):
        monkeypatch.chdir(folder)
        ran = subprocess.run(["/bin/sh", "-c", command("--version")], capture_output=True, text=True, check=True)
        assert ran.stdout.startswith("pocketune ")


@pytest.mark.parametrize("columns", [60, 80, 130])
def test_tables_that_are_piped_are_as_wide_as_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    widest = max(len(line) for line in run("ops").out.splitlines() if line.startswith(("─", " ─")))
    assert widest == columns


def test_a_program_is_printed_as_a_short_table() -> None:
    program = converter.build(factories.good(), update="head", batch=4, loss="mse", check=False)
    lines = repr(program).splitlines()
    assert str(program).splitlines() == lines
    assert [line.split()[0] for line in lines] == [
        *("program", "signatures", "trains", "optimizer", "loss", "batch", "memory"),
    ]
    assert "head, 27 numbers" in repr(program)
    assert max(map(len, lines)) <= 80


def test_a_softmax_that_is_joined_with_the_loss_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('loss = {name = "categorical_crossentropy", label_smoothing = 0.1}')
    flags = ("build", f"{FACTORIES}:probabilities", "--recipe", "recipe.toml", "--no-check")
    said = "categorical_crossentropy reads the logits before this softmax; `infer` gives what the model gives"
    assert said in run(*flags).out
    (note,) = (note for note in run(*flags, "--json").json["notes"] if note["status"] == "in the loss")
    assert note["why"] == said
    assert "in the loss" not in run("build", GOOD, "--no-check").out


def test_what_a_keras_model_does_in_training_alone_is_said(run: Run, tmp_path: Path) -> None:
    import keras

    body = [keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((4,)), *body])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.save(tmp_path / "model.keras")
    shown = run("build", "model.keras", "--no-check").out
    for words in ("norm", "fixed", "drop", "left out", "Dropout(rate=0.5)", "as compiled", "Adam of Keras"):
        assert words in shown
    said = run("build", "model.keras", "--no-check", "--json").json["notes"]
    assert {note["status"] for note in said} == {"as compiled", "fixed", "left out"}


def test_quiet_is_quiet_of_the_libraries_as_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "converter", "build", GOOD, "-q", "--out", str(tmp_path / "p.tflite")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert (ran.returncode, ran.stderr) == (0, "a model factory may print\n")
    assert "wrote" in ran.stdout


def test_json_is_all_there_is_on_stdout(run: Run, tmp_path: Path) -> None:
    flags = ("--json", "--state", "split", "--loss-scale", "1024", "--optimizer", "adam", "--out", "p.tflite")
    built = run("build", GOOD, *flags).json
    assert built["file"] == "p.tflite"
    assert built["checked"] is True
    assert built["costs"]["file_bytes"] == (tmp_path / "p.tflite").stat().st_size
    shown = run("inspect", "p.tflite", "--json").json
    assert shown["manifest"] == built["manifest"]
    assert shown["file_bytes"] == built["costs"]["file_bytes"]
    assert {p["name"] for p in shown["manifest"]["parameters"]} == PARAMETERS
    assert (shown["manifest"]["state"], shown["manifest"]["loss_scale"]) == ("split", 1024)
    assert list(shown["operators"]) == ["gradients", "apply", "evaluate", "infer"]
    assert "state split, loss scale 1024" in run("inspect", "p.tflite").out


def test_operators_are_those_that_the_interpreter_sees(run: Run, tmp_path: Path) -> None:
    from collections import Counter

    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    run("build", GOOD, "--no-check")
    counted = run("inspect", "good.tflite", "--json").json["operators"]["train"]
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(str(tmp_path / "good.tflite"), experimental_op_resolver_type=plain)
    assert counted == Counter(op["op_name"] for op in interpreter._get_ops_details())


def test_schemes_side_by_side(run: Run) -> None:
    rows = {row["scheme"]: row for row in run("schemes", GOOD, "--json").json["schemes"]}
    assert set(rows) == {"full", "sparse", "last-3", "bias-only", "head"}
    assert rows["head"]["trained_parameters"] == 27
    assert rows["head"]["flops_backward"] < rows["full"]["flops_backward"]
    assert rows["head"]["residual_bytes"] < rows["full"]["residual_bytes"]
    shown = run("schemes", GOOD, "--update", "last-1", "--update", "last-2")
    assert "last-2" in shown.out
    assert "full" not in shown.out


def test_schemes_fit_80_columns_unless_all_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("schemes", GOOD).out.splitlines()
    heading = next(line for line in lines if "scheme " in line)
    assert all(label in heading for label in ("numbers that train", "step", "memory"))
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.strip()][3:] == ["full", "sparse", "last-3", "bias-only", "head"]
    assert "residuals" not in heading
    monkeypatch.setenv("COLUMNS", "300")
    assert "residuals" in run("schemes", GOOD, "--wide").out


def test_help_lists_commands_in_the_order_of_use(run: Run) -> None:
    words = [line.split()[0] for line in run("--help").out.splitlines() if line.startswith("  ")]
    order = [word for word in words if word in ("schemes", "build", "inspect", "export", "explain")]
    assert order == ["schemes", "build", "inspect", "export", "explain"]


def test_a_scheme_that_does_not_fit_is_a_row_with_a_reason(run: Run) -> None:
    shown = run("schemes", f"{FACTORIES}:no_gradient", "--json").json["schemes"]
    reasons = {row["scheme"]: row["error"] for row in shown if "error" in row}
    assert "stopped" in reasons["full"]
    assert "head" not in reasons
    named = run("schemes", f"{FACTORIES}:no_gradient", "--update", "full", "--update", "head")
    assert named.code == 0
    assert "full: not for this model: " in named.out
    assert run("schemes", f"{FACTORIES}:no_gradient", "--update", "full").code == 4
    assert run("schemes", f"{FACTORIES}:nan").code == 4


def test_an_augmentation_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f"model = '{GOOD}'\nloss = 'mse'\naugment = '{FACTORIES}:brighter'")
    built = run("build", "--recipe", "recipe.toml", "--trust", "--json").json
    assert "brighter" in next(note["why"] for note in built["notes"] if note["subject"] == "augment")
    assert run("build", GOOD, "--augment", f"{FACTORIES}:brighter", "--loss", "mse", "--no-check").code == 0
    ran = run("build", GOOD, "--augment", "brighter")
    assert "expected package.module:function" in ran.err


def test_a_recipe_and_flags_that_override_it(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "rules.json").write_text('{"layers/1/*": "all", "*": "bias", "layers/0/w": 0.5}')
    (folder / "mine.toml").write_text(
        f'model = "{GOOD}"\nloss = "mse"\nupdate = "./rules.json"\nbatch = 2\nout = "p.tflite"\n'
        'optimizer = {name = "adamw", weight_decay = 0.0}'
    )
    built = run("build", "--recipe", "recipes/mine.toml", "--trust", "--batch", "3", "--json").json
    assert built["file"] == "recipes/p.tflite"
    manifest = built["manifest"]
    assert (manifest["batch"], manifest["loss"], manifest["update"]["scheme"]) == (3, "mse", "rules")
    assert {row["parameter"]: row["fraction"] for row in manifest["update"]["table"]} == {
        **dict.fromkeys(PARAMETERS, 0.0),
        "layers/0/w": 0.5,
        "layers/0/b": 1.0,
        "layers/1/b": 1.0,
        "layers/2/b": 1.0,
    }


def test_a_card_in_a_recipe_is_shown(run: Run, tmp_path: Path) -> None:
    text = "A long licence\\twith \\u001B[31m codes. " + "And so on. " * 40
    (tmp_path / "carded.toml").write_text(
        f'model = "{GOOD}"\nout = "carded.tflite"\n[card]\nlicense = "{text}"\nsource = "here"\n'
        '"\\u001B[31m red" = "a name"\n'
    )
    built = run("build", "--recipe", "carded.toml", "--trust", "--no-check", "--json").json
    assert set(built["manifest"]["card"]) == {"license", "source", "\x1b[31m red"}
    shown = run("inspect", "carded.tflite").out
    assert "Model card" in shown
    assert "A long licence with [31m codes." in shown
    assert "(--wide)" in shown
    assert "[31m red" in shown
    assert "\x1b" not in shown
    (tmp_path / "carded.toml").write_text(f'model = "{GOOD}"\n[card]\nlicense = 2\n')
    assert "card.license" in run("build", "--recipe", "carded.toml").err


def test_a_loss_and_an_optimizer_of_the_persons_own(run: Run) -> None:
    flags = ["--loss", f"{FACTORIES}:smoothed", "--y", "int32", "--optimizer", f"{FACTORIES}:adam"]
    manifest = run("build", GOOD, "--json", *flags).json["manifest"]
    assert manifest["loss"] == "smoothed"
    (y,) = (spec for spec in manifest["signatures"]["train"]["inputs"] if spec["role"] == "target")
    assert TensorType(y["shape"], y["dtype"]) == TensorType((8,), INT32)
    assert any(tensor["slot"] for tensor in manifest["state_tensors"])
    assert run("build", GOOD, "--loss", f"{FACTORIES}:absolute", "--no-check").code == 0


def test_an_entry_of_null_is_none(run: Run, tmp_path: Path) -> None:
    entries = dict.fromkeys((*ENTRIES, "profile", "out"))
    (tmp_path / "mine.json").write_text(json.dumps({**entries, "model": GOOD, "loss": "mse"}))
    built = run("build", "--recipe", "mine.json", "--trust", "--no-check", "--json")
    assert built.json["manifest"]["batch"] == 8


@pytest.mark.parametrize("command", ["schemes", "estimate"])
def test_tables_have_no_flag_that_changes_nothing(run: Run, command: str) -> None:
    refused = run(command, GOOD, "--name", "digits")
    assert refused.code == 2
    assert "No such option: --name" in refused.err


def test_a_recipe_with_a_loss_for_each_output(run: Run, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(
        f'loss = {{kind = "{FACTORIES}:smoothed", size = {{name = "huber", delta = 0.5}}}}\n'
        'loss_weights = {size = 0.3}\ny = {kind = "int32"}'
    )
    two = f"{FACTORIES}:two_heads"
    built = run("build", two, "--recipe", "two.toml", "--trust", "--json").json["manifest"]
    assert built["loss"] == {"kind": "smoothed", "size": "huber"}
    targets = {
        s["name"]: (s["shape"], s["dtype"]) for s in built["signatures"]["train"]["inputs"] if s["role"] == "target"
    }
    assert targets == {"y/kind": ([8], "int32"), "y/size": ([8, 2], "float32")}
    assert "smoothed of kind + huber of size" in run("inspect", "two_heads.tflite").out
    (tmp_path / "nested.toml").write_text(f'loss = {{kind = {{size = "{FACTORIES}:smoothed"}}}}')
    assert "expected a name, or a table" in run("build", two, "--recipe", "nested.toml").err


def test_modules_of_the_current_directory_are_found(run: Run, tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(f"from {FACTORIES} import good as make")
    assert run("build", "my_model:make", "--quiet", "--no-check").code == 0
    assert (tmp_path / "make.tflite").exists()


def test_a_keras_file(run: Run, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="head")])
    model.save(tmp_path / "small.keras")
    manifest = run("build", "small.keras", "--json").json["manifest"]
    assert [p["name"] for p in manifest["parameters"]] == ["head/bias", "head/kernel"]


def test_an_example_knows_its_loss_and_its_sparse_scheme(run: Run, examples: None) -> None:
    manifest = run("build", "--update", "sparse", "--json").json["manifest"]
    assert manifest["loss"] == "mse"
    assert manifest["update"]["scheme"] == "sparse"
    assert [row["parameter"] for row in manifest["update"]["table"] if row["fraction"]] == ["layers/1/w"]
    assert run("build", "digits", "--loss", "categorical_crossentropy", "--no-check").code == 0


def test_quiet_says_nothing_but_the_result(run: Run) -> None:
    ran = run("build", GOOD, "--quiet", "--no-check")
    assert ran.err == "a model factory may print\n"


@pytest.mark.quick
def test_help_loads_no_framework() -> None:
    code = (
        "import sys\nfrom converter.cli import main\n"
        "try:\n    main(['build', '--help'])\n"
        "finally:\n    assert not {'jax', 'keras', 'optax', 'tensorflow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--recipe" in done.stdout


@pytest.mark.quick
def test_python_dash_m(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "converter", "inspect", str(tmp_path / "no.tflite")], capture_output=True
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: ")


def test_int8_for_what_is_frozen(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "samples.npz", x=rng.random((20, 6), np.float32), y=rng.integers(0, 3, 20))
    recipe = 'frozen = "int8"\ncalibration = "samples.npz"\nupdate = "head"\nbatch = 4\n'
    (tmp_path / "mine.toml").write_text(recipe)
    options = (f"{FACTORIES}:wide", "--recipe", "mine.toml", "--no-check")
    built = run("build", *options, "--json").json
    assert built["manifest"]["frozen"] == "int8"
    assert {layer["form"] for layer in built["quantization"]["layers"]} == {"dynamic range"}
    assert built["quantization"]["before"].keys() == {"loss", "accuracy"}
    shown = run("build", *options)
    assert "dynamic range" in shown.out
    assert "Frozen layers" in run("build", *options, "--wide").out
    assert "on the calibration samples: loss" in shown.out
    refused = run("build", *options, "--calibration", "sample.npz")
    assert refused.code == 2
    assert "no such file: sample.npz. Did you mean 'samples.npz'?" in refused.err
    (tmp_path / "text.npz").write_text("1, 2, 3")
    assert "numpy.savez" in run("build", *options, "--calibration", "text.npz").err


def test_ops_lists_what_can_be_imported(run: Run) -> None:
    listed = {entry["primitive"]: entry for entry in run("ops", "--json").json["primitives"]}
    assert "convolution of integers" in listed["conv_general_dilated"]["refused"]
    assert listed["fft"]["subject"] == "refused"
    assert "dot_general" in run("ops").out


def test_a_build_says_whether_it_fits_on_a_board(run: Run) -> None:
    given = ("build", GOOD, "--batch", "1", "--out", "m.tflite", "--no-check", "--board", "nrf5340")
    done = run(*given)
    assert done.code == 0
    assert "nRF5340" in done.out
    assert "m.tflite: fits in RAM" in done.out
    found = json.loads(run(*given, "--json").out)
    assert (found["board"]["name"], found["fits"], found["manifest"]["target"]) == ("nrf5340", True, "tflm")
    refused = run(*given, "--target", "gpu")
    assert refused.code != 0
    assert "--board asks for --target tflm, not gpu" in refused.err
