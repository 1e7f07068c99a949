"""The arguments and options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from converter.cli import completion
from converter.cli.completion import choices
from converter.cli.resolve import DEFAULT_BATCH
from converter.driver.defaults import DEFAULT_LOSS, DEFAULT_OPTIMIZER
from converter.driver.requests import CHOICES

#: Of loss and optimizer.
_COMPILED = "what a Keras model was compiled with, else {}"


def _debug(context: typer.Context, value: bool) -> None:
    """Notes for `main` that tracebacks are wanted."""
    context.obj["debug"] |= value


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A .keras file, package.module:factory, keras:MobileNetV2, or the name of a built-in example (None: one).",
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code that the recipe names as package.module:name.")]
RecipeFile = Annotated[Path | None, typer.Option("--recipe", help="TOML file of what follows; flags override it.")]
Loss = Annotated[
    str | None,
    typer.Option(
        help="A name, or package.module:function (outputs, y) -> loss per example.",
        autocompletion=completion.loss,
        show_default=_COMPILED.format(DEFAULT_LOSS),
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        help="A name, or package.module:factory of an optax transformation.",
        autocompletion=completion.optimizer,
        show_default=_COMPILED.format(DEFAULT_OPTIMIZER),
    ),
]
Update = Annotated[
    str | None,
    typer.Option(
        help="full, head, last-3, bias-only, sparse, lora-16, channels-10, or a TOML or JSON file of rules.",
        autocompletion=completion.scheme,
        show_default="full",
    ),
]
Updates = Annotated[
    list[str] | None,
    typer.Option(
        "--update",
        help="A scheme to compare, or a file of glob rules; repeat it for more.",
        autocompletion=completion.scheme,
        show_default="the usual ones",
    ),
]
Batch = Annotated[int | None, typer.Option(help="Rows of one training step.", show_default=str(DEFAULT_BATCH))]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        help="Rows computed at once; the gradients of a step's micro-batches are added up.",
        show_default="the whole batch",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="Runtime and processor to tune for: litert-2, litert-2/x86-64, gpu, web, hexagon, gpu,litert-2, "
        "or a table of your own: mine.toml.",
        autocompletion=completion.target,
        show_default="litert-2",
    ),
]
Profile = Annotated[
    Literal["measured"] | None,
    typer.Option(help="measured: tune for what operators cost on this machine, measured once, in half a minute."),
]
State = Annotated[
    str | None,
    typer.Option(
        help="variables: the runtime keeps the weights. stateless: they go in and out. split: so too, and gradients "
        "and update are signatures of their own, for accelerators that round to float16.",
        autocompletion=choices("state"),
        show_default="what the target takes",
    ),
]
TypeOfY = Annotated[
    str | None,
    typer.Option(
        "--y", help="Type of one example's y for your own loss: int32, float32[10].", show_default="like the output"
    ),
]
Signatures = Annotated[
    str | None,
    typer.Option(
        help="What the program offers: train,evaluate,infer and features, separated by commas.",
        autocompletion=completion.signatures,
        show_default="train,evaluate,infer",
    ),
]
Frozen = Annotated[
    str | None,
    typer.Option(
        help="float32, or int8 for frozen layers where the target gains by it; needs --calibration.",
        autocompletion=choices("frozen"),
        show_default=CHOICES["frozen"][0],
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(help="An .npz file of samples for int8: x or the inputs by name, and y if there are labels."),
]
MemoryBudget = Annotated[
    str | None,
    typer.Option(
        help="Memory that a session may take, as 64MiB: chooses the largest micro-batch that fits.",
        show_default="no limit",
    ),
]
BatchNorm = Annotated[
    str | None,
    typer.Option(
        help="train: batch normalization that is not frozen takes the batch's statistics. fixed: the learned ones.",
        autocompletion=choices("batch_norm"),
        show_default=CHOICES["batch_norm"][0],
    ),
]
Dropout = Annotated[
    str | None,
    typer.Option(
        help="train: dropout layers drop in a step. off: they do not.",
        autocompletion=choices("dropout"),
        show_default=CHOICES["dropout"][0],
    ),
]
Augment = Annotated[
    str | None,
    typer.Option(
        help="package.module:function (x, key) -> x that a step applies to its inputs; keras: its random layers.",
        show_default="nothing",
    ),
]
LossScale = Annotated[
    float | None,
    typer.Option(
        help="For split, a power of two: gradients are multiplied by it, and the update divides by it.",
        show_default="1",
    ),
]
ProgramPath = Annotated[Path, typer.Argument(metavar="FILE.tflite", help="A program that build wrote.")]
Out = Annotated[str | None, typer.Option(help="The file to write.", show_default="the model's name")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Wide = Annotated[bool, typer.Option("--wide", help="All columns and rows of tables, not only what 80 columns hold.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No narration, and no logs of libraries.")]
Debug = Annotated[bool, typer.Option("--debug", callback=_debug, expose_value=False, help="Show tracebacks.")]
