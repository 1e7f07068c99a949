"""Recipes: what to build, as a TOML file that the flags of the command line override."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from converter.cli.references import is_reference
from converter.driver.options import declared
from converter.support.errors import UsageError, nearest
from converter.support.files import check_regular
from converter.support.records import decode
from converter.training.schemes import is_scheme

#: The type of each entry for an option, by its name.
ENTRIES: dict[str, Any] = {
    name: one.metadata["entry"] for name, one in declared().items() if one.metadata["entry"] is not None
}
#: No recipe and no table of rules is larger.
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Recipe:
    """What to build; None, or no entry, stands for the default. See docs/cli.md.

    Attributes:
        model: a `.keras` file, `package.module:factory`, `keras:MobileNetV2`, or the name of a built-in example.
        profile: `measured` for the costs of this machine in place of a target's table.
        out: the file to write.
        options: those of `pocketune.build` that are asked for, by the name of their entry, as a TOML file holds them:
            code as `package.module:name`, samples as a path, types as `int32[16]`.
    """

    model: str | None = None
    profile: Literal["measured"] | None = None
    out: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Return an entry for an option, None where there is none."""
        return self.options.get(name)

    def references(self) -> dict[str, str]:
        """Return the code that it names (`package.module:name`), by entry: to build would run it."""
        entries = {"model": self.model, **self.options}
        if is_by_output(loss := self.get("loss")):
            entries |= {f"loss.{output}": entry for output, entry in loss.items()}
        names = {key: entry.get("name") if isinstance(entry, dict) else entry for key, entry in entries.items()}
        return {key: name for key, name in names.items() if isinstance(name, str) and is_reference(name)}

    def overridden(self, **flags: Any) -> Recipe:
        """Return the recipe with each flag that was given in place of its own entry."""
        given = {name: value for name, value in flags.items() if value is not None}
        own = {name: given.pop(name) for name in ("model", "profile", "out") if name in given}
        return replace(self, **own, options={**self.options, **given})

    def without(self, *names: str) -> Recipe:
        """Return the recipe without entries for some options."""
        return replace(self, options={name: entry for name, entry in self.options.items() if name not in names})

    def entries(self) -> dict[str, Any]:
        """Return all that it says, in the order of a file."""
        said = {
            "model": self.model,
            **{name: self.get(name) for name in ENTRIES},
            "profile": self.profile,
            "out": self.out,
        }
        return {name: value for name, value in said.items() if value is not None}


def read_recipe(path: str | os.PathLike) -> Recipe:
    """Return a recipe from a TOML file; its relative paths are relative to it.

    Raises:
        UsageError: the file is missing or no TOML, or holds an unknown or ill-typed entry.
    """
    path = Path(path)
    try:
        recipe = _checked(read_table(path))
    except UsageError as error:
        raise UsageError(str(error) if str(path) in str(error) else f"{path}: {error}", page="command-line") from None
    folder, update = path.parent, recipe.get("update")
    return recipe.overridden(
        model=_beside(folder, recipe.model),
        update=update if isinstance(update, str) and is_scheme(update) else _beside(folder, update),
        calibration=None if recipe.get("calibration") is None else str(folder / recipe.get("calibration")),
        out=None if recipe.out is None else str(folder / recipe.out),
    )


def _checked(table: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a table is. Raise UsageError for an unknown or ill-typed entry."""
    kinds = {**ENTRIES, "model": str, "profile": Literal["measured"], "out": str}
    for name in table:
        if name not in kinds:
            raise UsageError(f"recipe: unknown field {name!r}.{nearest(name, kinds)}", page="command-line")
    said = {name: decode(kinds[name] | None, value, f"recipe.{name}") for name, value in table.items()}
    return Recipe().overridden(**said)


def read_table(path: Path) -> dict[str, Any]:
    """Return a TOML or JSON file whose top level is a table.

    Raises:
        UsageError: the file is missing, not readable, or not well-formed.
    """
    check_regular(path)
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(
                f"{path} has {path.stat().st_size} bytes, more than any recipe or table of rules", page="command-line"
            )
        text = path.read_bytes().decode()
        table = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UsageError(f"no such file: {path}.{nearest(path.name, siblings)}", page="command-line") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", page="command-line") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid {kind}: {error}", page="command-line") from None
    if not isinstance(table, dict):
        raise UsageError(f"{path}: expected an object at the top, got {type(table).__name__}", page="command-line")
    return table


def is_by_output(loss: Any) -> bool:
    """Return whether an entry for the loss is a table of losses by output, not of the options of one."""
    return isinstance(loss, dict) and "name" not in loss


#: Of models that are files, of others that people pass, and of tables.
_SUFFIXES = (".keras", ".tflite", ".pt2", ".gguf", ".pt", ".pth", ".h5", ".toml", ".json")


def is_path(text: str) -> bool:
    """Return whether an argument that may be a name is a path."""
    return text.endswith(_SUFFIXES) or os.sep in text or "/" in text


def _beside(folder: Path, entry: Any) -> Any:
    """Return a path as seen from the recipe's folder; names, references and tables stay as they are."""
    return str(folder / entry) if isinstance(entry, str) and is_path(entry) else entry
