"""What may import what, the size of files, and what they may read: from the source, nothing is imported.

Each rule is also shown a planted violation: a rule that cannot fail is none.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT, scripts, sources

PACKAGES = ("converter", "jax_frontend")
MAX_LINES = 400
#: Files of one folder that holds code; more than that, and nobody sees what is in it.
MAX_FILES = 24

#: A line for a file that breaks each contract of pyproject.toml.
PLANTED = {
    "A wing imports only what is below it": (
        "converter/training/step.py",
        "if TYPE_CHECKING:\n    from converter.driver.build import build",
    ),
    "No front end knows another": (
        "converter/frontends/torch/model.py",
        "def f():\n    from converter.frontends.tflite import survey",
    ),
    "Driver, tools and commands know no front end by name": (
        "converter/driver/models.py",
        "def f():\n    from converter.frontends.keras import import_keras",
    ),
    "So does a part of the backend": ("converter/backend/builtins/base.py", "import converter.backend.lowering.lower"),
    "So does a room of the runtime": ("converter/runtime/data/order.py", "import converter.runtime.session.loop"),
    "Nothing imports in a circle": ("converter/ir/types.py", "def f():\n    from converter.ir.graph import Graph"),
    "What `pip install pocketune` holds runs without a compiler and without frameworks": (
        "converter/runtime/session/session.py",
        "from converter.passes import simplify",
    ),
    "The product needs no script, test or peer": ("converter/frontends/keras/importer.py", "import tensorflow as tf"),
    "JAX is for front ends and optimizers": ("converter/passes/simplify.py", "import jax.numpy as jnp"),
    "optax is for optimizers": ("converter/training/losses/named.py", "def f():\n    import optax"),
    "Keras is for its front end": ("converter/driver/models.py", "import keras"),
    "PyTorch is for its front end, and takes weights back": ("converter/driver/models.py", "import torch"),
    "Flax is for its modules": ("converter/cli/app.py", "from flax import linen"),
    "Flower is for federated training": (
        "converter/cli/commands/federating.py",
        "def f():\n    from flwr.app import Array",
    ),
    "LiteRT runs programs and has the schema of their files": (
        "converter/passes/autodiff/reverse.py",
        "from ai_edge_litert.interpreter import Interpreter",
    ),
}


def contracts(folder: Path) -> dict[str, str]:
    """Return `KEPT` or `BROKEN` for each contract, of the packages in a folder."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False)
    said = " ".join(done.stdout.split())
    return {name: said.partition(f" {name} ")[2].partition(" ")[0] for name in PLANTED}


def test_contracts_are_those_that_are_tried_here() -> None:
    named = re.findall(
        r'\[\[tool\.importlinter\.contracts]]\nid = .*\nname = "(.*)"', (ROOT / "pyproject.toml").read_text()
    )
    assert named == [*PLANTED]


def test_each_planted_import_breaks_its_contract(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "vendor"))
    assert contracts(tmp_path) == dict.fromkeys(PLANTED, "KEPT")
    for name, line in PLANTED.values():
        with (tmp_path / name).open("a") as file:
            file.write(f"\n{line}\n")
    assert contracts(tmp_path) == dict.fromkeys(PLANTED, "BROKEN")


def test_only_the_wings_lie_in_the_package() -> None:
    assert {path.name for path in (ROOT / "converter").iterdir() if path.is_file()} == {"__init__.py", "__main__.py"}


def test_importing_the_compiler_loads_no_framework() -> None:
    """A command that only runs or inspects a program must not wait for JAX or Keras."""
    heavy = ["flax", "jax", "keras", "optax", "safetensors", "sklearn", "tensorflow", "torch"]
    code = f"import sys, converter, converter.runtime; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def text_faults(name: str, text: str) -> list[str]:
    """Return what is wrong with a file of the project as text."""
    faults = []
    if name.endswith(".py") and text.count("\n") >= MAX_LINES:
        faults.append(f"{name}: {text.count(chr(10))} lines, fewer than {MAX_LINES} are allowed")
    if re.search(r"(\.\.|/work)/shared\b", text):
        faults.append(f"{name}: reads what is not in the repository")
    return faults


def test_files_are_short_and_self_contained() -> None:
    texts = [*sources(*PACKAGES, "examples", "tests", "scripts"), *scripts(), *(ROOT / "recipes").rglob("*.toml")]
    found = [fault for path in texts for fault in text_faults(str(path.relative_to(ROOT)), path.read_text())]
    assert not found, "\n".join(found)


def full_folders(root: Path) -> list[str]:
    """Return the folders of code below one that hold too many files; those of data alone may hold any number."""
    found = []
    for folder in sorted({path.parent for path in root.rglob("*.py")}):
        files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
        if len(files) > MAX_FILES:
            found.append(
                f"{folder.relative_to(root.parent)}: {len(files)} files, {MAX_FILES} are allowed: give it rooms"
            )
    return found


def test_folders_hold_few_files(tmp_path: Path) -> None:
    found = [fault for name in (*PACKAGES, "examples", "tests", "scripts") for fault in full_folders(ROOT / name)]
    assert not found, "\n".join(found)
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}.py").touch()
    assert len(full_folders(tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "\n" * MAX_LINES),
        ("a.py", "open('../../shar" + "ed/design.md')"),
        ("setup", "cp /work/shar" + "ed/tools/x ."),
    ],
)
def test_a_planted_fault_is_found(name: str, text: str) -> None:
    assert len(text_faults(name, text)) == 1
