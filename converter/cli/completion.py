"""Shell completion: the lists that the compiler itself goes by."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence

from converter.backend.targets.target import tables
from converter.driver.option_values import SIGNATURES
from converter.driver.options import declared
from converter.support.invocation import NAME
from converter.training.losses import LOSSES
from converter.training.schemes.named import examples

Completer = Callable[[str], list[str]]

#: Where the shell says that it asks; typer names it after the command.
_ASKED = f"_{NAME.upper()}_COMPLETE"
_SET_UP = {"--install-completion", "--show-completion"}


def is_asked(arguments: Sequence[str] | None) -> bool:
    """Return whether a shell asks for completions, or a user for their set-up: by the name of the command."""
    return _ASKED in os.environ or bool(_SET_UP & {*(sys.argv[1:] if arguments is None else arguments)})


def _completes(known: Callable[[], Iterable[str]], listed: bool = False) -> Completer:
    """Completes one of the known words; with `listed`, the last one of several between commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",") if listed else ("", "", incomplete)
        taken = before.split(",") if comma else []
        return [f"{before}{comma}{name}" for name in known() if name.startswith(word) and name not in taken]

    return complete


def choices(option: str) -> Completer:
    """Return what completes an option with a few values, by its name."""
    return _completes(lambda: declared()[option].metadata["choices"])


def _schemes() -> Iterable[str]:
    return sorted(examples())


def _optimizers() -> Iterable[str]:
    from converter.training.optim import named

    return named.NAMED


def _engines() -> Iterable[str]:
    from converter.runtime.engines import names

    return names()


def _devices() -> Iterable[str]:
    from converter.tools.estimate import devices

    return devices()


def _passes() -> Iterable[str]:
    from converter.driver.pipeline import PIPELINE

    return (one.name for one in PIPELINE)


target, signatures = _completes(tables, listed=True), _completes(lambda: SIGNATURES, listed=True)
scheme, optimizer, loss = _completes(_schemes), _completes(_optimizers), _completes(lambda: LOSSES)
engine, device, passes = _completes(_engines), _completes(_devices), _completes(_passes)
#: Of options of a build, by name; those with a few values are completed by these.
OF_OPTIONS: dict[str, Completer] = {
    "loss": loss,
    "optimizer": optimizer,
    "signatures": signatures,
    "target": target,
    "update": scheme,
}
