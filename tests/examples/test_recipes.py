"""The recipes of the repository are read by the command line, and what they ask for exists."""

from pathlib import Path

import pytest

from converter.cli.recipe import read_recipe
from converter.cli.resolve import resolve
from converter.driver.models import import_model
from converter.passes import absorb_layout
from converter.passes.canonical import canonicalize
from converter.training.schemes import update_scheme
from tests.examples.test_examples import OPTIONS

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_resolves_on_its_model(path: Path) -> None:
    job = resolve(read_recipe(path))
    assert job.example is not None
    assert job.options()["batch"] > 1
    source = import_model(job.example.build(**OPTIONS.get(job.name, {})), 2)
    rows = update_scheme(job.scheme(job.update)).resolve(absorb_layout(canonicalize(source.graph)), source.blocks)
    assert 0 < sum(row.fraction > 0 for row in rows) < len(rows)


def test_there_are_some() -> None:
    assert len(RECIPES) >= 3
