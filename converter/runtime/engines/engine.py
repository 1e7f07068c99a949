"""Engine interface: set-up, version, processes and refusals."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from converter.runtime.engines.work import Outcome, Task, perform
from converter.support.errors import UsageError

#: Where engines are set up; else in a folder of the user's cache.
FOLDER = "POCKETUNE_ENGINES"
#: Seconds that an engine may take for a program.
LIMIT = 900.0


class Refusal(NamedTuple):
    """What an engine says that it does not take; either may be empty."""

    operator: str
    reason: str


class Engine(ABC):
    """An engine that runs programs, each in a process of its own.

    Attributes:
        name: what a user calls it.
        title: what it is.
        precision: in which it computes, `float32` or `float16`.
        worker: the module whose process runs programs.
        apart: whether it takes one signature in a file, and no more.
        has_variables: whether a program's variables keep their values in it from one call to the next.
        has_truth_values: whether they go in and out of it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    precision: ClassVar[str]
    worker: ClassVar[str]
    apart: ClassVar[bool] = False
    has_variables: ClassVar[bool] = False
    has_truth_values: ClassVar[bool] = True

    def __init__(self, processor: str = "") -> None:
        """The engine, for a processor where it compiles for one. Raises UsageError for one that is not known."""
        if processor:
            raise UsageError(f"on: {self.name} stands alone, without {processor!r}", page="engines")

    @property
    def on(self) -> str:
        """What a user asks for."""
        return self.name

    @property
    def parts(self) -> tuple[Engine, ...]:
        """What runs a program there, each of which must take it whole and be right."""
        return (self,)

    @property
    def label(self) -> str:
        """Which part of an engine it is; empty where it is all of it."""
        return ""

    @property
    @abstractmethod
    def version(self) -> str:
        """Of the engine; a certificate holds for this one alone."""

    @abstractmethod
    def missing(self) -> str | None:
        """Return what it lacks on this machine and how it is set up; None where it is there."""

    @abstractmethod
    def set_up(self, accepted: bool) -> str:
        """Fetches what it needs, unless that is there; says where it is.

        Args:
            accepted: the user has accepted the licence of what is fetched, where there is one to accept.

        Raises:
            UsageError: it cannot be had, or a licence was not accepted.
        """

    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        return {}

    def options(self) -> dict[str, Any]:
        """Return what its process is told, plain JSON values."""
        return {}

    @abstractmethod
    def refusals(self, log: str) -> list[Refusal]:
        """Return what it wrote of operators that it does not take, each once."""

    def run(self, tasks: Sequence[Task], limit: float = LIMIT) -> list[Outcome]:
        """Runs programs; one that crashes or hangs says so in its outcome.

        Raises:
            UsageError: the time of `at_most` is over.
        """
        return perform(self.worker, tasks, self.options(), self.environment(), limit)


def engines_folder() -> Path:
    """Return the folder where engines are set up."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".cache/pocketune/engines")
