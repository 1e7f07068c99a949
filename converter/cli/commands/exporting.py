"""The command `export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from converter.cli.options import Debug, Head, ProgramPath
from converter.cli.tables import Results
from converter.program.file import read_program
from converter.runtime.export import Exported, export_adapter, export_inference, export_weights, trained_weights
from converter.support.errors import UsageError
from converter.support.files import check_place
from converter.support.interrupts import too_late
from converter.support.words import counted, size

#: Ends of files of weights.
_WEIGHTS = (".npz", ".safetensors", ".pt")


def export(
    file: ProgramPath,
    out: Annotated[
        Path,
        typer.Option(
            help="PLAIN.tflite to run, WEIGHTS.npz, .safetensors or .pt, with --model a MODEL.keras, or adapters: a "
            "folder for PEFT, a .gguf for llama.cpp."
        ),
    ],
    state: Annotated[
        Path | None, typer.Argument(metavar="STATE", help="A saved state of this program. None: as it was built.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Trained convolutions on faster kernels, whose last bits differ.")
    ] = False,
    quantize: Annotated[
        str | None,
        typer.Option(metavar="float16|dynamic", help="Weights of a .tflite in half or a quarter of the bytes."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Rows that a .tflite takes; without it one, or as many as its inputs are resized to."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL.keras", help="For a .keras: what the program was built from."),
    ] = None,
    head: Head = None,
    debug: Debug = False,
) -> None:
    """Take the trained model away: without variables, for inference alone, or its weights."""
    _check(out, model, {"--quantize": quantize, "--batch": batch, "--fast": fast or None})
    program = read_program(file, head)
    too_late()
    if model is not None:
        _write_keras(model, trained_weights(program, state), out)
    elif out.suffix in _WEIGHTS:
        Results().line(f"wrote {out} ({size(export_weights(program, out, state))})")
    elif out.suffix == ".tflite":
        _show(out, export_inference(program, out, state, quantize, not fast, batch))
    else:
        export_adapter(program, out, state)
        Results().line(f"wrote {out}, an adapter that {'llama.cpp' if out.suffix else 'PEFT'} loads")


def _check(out: Path, model: Path | None, of_tflite: Mapping[str, Any]) -> None:
    """Raises UsageError for a place that says nothing of what to write, and for flags that are not for that.

    Args:
        out: where to write.
        model: of `--model`.
        of_tflite: by flag, what is given of those for a .tflite; None: nothing.
    """
    known = (".tflite", *_WEIGHTS, ".keras", ".gguf")
    if out.suffix not in (*known, ""):
        raise UsageError(
            f"--out must end with {' or '.join(known)}, or be a folder for adapters, got {out}", page="command-line"
        )
    if (out.suffix == ".keras") != (model is not None):
        raise UsageError(
            "a .keras is made from the one that the program was built from: --model MODEL.keras --out NEW.keras",
            page="command-line",
        )
    for flag, given in of_tflite.items():
        if given is not None and out.suffix != ".tflite":
            raise UsageError(f"{flag} is for a .tflite, and --out is {out}", page="command-line")
    if out.suffix:
        check_place(out)


def _show(out: Path, done: Exported) -> None:
    results, rows = Results(), counted(done.rows, "row")
    others = "or as many as its inputs are resized to" if done.is_resizable else "and no other number"
    results.line(f"wrote {out} ({size(done.nbytes)}); it takes {rows}, {others}")
    if done.loss is not None:
        results.line(
            f"{done.nbytes / done.whole:.0%} of the {size(done.whole)} with float32 weights; on random inputs the "
            f"outputs, up to {done.loss.largest:.3g}, differ by at most {done.loss.difference:.2g}"
        )


def _write_keras(model: Path, weights: Mapping[str, Any], out: Path) -> None:
    from converter.frontends.keras import runs_jax

    if not runs_jax():
        raise UsageError("a .keras is written by Keras on JAX: set KERAS_BACKEND=jax", page="command-line")
    from converter.frontends.keras.export import with_weights

    copied = with_weights(model, weights, out)
    Results().line(f"wrote {out} ({size(copied.nbytes)})")
    Results().line(
        "compiled as before: loss, optimizer, metrics; the optimizer begins anew, without slots, at step 0"
        if copied.is_compiled
        else f"{model} was not compiled, so neither is {out}: name loss and optimizer when it is built again"
    )
