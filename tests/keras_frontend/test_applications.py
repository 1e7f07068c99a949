"""The nets of keras.applications by name."""

from pathlib import Path

import pytest

from converter.cli.recipe import Recipe, read_recipe
from converter.cli.resolve import resolve
from converter.frontends.keras.applications import application, names
from converter.support.errors import UsageError


def test_a_net_by_its_name() -> None:
    model = application("MobileNet", size=32, classes=3, alpha=0.25)
    assert (model.input_shape, model.output_shape) == ((None, 32, 32, 3), (None, 3))
    assert len(names()) > 35


def test_an_unknown_net() -> None:
    with pytest.raises(UsageError, match="Did you mean 'MobileNetV2'"):
        application("MobilNetV2")


def test_a_recipe_that_names_a_net_names_no_code(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('model = "keras:MobileNetV3Small"')
    recipe = read_recipe(tmp_path / "recipe.toml")
    assert not recipe.references()
    assert resolve(recipe).name == "MobileNetV3Small"


def test_the_command_line_says_that_the_weights_are_random() -> None:
    job = resolve(Recipe(model="keras:Mobile"))
    with pytest.warns(UserWarning, match="keras:Mobile has random weights"), pytest.raises(UsageError, match="no 'Mob"):
        job.model()
