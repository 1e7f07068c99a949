"""The arguments and options that commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from converter.cli import completion
from converter.driver.options import declared


def _debug(context: typer.Context, value: bool) -> None:
    """Notes for `main` that tracebacks are wanted."""
    context.obj["debug"] |= value


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A .keras, .tflite, .pt2 or .gguf file, a SavedModel, package.module:factory, keras:MobileNetV2, or the "
        "name of a built-in example (None: one).",
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code that the recipe names as package.module:name.")]
RecipeFile = Annotated[Path | None, typer.Option("--recipe", help="TOML file of what follows; flags override it.")]
Updates = Annotated[
    list[str] | None,
    typer.Option(
        "--update",
        help="A scheme to compare, or a file of glob rules; repeat it for more.",
        autocompletion=completion.scheme,
        show_default="the usual ones",
    ),
]
Profile = Annotated[
    Literal["measured"] | None,
    typer.Option(help="measured: tune for what operators cost on this machine, measured once, in half a minute."),
]
ProgramPath = Annotated[Path, typer.Argument(metavar="FILE.tflite", help="A program that build wrote.")]
Head = Annotated[str | None, typer.Option("--head", metavar="NAME", help="Which head, of a file of several.")]
BoardName = Annotated[
    str | None,
    typer.Option("--board", metavar="NAME", help="Say whether it fits on a board (any other word lists them)."),
]
Out = Annotated[str | None, typer.Option(help="The file to write.", show_default="the model's name")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Wide = Annotated[bool, typer.Option("--wide", help="All columns and rows of tables, not only what 80 columns hold.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No narration, and no logs of libraries.")]
Debug = Annotated[bool, typer.Option("--debug", callback=_debug, expose_value=False, help="Show tracebacks.")]

#: Options that tables of schemes have no use for: they change what a program offers, not what a step costs.
NOT_PRICED = (
    "batch_norm",
    "dropout",
    "augment",
    "preprocess",
    "loss_scale",
    "row_losses",
    "name",
)

C = TypeVar("C", bound=Callable[..., Any])


def with_options(*left_out: str) -> Callable[[C], C]:
    """Give a command the options of a build in the place of its `**flags`, by name; all but some."""
    flags = {name: one for name, one in declared().items() if one.metadata["help"] and name not in left_out}

    def decorate(command: C) -> C:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        place = 1 + [p.name for p in own].index("trust")
        taken = {name: _annotated(name, one) for name, one in flags.items()}
        added = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=of)
            for name, of in taken.items()
        ]
        command.__dict__["__signature__"] = signature.replace(parameters=[*own[:place], *added, *own[place:]])
        command.__annotations__ |= taken
        return command

    return decorate


def _annotated(name: str, option: Field[Any]) -> Any:
    """Return what typer reads of an option: its type, help and default in words, and what completes it."""
    said, number = option.metadata, option.metadata["entry"] in (int, float)
    completes = completion.choices(name) if said["choices"] else completion.OF_OPTIONS.get(name)
    shown = said["shown"] or (option.default is not None and str(option.default))
    described = typer.Option(
        f"--{name.replace('_', '-')}", help=said["help"], autocompletion=completes, show_default=shown
    )
    kind: Any = said["entry"] if number else str
    return Annotated[kind | None, described]
