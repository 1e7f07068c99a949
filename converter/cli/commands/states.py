"""The command about saved states: `state`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from converter.cli.as_json import print_json
from converter.cli.options import Debug, Head, Json
from converter.cli.tables import Results
from converter.program.file import read_program
from converter.program.manifest import LOSS_OF_STEP
from converter.runtime.state.interchange import UNPROVEN, StateSpec
from converter.runtime.state.saved import Compared, compared, load_state
from converter.runtime.state.state_file import State
from converter.support.errors import UsageError

#: Digits of a hash that people compare by eye.
_DIGITS = 16


def state(
    file: Annotated[Path, typer.Argument(metavar="FILE.state", help="A state that a session or a phone saved.")],
    against: Annotated[
        Path | None, typer.Option(metavar="FILE.tflite", help="A program: does the state go on there, and if not, why?")
    ] = None,
    head: Head = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is in a saved state, and whether a program takes it."""
    if head is not None and against is None:
        raise UsageError("--head is of the program of --against FILE.tflite: name it", page="command-line")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = load_state(file)
    heard = [str(warning.message) for warning in said]
    result = None if against is None else compared(found, StateSpec.of(read_program(against, head)))
    if result is not None and (refusal := result.refusal()):
        raise UsageError(
            f"{' '.join([*heard, str(file)])} does not go on in {against}: {_why(result, refusal)}", page="state-files"
        )
    if as_json:
        print_json({"file": str(file), "warnings": heard, **_json(found, result)})
        return
    _show(file, found, heard)
    if result is not None:
        Results().line(f"it goes on in {against}" + ("" if result.proven else f", as far as can be told: {UNPROVEN}"))


def _why(result: Compared, refusal: UsageError) -> str:
    """Return why a session refuses the state, and what it takes of it where it is asked to."""
    if not result.differences or result.refusal(adopting=True):
        return str(refusal)
    count = f"{len(result.adopted)} of the program's {len(result.adopted) + len(result.left)} tensors"
    return f"{'; '.join(result.differences)}. Restored with adopt='matching' it gives {count}"


def _show(file: Path, state: State, said: list[str]) -> None:
    results, identity = Results(), state.spec.identity
    for line in said:
        results.line(line)
    results.line(f"{file}, format {state.version}, generation {state.generation}, graph {state.spec.program[:_DIGITS]}")
    if identity is not None:
        frozen = "rounded frozen layers, " if identity.int8 else ""
        results.line(f"optimizer {identity.optimizer}, {frozen}forward computation {identity.forward}")
    for place, labels in enumerate(state.spec.labels):
        if labels:
            results.line(f"classes of output {place}: {', '.join(labels)}")
    results.line()
    rows = [
        (
            t.name,
            f"{t.dtype}{list(t.model.shape)}" if t.model else "not said",
            f"{t.dtype}{list(t.shape)}",
            "slot" if t.slot or t.tensor == LOSS_OF_STEP else "trained",
        )
        for t in state.spec.tensors
    ]
    results.table("Tensors", ("name", "in the model", "as stored", ""), rows)
    if identity is not None and identity.frozen:
        weights = [(w.name, str(list(w.shape)), w.digest) for w in identity.frozen]
        results.table("Frozen weights it was trained with", ("name", "in the model", "digest"), weights)


def _json(state: State, result: Compared | None) -> dict[str, Any]:
    spec = state.spec
    tensors = [
        {"name": t.name, "dtype": t.dtype, "shape": list(t.model.shape if t.model else t.shape), "slot": t.slot}
        for t in spec.tensors
    ]
    what = {"format": state.version, "generation": state.generation, "program": spec.program, "tensors": tensors}
    what |= {"identity": None if spec.identity is None else spec.identity.to_json()}
    what |= {"labels": [list(labels) for labels in spec.labels]}
    if result is None:
        return what
    return what | {"against": {"proven": result.proven, "adopted": list(result.adopted)}}
