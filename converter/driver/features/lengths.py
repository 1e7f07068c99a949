"""`length=(64, 256)`: the signatures that take rows once more for each shorter length, with the same state and weights.

Each length is a compilation of its own, from the model for so many tokens; what it stores is stored as that of the
longest is, so only its signatures are taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from converter.driver.compilation import Compilation
from converter.driver.requests import Request
from converter.ir import Graph
from converter.ir.module import Module
from converter.support.errors import UsageError

#: What needs rows of one length.
_ONE_LENGTH = ("features", "fisher")


def of_shorter(request: Request, loss: Any) -> Request:
    """Return what is asked of the program for a shorter length.

    Args:
        request: what is asked of the longest.
        loss: its name, or a named loss.

    Raises:
        UsageError: an option does not go together with several lengths.
    """
    options = request.options
    for asked, what in (
        (
            getattr(loss, "stated", loss) != "next_token",
            "another loss than next_token, of whose targets it is not known what stands for none",
        ),
        (options.frozen == "int8", "frozen='int8', whose samples are of one length: take int4-blockwise"),
        (options.augment is not None, "augment"),
        (bool(request.rows_to_infer), "infer for other numbers of rows"),
        *((name in request.signatures, f"the signature {name!r}") for name in _ONE_LENGTH),
    ):
        if asked:
            raise UsageError(f"several lengths do not go together with {what}", page="arguments")
    offered = tuple(name for name in request.signatures if name != "generate")
    return replace(request, options=replace(options, signatures=offered, calibration=None))


def with_shorter(longest: Compilation, shorter: Mapping[int, Callable[[], Module]]) -> Compilation:
    """Return a compilation whose program has the signatures of others too, `train_length_64` for one.

    Args:
        longest: done.
        shorter: what makes the program for so many tokens.
    """
    program = longest.program
    for length, make in shorter.items():
        made = {f"{name}_length_{length}": graph for name, graph in make().items() if name != "apply"}
        _check_stored_alike(made, longest.program, length)
        program = program.including(**made)
    return replace(longest, program=program)


def _check_stored_alike(made: Mapping[str, Graph], known: Module, length: int) -> None:
    """Raise UsageError where a weight is stored otherwise for some length, or the longest does not have it."""
    stored = {p.name: (v.type, p.view) for graph in known.values() for v, p in graph.parameters.items()}
    for graph in made.values():
        for value, parameter in graph.parameters.items():
            if stored.get(parameter.name) != (value.type, parameter.view):
                raise UsageError(
                    f"length {length}: for so many tokens {parameter.name} is kept in another form: leave it out",
                    page="arguments",
                )
