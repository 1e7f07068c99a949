"""The package `pocketune`: what it offers, and how the wheel names its parts."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import numpy
import pytest

import converter
import jax_frontend
import pocketune
from converter.frontends import decoder as decoder_frontend
from converter.frontends import tflite as tflite_frontend
from scripts.distribution import PARTS, prefixed

ROOT = Path(__file__).resolve().parents[1]


def test_all_that_the_compiler_and_its_sessions_offer_is_there() -> None:
    assert set(converter.__all__) <= set(pocketune.__all__) == set(dir(pocketune))
    assert pocketune.Model is jax_frontend.Model
    assert pocketune.TrainingSession is converter.runtime.TrainingSession
    assert "mse" in pocketune.losses.LOSSES
    assert pocketune.TFLiteModel is tflite_frontend.Model
    assert pocketune.LanguageModel is decoder_frontend.Model
    assert pocketune.Tokenizer is decoder_frontend.Tokenizer
    for name in set(pocketune.__all__) - {"TorchModel"}:
        assert getattr(pocketune, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pocketune.nothing  # noqa: B018


def test_the_model_of_pytorch_is_there() -> None:
    pytest.importorskip("torch")
    from converter.frontends import torch as torch_frontend

    assert pocketune.TorchModel is torch_frontend.Model


def test_its_modules_are_imported_as_such() -> None:
    code = (
        "import pocketune.runtime; from pocketune.runtime import TrainingSession; from pocketune.losses import LOSSES\n"
        "import pocketune; assert pocketune.runtime.TrainingSession is pocketune.TrainingSession is TrainingSession\n"
        "import converter.runtime; assert pocketune.runtime is converter.runtime"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_help_of_build_names_all_doors_by_public_names() -> None:
    said = str(pocketune.build.__doc__)
    doors = ("keras.Model", "torch.nn.Module", ".pt2", "pocketune.TorchModel", "Flax", "pocketune.Model", ".tflite")
    for door in (*doors, "pocketune.TFLiteModel", ".gguf", "pocketune.LanguageModel", "torch.optim", "torch.nn"):
        assert door in said, door
    assert not [part for part in PARTS if f"{part}." in said]


@pytest.mark.quick
def test_importing_it_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import pocketune; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "['pocketune']"
    command = [sys.executable, "-m", "pocketune", "--version"]
    assert subprocess.check_output(command, text=True, cwd=ROOT).startswith("pocketune ")


@pytest.mark.quick
def test_in_the_wheel_no_module_means_one_outside_of_the_package() -> None:
    paths = [path for part in (*PARTS, "pocketune") for path in sorted((ROOT / part).rglob("*.py"))]
    assert len(paths) > 300
    for path in paths:
        for node in ast.walk(ast.parse(prefixed(path.read_text()))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.partition(".")[0] in PARTS], path


@pytest.mark.quick
def test_no_string_holds_the_beginning_of_a_name_of_ours() -> None:
    """Of a name that is put together (`"converter." + name`) the wheel's build sees no module."""
    begun = {f"{part}." for part in PARTS}
    for path in [path for part in (*PARTS, "pocketune") for path in sorted((ROOT / part).rglob("*.py"))]:
        nodes = ast.walk(ast.parse(path.read_text()))
        assert not [n.lineno for n in nodes if isinstance(n, ast.Constant) and n.value in begun], path


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("from converter.ir import ops\n", "from pocketune.converter.ir import ops\n"),
        ("import jax_frontend\n", "from pocketune import jax_frontend\n"),
        ("import converter.backend  # é\n", "import pocketune.converter.backend  # é\n"),
        ("é = 'converter.support.errors'\n", "é = 'pocketune.converter.support.errors'\n"),
        ("x = 'converter.build(...)'  # from converter.ir import x\n",) * 2,
        ("def f():\n    '''converter.'''\n    import converters\n",) * 2,
    ],
)
def test_imports_and_names_of_modules_are_prefixed_and_nothing_else(source: str, wanted: str) -> None:
    assert prefixed(source) == wanted


@pytest.mark.parametrize("source", ["import converter as c\n", "import converter.ir\nx = converter.ir\n"])
def test_what_cannot_be_prefixed_fails_the_build(source: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        prefixed(source)


def test_no_script_stands_before_a_library() -> None:
    """`scripts/demo.py` is run from its folder, so what lies beside it is found first."""
    for script in (ROOT / "scripts").glob("*.py"):
        found = PathFinder.find_spec(
            script.stem, [str(Path(module.__file__).parent.parent) for module in (numpy, json)]
        )
        assert script.stem == "__init__" or found is None, f"{script.name} hides {script.stem}"
