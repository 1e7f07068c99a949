"""Every command where only the core is installed, without a library of any extra: it works, or says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from converter.support.extras import EXTRAS
from tests.runtime.programs import BATCH, EXAMPLES, program

ROOT = Path(__file__).resolve().parents[2]

#: Runs command lines in a process that finds none of the libraries; prints exit code and stderr of each as JSON.
_DRIVER = """
import contextlib, io, json, sys
libraries, commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(libraries))  # None: not to be found
from converter.cli import main
ran = []
for arguments in commands:
    said, shown = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown):
        try:
            main(arguments)
        except SystemExit as ended:
            ran.append((ended.code, said.getvalue()))
print(json.dumps(ran))
"""

_FACTORY = """
import jax, jax_frontend

def model():
    return jax_frontend.Model(lambda p, x: x @ p, jax.numpy.ones((4, 3)), [jax.ShapeDtypeStruct((1, 4), "float32")])
"""

#: What runs without any extra.
WORKS = [
    "inspect p.tflite",
    "inspect p.tflite --json",
    "profile p.tflite --steps 1",
    "engines",
    "export p.tflite --out plain.tflite",
    "export p.tflite --quantize dynamic --out smaller.tflite",
    "export p.tflite --out weights.npz",
]
#: What needs an extra, and which.
NEEDS = {
    "build": "compiler",
    "build mlp": "compiler",
    "build digits-cnn": "compiler",
    "build m.keras": "keras",
    "build keras:MobileNetV2": "keras",
    "build mine:model": "compiler",
    "build --recipe r.toml --trust": "compiler",
    "build mlp --profile measured": "compiler",
    "schemes m.keras": "keras",
    "schemes mine:model": "compiler",
    "schemes m.keras --update head --json": "keras",
    "estimate m.keras --device pixel-8": "keras",
    "estimate mine:model --device pixel-8": "compiler",
    "search m.keras --data rows.npz": "search",
    "search mine:model --data rows.npz --ray local": "ray",
    "ops": "compiler",
    "ops --json": "compiler",
    "report p.tflite": "report",
    "report p.tflite --profile": "report",
    "certify p.tflite --on hexagon:SM8650": "hexagon",
    "certify p.tflite --on tflm": "micro",
    "export p.tflite --out weights.safetensors": "safetensors",
    "export p.tflite --model m.keras --out new.keras": "keras",
    "import p.tflite adapter --out theirs.state": "safetensors",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What became of each command."""
    folder = tmp_path_factory.mktemp("core")
    program("mlp").write(folder / "p.tflite")
    x, y = EXAMPLES["mlp"].data(BATCH)
    np.savez(folder / "rows.npz", x=x, y=y)
    (folder / "mine.py").write_text(_FACTORY)
    (folder / "r.toml").write_text('model = "mine:model"\n')
    (folder / "m.keras").write_bytes(b"")
    commands = [*WORKS, *NEEDS]
    libraries = sorted({library for libraries in EXTRAS.values() for library in libraries})
    asked = json.dumps([libraries, [command.split() for command in commands]])
    process = [sys.executable, "-c", f"import sys; sys.path.append({str(ROOT)!r})\n{_DRIVER}", asked]
    ran = subprocess.run(process, cwd=folder, capture_output=True, text=True, check=True)
    return dict(zip(commands, json.loads(ran.stdout), strict=True))


@pytest.mark.parametrize("command", WORKS)
def test_it_works_without_any_extra(said: dict[str, tuple[int, str]], command: str) -> None:
    code, words = said[command]
    assert code == 0, words


@pytest.mark.parametrize("command", NEEDS)
def test_what_to_install_is_said(said: dict[str, tuple[int, str]], command: str) -> None:
    code, words = said[command]
    assert f"pip install 'pocketune[{NEEDS[command]}]'" in words
    assert "bug in Pocketune" not in words
    assert code == 2
