"""The command `learn`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from converter.cli.narration import Narrator
from converter.cli.options import Debug, Json, Quiet
from converter.cli.tables import Results

if TYPE_CHECKING:
    from converter.tools.learn import Learned


def learn(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="A .gguf file, or a folder of transformers.")],
    examples: Annotated[
        Path,
        typer.Argument(
            metavar="EXAMPLES.jsonl",
            help='A line for each: {"messages": [...]}, {"prompt": "...", "answer": "..."} or {"text": "..."}.',
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where the adapter goes: a folder for PEFT, a .gguf for llama.cpp.")] = Path(
        "adapter"
    ),
    held_out: Annotated[
        Path | None, typer.Option(help="Other examples to judge by. None: every tenth of the examples.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=2, help="Tokens of a row. None: of the longest example, 512 at most.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often each example is seen.")] = 3,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of the first step; it falls to a tenth of it.")] = 2e-4,
    update: Annotated[str, typer.Option(help="Which layers have adapters, of which rank.")] = "lora-8:all-linear",
    frozen: Annotated[str, typer.Option(help="What the other weights are stored as.")] = "int4-blockwise",
    rehearse: Annotated[
        bool, typer.Option("--rehearse/--no-rehearse", help="Learn the model's own answers to general questions too.")
    ] = True,
    keep_base: Annotated[
        float, typer.Option(min=0, help="Weight of a penalty for answers unlike the base's own, for example 0.1.")
    ] = 0.0,
    ask: Annotated[
        list[str] | None, typer.Option(help="A question to ask before and after, not taught. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the examples.")] = 0,
    every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 120.0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Teach a language model your examples, and take what it learned away as an adapter.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from converter.tools.learn import learn as run

    found = run(
        base,
        examples,
        out,
        Narrator(quiet).say,
        held_out=held_out,
        length=length,
        epochs=epochs,
        learning_rate=learning_rate,
        update=update,
        frozen=frozen,
        rehearse=rehearse,
        keep_base=keep_base,
        asks=tuple(ask or ()),
        every=every,
        seed=seed,
    )
    if as_json:
        said = {**asdict(found), "state": str(found.state), "program": str(found.program), "adapter": str(out)}
        Results().line(json.dumps(said, ensure_ascii=False))
    else:
        _show(found, out)


def _show(found: Learned, out: Path) -> None:
    results, (before, after) = Results(), found.perplexity
    results.line(f"perplexity of held-out answers: {before:.2f} before, {after:.2f} after {found.steps} steps")
    for question, wanted, was, now in found.answers:
        results.line(f"{question}")
        results.line(f"  wanted {wanted!r}; before {was!r}; after {now!r}")
    for question, was, now in found.others:
        results.line(f"{question}")
        results.line(f"  not taught; {f'still {now!r}' if now == was else f'before {was!r}; after {now!r}'}")
    results.line(f"wrote {out}; {found.program} with {found.state} goes on with it")
