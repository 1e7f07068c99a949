"""The wheel as people install it: into a fresh environment, with and without what compiles."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.programs import BATCH, EXAMPLES, program

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.stem for path in (ROOT / "docs/errors").glob("*.md")}
pytestmark = pytest.mark.slow

_TRAIN = """
import sys
import numpy as np
from pocketune import TrainingSession

with np.load("data.npz") as data, TrainingSession("m.tflite") as session:
    print(session.train(data["x"], data["y"], 0.1))
assert "jax" not in sys.modules
"""

_MODEL = """
import numpy as np

def model():
    import jax
    import pocketune
    inputs = [jax.ShapeDtypeStruct((1, 4), np.float32)]
    return pocketune.Model(lambda params, x: x @ params["w"], {"w": np.ones((4, 3), np.float32)}, inputs)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # From a copy: setuptools leaves its build folder beside the sources.
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    archive = subprocess.run(files, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, archive.decode().split("\0")):
        source, target = ROOT / name, folder / "source" / name
        if source.is_file() and not name.startswith(("android_app", "tests", "docs/decisions", "docs/vendor")):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, folder / "source"], check=True)
    (file,) = folder.glob("*.whl")
    return file


def install(python: Path, what: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", what]
    subprocess.run(command, check=True)


def test_top_level_packages_are_ours_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        tops = {name.partition("/")[0] for name in file.namelist()}
        (named,) = [file.read(name) for name in file.namelist() if name.endswith("top_level.txt")]
        (said,) = [file.read(name).decode() for name in file.namelist() if name.endswith("METADATA")]
        pages = {Path(name).stem for name in file.namelist() if name.startswith("pocketune/errors/")}
    assert {top for top in tops if ".dist-info" not in top} == {"pocketune"}
    assert named == b"pocketune\n"
    assert all(f"\n{entry}: " in said for entry in ("Project-URL", "Author", "Keywords", "Classifier"))
    assert pages >= PAGES


def test_it_runs_a_program_without_jax_and_builds_one_with_it(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python, pocketune = tmp_path / "venv/bin/python", tmp_path / "venv/bin/pocketune"
    x, y = EXAMPLES["mlp"].data(BATCH)
    program("mlp").write(tmp_path / "m.tflite")
    np.savez(tmp_path / "data.npz", x=x, y=y)

    def run(*command: Path | str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    install(python, str(wheel))
    assert "jax" not in run(python, "-m", "pip", "list").stdout
    trained = run(python, "-c", _TRAIN)
    assert trained.returncode == 0, trained.stderr
    assert float(trained.stdout) > 0
    assert "initialize" in run(pocketune, "inspect", "m.tflite").stdout
    assert run(pocketune, "export", "m.tflite", "--out", "plain.tflite").returncode == 0
    (tmp_path / "mine.py").write_text(_MODEL)
    for name in ("converter", "jax_frontend", "keras_frontend", "examples"):  # a person's own, beside their script
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('it is not this one that is meant')")
    refused = run(python, "-c", "import pocketune; pocketune.build(None)")
    assert "pip install 'pocketune[compiler]'" in refused.stderr

    install(python, f"{wheel}[compiler]")
    built = run(pocketune, "build", "mine:model", "--out", "new.tflite")
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "new.tflite").is_file()
