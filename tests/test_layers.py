"""The import rules between the layers, the size of files and the pins: read from the source, nothing is imported.

The checkers are functions of text, so each rule is also shown a planted violation: a rule that cannot fail is none.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tree import ROOT, scripts, sources

PACKAGES = ("converter", "jax_frontend", "keras_frontend")
MAX_LINES = 400

#: From the bottom up. A unit imports only itself and units of the rows above its own.
LAYERS = (
    ("converter.support.invocation",),
    ("converter.support.errors",),
    (
        "converter.program",
        "converter.support.records",
        "converter.support.files",
        "converter.program.seal",
        "converter.ir.view",
        "converter.support.notes",
        "converter.support.collecting",
        "converter.support.interrupts",
        "converter.support.words",
        "converter.support.extras",
        "converter.support.logs",
        "converter.support.registry",
    ),
    ("converter.support.litert",),
    ("converter.ir", "converter.program.manifest"),
    ("converter.training.losses.links", "converter.training.losses.row_losses"),
    ("converter.passes",),
    (
        "converter.passes.autodiff",
        "converter.training.losses",
        "converter.training.batch_norm",
        "converter.ir.random_numbers",
        "converter.tflite.schedule",
        "converter.tflite.targets",
    ),
    (
        "converter.training.schemes",
        "jax_frontend",
        "converter.tflite",
        "converter.training.dropout",
        "converter.tflite.prepare.tiling",
        "converter.tflite.prepare",
    ),
    ("converter.tflite.costs.step_cost", "converter.runtime.engines"),
    (
        "converter.training.optim",
        "converter.tflite.costs.costs",
        "converter.program.file",
        "converter.training.mixing",
        "converter.tflite.backend",
    ),
    ("converter.program.origins", "converter.training.constraints"),
    ("keras_frontend", "converter.training.losses.own_loss"),
    ("converter.program.layers",),
    (
        "converter.driver.models",
        "converter.runtime",
        "converter.training.step",
        "converter.training.augment",
        "converter.training.fisher",
    ),
    ("converter.program.merge",),
    ("converter.driver.check", "converter.driver.int8", "converter.driver.requests", "converter.driver.account"),
    ("converter.runtime.export", "converter.driver.fingerprint", "converter.driver.entries"),
    (
        "converter.driver.assemble",
        "converter.tools.measure.profile",
        "converter.tools.certify",
        "converter.driver.defaults",
    ),
    ("converter.driver.budget",),
    ("converter.driver.stages",),
    ("converter.driver.pipeline",),
    ("converter.driver.compare", "converter.driver.functions", "converter.tools.report", "converter.tools.measure"),
    ("converter.tools.search", "converter.tools.estimate"),
    ("converter",),
    ("examples",),
    ("converter.cli",),
    ("converter.__main__",),
)

#: Units that may import still less of the project than what is below them.
NARROW = {
    "converter.ir": ("converter.support.errors", "converter.ir.view"),
    "converter.program.file": (
        "converter.support.errors",
        "converter.support.files",
        "converter.program.manifest",
        "converter.program.seal",
        "converter.program.flatbuffer.metadata",
    ),
    # Runs where no compiler is installed or wanted: it knows files, not graphs.
    "converter.runtime": (
        "converter.support.collecting",
        "converter.runtime.engines",
        "converter.support.errors",
        "converter.support.litert",
        "converter.support.logs",
        "converter.support.registry",
        "converter.support.files",
        "converter.ir.view",
        "converter.program.layers",
        "converter.program.manifest",
        "converter.program.file",
        "converter.support.records",
        "converter.program.seal",
        "converter.program.flatbuffer.metadata",
        "converter.program.flatbuffer.parts",
    ),
}

#: Where alone each library may be imported; scripts and tests are free.
LIBRARIES = {
    "jax": ("jax_frontend", "keras_frontend", "converter.training.optim", "examples"),
    "jaxlib": ("jax_frontend",),
    "flax": ("jax_frontend", "examples"),
    "optax": ("jax_frontend", "keras_frontend.optimizers", "converter.training.optim", "examples"),
    "keras": ("keras_frontend", "examples"),
    "sklearn": ("examples",),
    "safetensors": ("converter.runtime.export",),
    "ai_edge_litert": (
        "converter.runtime.engines",
        "converter.runtime",
        "converter.support.litert",
        "converter.program.flatbuffer.schema",
    ),
    "tensorflow": (),
    "torch": (),
}


def within(module: str, prefixes: tuple[str, ...]) -> bool:
    """Is the module one of these, or inside one?"""
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def unit_of(module: str) -> str:
    """The smallest thing the rules speak of: what has a row, else what lies directly in `converter`, else a package."""
    parts = module.split(".")
    rows = {unit for row in LAYERS for unit in row}
    named = (".".join(parts[:length]) for length in range(len(parts), 2, -1))
    own = ".".join(parts[:2]) if parts[0] == "converter" else parts[0]
    return next((name for name in named if name in rows), own)


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
        ("converter.training.losses", "def f():\n    import optax"),
        ("converter.cli.main", "from flax import linen"),
        ("converter.passes.autodiff", "from ai_edge_litert.interpreter import Interpreter"),
        ("converter.driver.models", "import keras"),
        ("keras_frontend.importer", "import tensorflow as tf"),
        ("converter.driver.check", "from tensorflow import lite"),
        ("jax_frontend.model", "import torch"),
        ("converter.ir.graph", "from converter.passes import simplify"),
        ("converter.ir.graph", "from converter import files"),
        ("converter.ir.graph", "from converter import pipeline"),
        ("converter.passes.fold", "from converter.tflite.emit.emit import emit"),
        ("converter.tflite.lowering.lower", "from converter.driver.assemble import Program"),
        ("converter.tflite.lowering.lower", "from converter import build"),
        ("converter.driver.pipeline", "from converter.cli import main"),
        ("converter.training.schemes.select", "if TYPE_CHECKING:\n    from converter.driver.pipeline import build"),
        ("converter.runtime.session", "from converter.ir import Graph"),
        ("converter.runtime.session", "from converter.tflite import metadata, emit"),
        ("converter.runtime.session", "from converter.passes import simplify"),
        ("converter.runtime.session", "import importlib\nimportlib.import_module('converter.driver.pipeline')"),
        ("converter.support.files", "__import__('converter.ir')"),
        ("jax_frontend.model", "import keras_frontend"),
        ("converter.cli.main", "import examples_of_mine.digits\nfrom tests import cases"),
        ("converter.ir.graph", "from . import types"),
        ("converter.ir.graph", "from ..errors import UsageError"),
        ("converter.unheard_of", "import numpy"),
        ("converter.driver.pipeline", "from converter.unheard_of import thing"),
    ],
)
def test_a_planted_import_is_found(module: str, source: str) -> None:
    planted = MODULES | {
        "converter.support.files",
        "converter.driver.pipeline",
        "converter.program.flatbuffer.metadata",
        "converter.tflite.emit.emit",
    }
    assert len(violations(module, source, planted)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jax_frontend.rules.conv", "import jax\nfrom converter.ir import Graph"),
        ("converter.training.optim.trace", "import jax, optax, jax_frontend"),
        ("converter.runtime.session", "from converter.tflite import metadata\nfrom converter.ir.view import View"),
        (
            "converter.runtime.session",
            "from converter.program.flatbuffer.metadata import read\nimport ai_edge_litert.interpreter",
        ),
        (
            "converter.ir.graph",
            "from converter.ir.types import TensorType\nfrom converter.support.errors import UsageError",
        ),
        ("converter", "from converter.driver.pipeline import build"),
        ("converter.cli.main", "import converter\nimport importlib\nimportlib.import_module(name)"),
    ],
)
def test_a_permitted_import_is_not(module: str, source: str) -> None:
    assert violations(module, source, MODULES | {"converter.program.flatbuffer.metadata"}) == []


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
    texts = [*sources(*PACKAGES, "examples", "tests", "scripts"), *scripts(), *(ROOT / "recipes").rglob("*.toml")]
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
