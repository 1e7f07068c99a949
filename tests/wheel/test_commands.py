"""Every command of the installed wheel runs, with a model of one's own beside it and nothing of the clone."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from converter.cli.app import app
from tests.installed import Installed

#: The model, in a folder that has modules with the names of ours, which nobody may import.
_MINE = """
def model():
    import jax
    import numpy as np
    import pocketune
    rng = np.random.default_rng(0)
    sizes = {"a": (6, 16), "b": (16, 16), "c": (16, 4)}
    params = {name: {"weight": rng.normal(size=size).astype("float32")} for name, size in sizes.items()}

    def apply(p, x):
        for name in "ab":
            x = jax.numpy.tanh(x @ p[name]["weight"])
        return x @ p["c"]["weight"]

    return pocketune.Model(apply, params, [jax.ShapeDtypeStruct((1, 6), np.float32)])
"""
_TRAIN = """
import numpy as np, pocketune
rng = np.random.default_rng(0)
x, y = rng.normal(size=(40, 6)).astype("float32"), (np.arange(40) % 4).astype("int32")
np.savez("rows.npz", x=x, y=y)
for name in ("m", "adapted"):
    with pocketune.TrainingSession(f"{name}.tflite") as session:
        session.fit(x, y, epochs=1)
        session.save(f"{name}.state")
"""
_BUILD = "build mine:model --loss sparse_categorical_crossentropy --batch 4"
#: In this order, each with the libraries that it needs beyond the compiler's.
_COMMANDS = {
    f"{_BUILD} --out m.tflite": (),
    f"{_BUILD} --update lora-2 --out adapted.tflite": (),
    "inspect m.tflite": (),
    "schemes mine:model": (),
    "estimate mine:model --device pixel-8": (),
    "explain models": (),
    "ops": (),
    "profile m.tflite --steps 1": (),
    "engines": (),
    f"{_BUILD} --target tflm --out micro.tflite": (),
    "export-c micro.tflite --out sketch": (),
    "state m.state --against m.tflite": (),
    "export m.tflite m.state --out plain.tflite": (),
    "export m.tflite m.state --out weights.npz": (),
    "export m.tflite m.state --out weights.safetensors": ("safetensors",),
    "export m.tflite m.state --out weights.pt": ("torch",),
    "export adapted.tflite adapted.state --out adapter": ("safetensors",),
    "import adapted.tflite adapter --out again.state": ("safetensors",),
    "report m.tflite --state m.state --out page.html": ("jinja2",),
    "learn small.gguf examples.jsonl --epochs 1 --no-rehearse --length 48 --update lora-4:all-linear --frozen float32 "
    "--out learned": ("gguf", "jinja2", "safetensors", "tokenizers"),
    "search mine:model --data rows.npz --loss sparse_categorical_crossentropy --named --epochs 1 --seeds 2 "
    "--batch 4 --workers 0": ("scipy", "cloudpickle"),
}
#: Runs the command of each of its arguments, as the script that the wheel installs does, in one process.
_EACH = """
import importlib.metadata, shlex, sys
(script,) = importlib.metadata.entry_points(group="console_scripts", name="pocketune")
run = script.load()
for line in sys.argv[1:]:
    sys.argv = ["pocketune", *shlex.split(line)]
    try:
        run()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{line}: ended with {end.code}")
"""
#: Those that get a process of their own: they start others, or read how they were started.
_ALONE = ("learn", "search")
#: Those that need what is downloaded, or cannot end without it.
_LEFT = {"certify": "an engine"}


@pytest.mark.quick
def test_every_command_runs(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_MINE)
    for name in ("converter", "jax_frontend", "examples"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('it is not this one that is meant')")
    (tmp_path / "examples.jsonl").write_text('{"prompt": "What is it?", "answer": "zo"}\n' * 12)
    if importlib.util.find_spec("gguf"):
        from tests.decoder_frontend.written import write_small_model

        write_small_model(tmp_path / "small.gguf")
    assert "Usage" in installed.run(installed.command, "--help", at=tmp_path)
    built, *others = (line for line, needs in _COMMANDS.items() if all(map(importlib.util.find_spec, needs)))
    installed.run(installed.command, *built.split(), at=tmp_path)
    building = [line for line in others if line.startswith("build")]
    alone = [line for line in others if line.startswith(_ALONE)]
    installed.run(installed.python, "-c", _EACH, *building, at=tmp_path)
    installed.run(installed.python, "-c", _TRAIN, at=tmp_path)
    reading = [line for line in others if line not in {*building, *alone}]
    installed.run(installed.python, "-c", _EACH, *reading, at=tmp_path)
    for line in alone:
        installed.run(installed.command, *line.split(), at=tmp_path)


def test_no_command_is_left_out() -> None:
    named = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    assert named == {line.split()[0] for line in _COMMANDS} | _LEFT.keys()


@pytest.mark.parametrize("command", _LEFT)
def test_the_others_say_what_they_take(command: str, installed: Installed, tmp_path: Path) -> None:
    assert "Usage" in installed.run(installed.command, command, "--help", at=tmp_path)
