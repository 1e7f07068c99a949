"""Recipes: what to build, as a TOML file that the flags of the command line override."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from converter.cli.references import is_reference
from converter.support.errors import UsageError, nearest
from converter.support.files import check_regular
from converter.support.records import decode

#: No recipe and no table of rules is larger.
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Recipe:
    """What to build; None stands for the default. See docs/cli.md.

    Attributes:
        model: a `.keras` file, `package.module:factory`, `keras:MobileNetV2`, or the name of a built-in example.
        loss: a name, `package.module:function`, or a table {name, ...options}; or a table of these by output.
        optimizer: a name, `package.module:factory`, or a table {name, ...options}.
        update: a scheme's name, a file of glob rules, or a table of them.
        batch: rows of one step.
        micro_batch: rows that are computed at once; see `converter.build`.
        target: runtime, version and processor.
        profile: `measured` for the costs of this machine in place of a target's table.
        state: `variables`, `stateless` or `split`.
        y: element type and shape of one example's target, for a loss of the person's own: `int32`, `float32[10]`; or a
            table of these by target.
        signatures: what the program offers; see `converter.build`.
        frozen: `float32` or `int8`; see `converter.build`.
        calibration: an .npz file of samples for int8: the model's inputs by name (or `x`), and `y` if there are labels.
        memory_budget: resident memory that a session may take, `64MiB`; see `converter.build`.
        batch_norm: `fixed` or `train`; see `converter.build`.
        dropout: `off` or `train`; see `converter.build`.
        augment: `package.module:function` (x, key) -> x, or `keras`; see `converter.build`.
        out: the file to write.
        loss_weights: for a table of losses by output: what each is multiplied by.
        loss_scale: what the gradients of `split` are multiplied by on their way; see `converter.build`.
    """

    model: str | None = None
    loss: Any = None
    optimizer: Any = None
    update: Any = None
    batch: int | None = None
    micro_batch: int | None = None
    target: str | None = None
    profile: Literal["measured"] | None = None
    state: str | None = None
    y: str | dict[str, str] | None = None
    signatures: tuple[str, ...] | None = None
    frozen: str | None = None
    calibration: str | None = None
    memory_budget: str | None = None
    batch_norm: str | None = None
    dropout: str | None = None
    augment: str | None = None
    out: str | None = None
    loss_weights: dict[str, float] | None = None
    loss_scale: float | None = None

    def references(self) -> dict[str, str]:
        """The code that it names (`package.module:name`), by entry: to build would run it."""
        entries = {"model": self.model, "loss": self.loss, "optimizer": self.optimizer, "augment": self.augment}
        if is_by_output(self.loss):
            entries |= {f"loss.{output}": entry for output, entry in self.loss.items()}
        names = {key: entry.get("name") if isinstance(entry, dict) else entry for key, entry in entries.items()}
        return {key: name for key, name in names.items() if isinstance(name, str) and is_reference(name)}

    def overridden(self, **flags: Any) -> Recipe:
        """The recipe with each flag that was given in place of its own entry."""
        return replace(self, **{name: value for name, value in flags.items() if value is not None})


def read_recipe(path: str | os.PathLike) -> Recipe:
    """A recipe from a TOML file; its relative paths are relative to it.

    Raises:
        UsageError: the file is missing or no TOML, or holds an unknown or ill-typed entry.
    """
    path = Path(path)
    try:
        recipe = decode(Recipe, read_table(path), "recipe")
    except UsageError as error:
        raise UsageError(str(error) if str(path) in str(error) else f"{path}: {error}", page="command-line") from None
    folder = path.parent
    return replace(
        recipe,
        model=_beside(folder, recipe.model),
        update=_beside(folder, recipe.update),
        calibration=None if recipe.calibration is None else str(folder / recipe.calibration),
        out=None if recipe.out is None else str(folder / recipe.out),
    )


def read_table(path: Path) -> dict[str, Any]:
    """A TOML or JSON file whose top level is a table.

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
    """Whether an entry for the loss is a table of losses by output, not of the options of one."""
    return isinstance(loss, dict) and "name" not in loss


def is_path(text: str) -> bool:
    """Whether an argument that may be a name is a path."""
    return text.endswith((".keras", ".toml", ".json")) or os.sep in text or "/" in text


def _beside(folder: Path, entry: Any) -> Any:
    """A path as seen from the recipe's folder; names, references and tables stay as they are."""
    return str(folder / entry) if isinstance(entry, str) and is_path(entry) else entry
