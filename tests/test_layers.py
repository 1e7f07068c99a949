"""The import rules between the layers, the size of files and the pins: read from the source, nothing is imported.

The checkers are functions of text, so each rule is also shown a planted violation: a rule that cannot fail is none.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("converter", "jax_frontend", "keras_frontend")
MAX_LINES = 400

#: From the bottom up. A unit imports only itself and units of the rows above its own.
LAYERS = (
    ("converter.errors",),
    (
        "converter.records",
        "converter.files",
        "converter.seal",
        "converter.notes",
        "converter.interrupts",
        "converter.words",
    ),
    ("converter.ir", "converter.manifest"),
    ("converter.links", "converter.row_losses"),
    ("converter.passes",),
    (
        "converter.autodiff",
        "converter.losses",
        "converter.batch_norm",
        "converter.randomness",
        "converter.schedule",
        "converter.targets",
    ),
    ("converter.sparse", "jax_frontend", "converter.tflite", "converter.dropout"),
    ("converter.step_cost", "converter.engines"),
    (
        "converter.optim",
        "keras_frontend",
        "converter.costs",
        "converter.program_file",
        "converter.mixing",
        "converter.order",
    ),
    ("converter.origins",),
    ("converter.layers",),
    (
        "converter.models",
        "converter.runtime",
        "converter.step",
        "converter.augment",
        "converter.fisher",
    ),
    ("converter.merge",),
    ("converter.check", "converter.quantize", "converter.requests", "converter.account"),
    ("converter.inference",),
    ("converter.program", "converter.profile", "converter.certification", "converter.defaults"),
    ("converter.budget",),
    ("converter.stages",),
    ("converter.pipeline",),
    ("converter.compare", "converter.functions", "converter.reporting"),
    ("converter.searching",),
    ("converter",),
    ("examples",),
    ("converter.cli",),
    ("converter.__main__",),
)

#: Units that may import still less of the project than what is below them.
NARROW = {
    "converter.ir": ("converter.errors",),
    "converter.program_file": (
        "converter.errors",
        "converter.files",
        "converter.manifest",
        "converter.seal",
        "converter.tflite.metadata",
    ),
    # Runs where no compiler is installed or wanted: it knows files, not graphs.
    "converter.runtime": (
        "converter.engines",
        "converter.errors",
        "converter.files",
        "converter.ir.view",
        "converter.layers",
        "converter.manifest",
        "converter.program_file",
        "converter.records",
        "converter.seal",
        "converter.tflite.metadata",
        "converter.tflite.parts",
    ),
}

#: Where alone each library may be imported; scripts and tests are free.
LIBRARIES = {
    "jax": ("jax_frontend", "keras_frontend", "converter.optim", "examples"),
    "jaxlib": ("jax_frontend",),
    "flax": ("jax_frontend", "examples"),
    "optax": ("jax_frontend", "keras_frontend.optimizers", "converter.optim", "examples"),
    "keras": ("keras_frontend", "examples"),
    "sklearn": ("examples",),
    "safetensors": ("converter.inference",),
    "ai_edge_litert": (
        "converter.certification",
        "converter.engines",
        "converter.runtime",
        "converter.check",
        "converter.functions",
        "converter.inference",
        "converter.quantize",
        "converter.profile",
        "converter.tflite.schema",
    ),
    "tensorflow": (),
    "torch": (),
}


def within(module: str, prefixes: tuple[str, ...]) -> bool:
    """Is the module one of these, or inside one?"""
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def unit_of(module: str) -> str:
    """The smallest thing the rules speak of: a package or module directly in `converter`, or another package."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "converter" else parts[0]


def level(unit: str) -> int | None:
    """The row of a unit, or None for one that the table does not know."""
    return next((i for i, row in enumerate(LAYERS) if unit in row), None)


def imports(source: str, modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of every import: inside functions, for types only, and by a literal name as well.

    `modules` are the project's own: `from package import name` means `package.name` when that is one of them.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=dots):
                start = "." * dots + (module or "")
                for alias in names:
                    full = f"{start}.{alias.name}"
                    yield node.lineno, full if full in modules else start
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
            ):
                if called in ("import_module", "__import__"):
                    yield node.lineno, name


def violations(module: str, source: str, modules: frozenset[str]) -> list[str]:
    """What the imports of one module break, one sentence each."""
    found = []
    unit = unit_of(module)
    own_level = level(unit)
    if own_level is None:
        return [f"{module}: {unit} has no row in LAYERS"]
    for line, name in imports(source, modules):
        where = f"{module}:{line}"
        top = name.partition(".")[0]
        if name.startswith("."):
            found.append(f"{where}: relative import {name}")
        elif top in LIBRARIES and not within(module, LIBRARIES[top]):
            found.append(f"{where}: {name} belongs only into {LIBRARIES[top] or 'nothing'}")
        elif top in ("scripts", "tests"):
            found.append(f"{where}: {name} is no part of the product")
        elif top in (*PACKAGES, "examples"):
            below = level(unit_of(name))
            if unit_of(name) != unit and (below is None or below >= own_level):
                found.append(f"{where}: {unit} may not import {name}: it is not below it")
            elif unit in NARROW and not within(name, (unit, *NARROW[unit])):
                found.append(f"{where}: {unit} may not import {name}: only {NARROW[unit]}")
    return found


def module_name(path: Path) -> str:
    """`converter/ir/__init__.py` -> `converter.ir`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def sources(*folders: str) -> list[Path]:
    """The Python files of the project in some of its folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PRODUCT = sources(*PACKAGES, "examples")
MODULES = frozenset(module_name(path) for path in PRODUCT)


def test_imports_follow_the_layers() -> None:
    found = [v for path in PRODUCT for v in violations(module_name(path), path.read_text(), MODULES)]
    assert not found, "\n".join(found)


def test_the_tables_name_what_exists() -> None:
    units = {unit_of(module) for module in MODULES}
    assert {"converter.ir", "jax_frontend", "keras_frontend"} <= units
    rows = [unit for row in LAYERS for unit in row]
    assert len(rows) == len(set(rows))
    assert set(NARROW) <= set(rows)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("converter.passes.fold", "import jax.numpy as jnp"),
        ("converter.losses", "def f():\n    import optax"),
        ("converter.cli.main", "from flax import linen"),
        ("converter.autodiff", "from ai_edge_litert.interpreter import Interpreter"),
        ("converter.models", "import keras"),
        ("keras_frontend.importer", "import tensorflow as tf"),
        ("converter.check", "from tensorflow import lite"),
        ("jax_frontend.model", "import torch"),
        ("converter.ir.graph", "from converter.passes import simplify"),
        ("converter.ir.graph", "from converter import files"),
        ("converter.ir.graph", "from converter import pipeline"),
        ("converter.passes.fold", "from converter.tflite.emit import emit"),
        ("converter.tflite.lower", "from converter.program import Program"),
        ("converter.tflite.lower", "from converter import build"),
        ("converter.pipeline", "from converter.cli import main"),
        ("converter.sparse.select", "if TYPE_CHECKING:\n    from converter.pipeline import build"),
        ("converter.runtime.session", "from converter.ir import Graph"),
        ("converter.runtime.session", "from converter.tflite import metadata, emit"),
        ("converter.runtime.session", "from converter.passes import simplify"),
        ("converter.runtime.session", "import importlib\nimportlib.import_module('converter.pipeline')"),
        ("converter.files", "__import__('converter.ir')"),
        ("jax_frontend.model", "import keras_frontend"),
        ("converter.cli.main", "import examples_of_mine.digits\nfrom tests import cases"),
        ("converter.ir.graph", "from . import types"),
        ("converter.ir.graph", "from ..errors import UsageError"),
        ("converter.unheard_of", "import numpy"),
        ("converter.pipeline", "from converter.unheard_of import thing"),
    ],
)
def test_a_planted_import_is_found(module: str, source: str) -> None:
    planted = MODULES | {"converter.files", "converter.pipeline", "converter.tflite.metadata", "converter.tflite.emit"}
    assert len(violations(module, source, planted)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jax_frontend.rules.conv", "import jax\nfrom converter.ir import Graph"),
        ("converter.optim.trace", "import jax, optax, jax_frontend"),
        ("converter.runtime.session", "from converter.tflite import metadata\nfrom converter.ir.view import View"),
        ("converter.runtime.session", "from converter.tflite.metadata import read\nimport ai_edge_litert.interpreter"),
        ("converter.ir.graph", "from converter.ir.types import TensorType\nfrom converter.errors import UsageError"),
        ("converter", "from converter.pipeline import build"),
        ("converter.cli.main", "import converter\nimport importlib\nimportlib.import_module(name)"),
    ],
)
def test_a_permitted_import_is_not(module: str, source: str) -> None:
    assert violations(module, source, MODULES | {"converter.tflite.metadata"}) == []


def test_importing_the_compiler_loads_no_framework() -> None:
    """A command that only runs or inspects a program must not wait for JAX or Keras."""
    heavy = [name for name in LIBRARIES if name not in ("ai_edge_litert", "jaxlib")]
    code = f"import sys, converter, converter.runtime; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# -- text --------------------------------------------------------------------------------------------------------------


def text_faults(name: str, text: str) -> list[str]:
    """What is wrong with a file of the project as text."""
    faults = []
    if name.endswith(".py") and text.count("\n") >= MAX_LINES:
        faults.append(f"{name}: {text.count(chr(10))} lines, fewer than {MAX_LINES} are allowed")
    if re.search(r"(\.\.|/work)/shared\b", text):
        faults.append(f"{name}: reads what is not in the repository")
    return faults


def test_files_are_short_and_self_contained() -> None:
    texts = [*sources(*PACKAGES, "examples", "tests", "scripts"), *_scripts(), *(ROOT / "recipes").rglob("*.toml")]
    found = [fault for path in texts for fault in text_faults(str(path.relative_to(ROOT)), path.read_text())]
    assert not found, "\n".join(found)


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


# -- requirements ------------------------------------------------------------------------------------------------------


def requirement_faults(name: str, lines: list[str]) -> list[str]:
    """Requirements that are not pinned, and anything that says where to get them: that is the person's choice."""
    wanted = (line.split("#")[0].strip() for line in lines)
    return [f"{name}: {line}" for line in wanted if line and not re.fullmatch(r"[\w.-]+(\[[\w,-]+])?==[\w.+!]+", line)]


def index_faults(name: str, text: str) -> list[str]:
    """Places in a script that name a package index."""
    pattern = r"--(extra-)?index-url|--find-links|--trusted-host|PIP_\w*(INDEX|FIND_LINKS)\w*=|pypi\.org|/simple\b"
    return [f"{name}: {found[0]}" for found in re.finditer(pattern, text)]


def _scripts() -> list[Path]:
    folders = (ROOT / "scripts", ROOT / ".ci")
    files = [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return [path for path in files if path.suffix in ("", ".sh")]


def _project_requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    return [*project["build-system"]["requires"], *project["project"]["dependencies"], *(r for e in extras for r in e)]


def range_faults(requirements: list[str], pins: Mapping[str, str]) -> list[str]:
    """Requirements of the project that leave everything open, or that the pinned versions do not meet."""
    faults = []
    for requirement in map(Requirement, requirements):
        name = requirement.name.lower()
        if not any(part.operator in (">=", "==") for part in requirement.specifier):
            faults.append(f"{requirement}: from which version on?")
        elif pins.get(name) is None or not requirement.specifier.contains(pins[name]):
            faults.append(f"{requirement}: constraints.txt has {pins.get(name)}")
    return faults


def _pins() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {name.lower(): version for name, _, version in (line.partition("==") for line in lines if line)}


def test_what_is_installed_is_pinned_and_no_index_is_named() -> None:
    found = []
    for path in [ROOT / "constraints.txt", *ROOT.glob("scripts/**/requirements*.txt")]:
        found += requirement_faults(path.name, path.read_text().splitlines())
    for path in [*_scripts(), ROOT / "pyproject.toml"]:
        found += index_faults(path.name, path.read_text())
    assert not found, "\n".join(found)


def test_the_projects_ranges_hold_the_pinned_versions() -> None:
    assert not range_faults([r for r in _project_requirements() if not r.startswith("pocketune[")], _pins())


def test_a_planted_range_is_found() -> None:
    assert len(range_faults(["numpy", "numpy<3", "numpy>=99", "nobody>=1"], _pins())) == 4


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "numpy>=2",
        "--index-url https://example.org/simple",
        "-f /opt/wheels",
        "numpy @ https://example.org/numpy.whl",
        "-e .",
    ],
)
def test_a_planted_requirement_is_found(line: str) -> None:
    assert len(requirement_faults("requirements.txt", ["jax==0.10.2  # a pin", line])) == 1


@pytest.mark.parametrize(
    "text", ["pip install --index-url x", "export PIP_INDEX_URL=x", "pip install --extra-index-url x", "curl pypi.org"]
)
def test_a_planted_index_is_found(text: str) -> None:
    assert index_faults("setup", text)
