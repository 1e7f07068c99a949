"""Resolution of a recipe to the arguments of `pocketune.build`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.cli.recipe import Recipe, is_by_output, is_path, read_recipe, read_table
from converter.cli.references import APPLICATION, call, find, is_reference
from converter.driver.options import Options
from converter.ir import FLOAT32, INT32, TensorType
from converter.program.samples import read_samples
from converter.support.errors import UsageError, nearest
from converter.support.extras import bringing, how_to_install, require
from converter.support.files import check_place
from converter.training.losses import loss_from_table
from converter.training.schemes import Channels, LoRA, SkipLoRA, UpdateScheme, is_scheme, update_scheme

if TYPE_CHECKING:
    from examples import Example


@dataclass(frozen=True)
class BuildJob:
    """A recipe that was understood; the model itself is not made yet.

    Attributes:
        recipe: what was asked for.
        name: the model in a word; the file is called after it.
        example: the built-in example that is the model; None for the user's own.
        update: the scheme that was asked for; None for none.
        asked: the options of `pocketune.build` that were asked for, but for what is read late (samples, code).
    """

    recipe: Recipe
    name: str
    example: Example | None
    update: Any
    asked: Mapping[str, Any]

    @property
    def batch(self) -> int:
        """The rows of a step."""
        return int(self.asked.get("batch", Options.batch))

    def model(self) -> Any:
        """Return the model: a path, or what the factory or the example builds. Runs the user's code."""
        if self.example is not None:
            return _built(self.example)
        text = str(self.recipe.model)
        if text.startswith(APPLICATION):
            return _application(text.removeprefix(APPLICATION))
        return call(text) if is_reference(text) else Path(text)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `pocketune.build`, but for `update`. Reads samples and code that is named."""
        late = {name: read(entry) for name, read in _LATE.items() if (entry := self.recipe.get(name)) is not None}
        target = self.recipe.get("target")
        return {**self.asked, **late, **({} if target is None else {"target": target})}

    def scheme(self, update: Any) -> Any:
        """Return a scheme as for `pocketune.build`; an example knows its own sparse one."""
        if update == "sparse" and self.example is not None and isinstance(self.example.sparse, Mapping):
            return UpdateScheme("sparse", dict(self.example.sparse))
        return update


def resolve(recipe: Recipe) -> BuildJob:
    """Understands a recipe, without making the model.

    Raises:
        UsageError: an entry names what there is not, or has no meaning.
    """
    name, example = _model(recipe.model)
    batch = Options.batch if recipe.get("batch") is None else recipe.get("batch")
    if batch < 1:
        raise UsageError(f"batch must be at least 1, got {batch}", page="command-line")
    loss = recipe.get("loss") if recipe.get("loss") is not None or example is None else example.loss
    read = {
        **{name: entry for name, entry in recipe.options.items() if name not in _LATE},
        "loss": _loss(loss),
        "optimizer": _optimizer(recipe.get("optimizer")),
        "y": _targets(recipe.get("y"), batch),
        "update": None,
    }
    asked = {name: value for name, value in read.items() if value is not None}
    return BuildJob(recipe, name, example, resolve_update(recipe.get("update")), asked)


def job_of(recipe: Path | None, trust: bool, **flags: Any) -> BuildJob:
    """Return what the recipe and the flags ask for.

    Raises:
        UsageError: the recipe names code, and nobody said that it may run.
    """
    base = Recipe() if recipe is None else read_recipe(recipe)
    for listed in ("signatures", "outputs"):
        if isinstance(flags.get(listed), str):
            flags[listed] = tuple(flags[listed].split(","))
    if flags.get("length") is not None:
        flags["length"] = _lengths(flags["length"])
    if (said := flags.get("classes")) is not None and said.isdecimal():
        flags["classes"] = int(said)
    for entry, code in base.references().items():
        if flags.get(entry) is None and not trust:
            raise UsageError(
                f"{recipe}: {entry} names code, {code!r}, which would be run. Add --trust if you trust this recipe and "
                f"that module, or name the {entry} on the command line",
                page="command-line",
            )
    wanted = base.overridden(**flags)
    model = wanted.model or ""
    require("keras" if model.startswith(APPLICATION) or model.endswith(".keras") else "compiler", "compiling a model")
    return resolve(wanted)


def output_path(job: BuildJob) -> Path:
    """Return where the program goes: checked before the work, not after it.

    Raises:
        UsageError: the directory is missing or not writable, or the name is not that of a program.
    """
    path = Path(job.recipe.out or f"{job.name}.tflite")
    if path.suffix != ".tflite":
        raise UsageError(f"the file to write must end with .tflite, got {path}", page="command-line")
    model = job.recipe.model
    if model is not None and path.exists() and Path(model).exists() and path.samefile(model):
        raise UsageError(
            f"{path} is the model itself: name another file to write, --out {job.name}-personal.tflite",
            page="command-line",
        )
    check_place(path)
    return path


def resolve_update(update: Any) -> Any:
    """Return an update scheme as for `pocketune.build`, from a name, a file of glob rules, or a table of them.

    Raises:
        UsageError: unknown name, unreadable file, or a rule that is neither a fraction in 0..1, "bias", "all" nor a
            table of an adapter.
    """
    if isinstance(update, str):
        if is_scheme(update) or not is_path(update):
            return update_scheme(update).name
        return UpdateScheme(Path(update).stem, _rules(read_table(Path(update)), update))
    return UpdateScheme("rules", _rules(update, "update")) if update is not None else None


def _rules(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, Mapping) or not table:
        raise UsageError(
            f'{where}: expected a name, or a table of rules {{"glob" = fraction}}, got {table!r}', page="command-line"
        )
    rules: dict[str, Any] = {}
    for pattern, grant in table.items():
        if isinstance(grant, Mapping):
            rules[pattern] = _adapter(grant, f"{where}: rule {pattern!r}")
            continue
        number = isinstance(grant, int | float) and not isinstance(grant, bool) and 0 <= grant <= 1
        if not number and grant not in ("bias", "all"):
            raise UsageError(
                f'{where}: rule {pattern!r}: expected a fraction in 0..1, "bias", "all", {{lora = 8}}, '
                f"{{skip_lora = 8}} or {{channels = 0.25}}, got {grant!r}",
                page="command-line",
            )
        rules[pattern] = 1.0 if grant == "all" else grant
    return rules


def _adapter(table: Mapping[str, Any], where: str) -> LoRA | Channels | SkipLoRA:
    """Return channels, a way to the logits or a LoRA from a table.

    The ratio is called `channels`, the rank `skip_lora`, beside which `parts` may be, or `lora` with its other options.
    """
    try:
        if "channels" in table and table.keys() <= {"channels", "redrawn"}:
            return Channels(table["channels"], table.get("redrawn", False))
        if "skip_lora" in table and table.keys() <= {"skip_lora", "parts"}:
            return SkipLoRA(table["skip_lora"], parts=table.get("parts", 1))
    except UsageError as error:
        raise UsageError(f"{where}: {error}", page="command-line") from None
    options = [field.name for field in fields(LoRA) if field.name != "rank"]
    if odd := [key for key in table if key not in ("lora", *options)]:
        raise UsageError(f"{where}: unknown option {odd[0]!r}.{nearest(odd[0], options)}", page="command-line")
    if "lora" not in table:
        raise UsageError(
            f"{where}: the rank is missing: {{lora = 8, alpha = 16}}; the other adapters are {{channels = 0.25}} and "
            f"{{skip_lora = 8}}",
            page="command-line",
        )
    try:
        return LoRA(**{"rank" if key == "lora" else key: value for key, value in table.items()})
    except UsageError as error:
        raise UsageError(f"{where}: {error}", page="command-line") from None


def _lengths(said: str) -> int | tuple[int, ...]:
    """Return the tokens of rows: a number, or several, separated by commas."""
    try:
        numbers = tuple(int(number) for number in said.split(","))
    except ValueError:
        raise UsageError(
            f"length: expected a number of tokens, or several as 64,256, got {said!r}", page="command-line"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def _optimizer(entry: Any) -> Any:
    """Return an optimizer as for `pocketune.build`: a name, or what a factory makes."""
    if isinstance(entry, str) or entry is None:
        return call(entry) if entry is not None and is_reference(entry) else entry
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise UsageError(
            f'optimizer: expected a name, or a table {{name = "adamw", ...options}}, got {entry!r}', page="command-line"
        )
    options = {key: value for key, value in entry.items() if key != "name"}
    name: str = entry["name"]
    if is_reference(name):
        return call(name, options)
    from converter.training.optim.named import NamedOptimizer

    return NamedOptimizer(name, options)


def _augment(entry: str) -> Any:
    if entry == "keras":
        return entry
    if not is_reference(entry):
        raise UsageError(f"augment: expected package.module:function, or keras, got {entry!r}", page="command-line")
    return find(entry)


def _loss(entry: Any) -> Any:
    """Return a loss as for `pocketune.build`, or one for each output."""
    if is_by_output(entry):
        return {output: _one_loss(one) for output, one in entry.items()}
    return _one_loss(entry)


def _one_loss(entry: Any) -> Any:
    if isinstance(entry, Mapping):
        return loss_from_table(entry)
    if entry is not None and not isinstance(entry, str):
        raise UsageError(
            f"loss: expected a name, or a table with a name and options, got {entry!r}", page="command-line"
        )
    return find(entry) if entry is not None and is_reference(entry) else entry


def _model(model: str | None) -> tuple[str, Example | None]:
    """Name of the model, and the built-in example where it is one."""
    if model is not None and (model.startswith(APPLICATION) or is_reference(model)):
        return model.rpartition(":")[2], None
    if model is not None and (is_path(model) or Path(model).exists()):
        return Path(model).stem, None
    examples, default = _examples()
    if model is None and not examples:
        raise UsageError("name a MODEL: the built-in examples are not part of this installation", page="command-line")
    name = model or default
    if name not in examples:
        built_in = f", or a built-in example: {', '.join(examples)}" if examples else ""
        beside = [p.name for p in Path.cwd().glob("*.keras")]
        raise UsageError(
            f"unknown model {name!r}.{nearest(name, [*examples, *beside])} A model is a .keras, .tflite, .pt2 or .gguf "
            f"file, package.module:factory, keras:MobileNetV3Small (any net of keras.applications){built_in}.",
            page="command-line",
        )
    return name, examples[name]


def _application(name: str) -> Any:
    from converter.frontends.keras.applications import application

    warnings.warn(
        f"{APPLICATION}{name} has random weights, for nothing is downloaded: for weights of your own, save the model "
        "with them as a .keras file and build that",
        stacklevel=2,
    )
    return application(name)


def _examples() -> tuple[Mapping[str, Example], str]:
    try:
        from examples import DEFAULT, EXAMPLES
    except ImportError as error:
        if error.name != "examples":
            raise
        return {}, ""
    return EXAMPLES, DEFAULT


def _built(example: Example) -> Any:
    """Return an example's model. Raise UsageError where a library of an extra is missing."""
    try:
        return example.build()
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        extra = bringing(library)
        if extra is None:
            raise
        raise UsageError(
            f"the example {example.name} needs {library}: {how_to_install(extra)}", page="arguments"
        ) from error


def _targets(y: str | dict[str, str] | None, batch: int) -> TensorType | dict[str, TensorType] | None:
    if isinstance(y, dict):
        return {name: _type(text, batch) for name, text in y.items()}
    return None if y is None else _type(y, batch)


def _type(text: str, batch: int) -> TensorType:
    """Return the type of a batch of y from that of one example's: `int32`, `float32[10]`."""
    match = re.fullmatch(r"(float32|int32)(?:\[((?:\d+(?:,\s*\d+)*)?)\])?", text.strip())
    if match is None:
        raise UsageError(
            f"y: expected a type such as int32, int32[16] or float32[10], got {text!r}", page="command-line"
        )
    dims = tuple(int(size) for size in (match[2] or "").split(",") if size)
    return TensorType((batch, *dims), FLOAT32 if match[1] == "float32" else INT32)


#: What is read only when the build begins, by option.
_LATE: Mapping[str, Callable[[Any], Any]] = {
    "augment": _augment,
    "calibration": lambda entry: read_samples(Path(entry)),
}
