"""Pass manager: runs a list of passes, each with its requirements, guarantees and the reason for its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import process_time
from typing import Any, Generic, Protocol, TypeVar

from converter.ir.module import Module, verify_module
from converter.support.collecting import let_go


class HasModules(Protocol):
    """What passes hand on."""

    @property
    def modules(self) -> Mapping[str, Module]:
        """Modules by name."""


S = TypeVar("S", bound=HasModules)


@dataclass(frozen=True)
class Pass(Generic[S]):
    """One entry of a pipeline.

    Attributes:
        name: as it is asked for.
        run: what is known -> what is known after it.
        why: the reason for its place.
        requires: what must be ensured before.
        ensures: what holds from here on.
    """

    name: str
    run: Callable[[S], S]
    why: str = ""
    requires: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()


class PipelineError(AssertionError):
    """A pipeline whose passes stand in an order that cannot be: a defect of the compiler."""


@dataclass
class Watch:
    """What is to be seen of the passes that run.

    Attributes:
        verifies: whether every graph that a pass made is checked.
        dumps: the name of the pass after which graphs are kept as text.
        checks: what raises where something does not hold, by the name that passes ensure and require it by: called
            after those that ensure it, and before those that require it.
        seconds: CPU time by pass, of all pipelines together.
        dumped: what was kept: the text of each graph by its name.
    """

    verifies: bool = False
    dumps: str | None = None
    checks: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    dumped: dict[str, str] = field(default_factory=dict)


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """Inside, all pipelines are watched."""
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)


def in_order_of_need(*passes: Pass[S]) -> tuple[Pass[S], ...]:
    """Return passes as a pipeline.

    Raises:
        PipelineError: one stands before what ensures what it requires, or two have one name.
    """
    ensured: set[str] = set()
    for one in passes:
        if missing := [what for what in one.requires if what not in ensured]:
            raise PipelineError(f"the pass {one.name!r} needs {', '.join(missing)}, which no pass before it ensures")
        ensured.update(one.ensures)
    names = [one.name for one in passes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PipelineError(f"two passes are called {twice[0]!r}")
    return passes


def run(passes: Sequence[Pass[S]], state: S) -> S:
    """Run passes one after the other, and what is watched of them.

    Raises:
        VerifyError: a pass made a malformed graph, where that is watched.
    """
    watch = _WATCH.get()
    for one in passes:
        _check(watch, one.requires, f"in front of {one.name}", state)
        begun, before = process_time(), state
        state = one.run(state)
        let_go()
        if watch is not None:
            watch.seconds[one.name] = watch.seconds.get(one.name, 0.0) + process_time() - begun
            _look(watch, one.name, before, state)
        _check(watch, one.ensures, f"behind {one.name}", state)
    return state


def _check(watch: Watch | None, names: Sequence[str], where: str, state: HasModules) -> None:
    """Check what a pass requires or ensures, where that is watched; an error gets a note that says where."""
    checks: Mapping[str, Callable[[Any], None]] = {} if watch is None else watch.checks
    for name in names:
        try:
            checks.get(name, lambda _: None)(state)
        except Exception as error:
            error.add_note(f"{name}, {where}")
            raise


def _look(watch: Watch, name: str, before: HasModules, after: HasModules) -> None:
    for of, module in after.modules.items():
        if watch.verifies:
            verify_module(module, name, before.modules.get(of, Module()))
        if watch.dumps == name:
            watch.dumped |= {f"{of}: {graph}": str(module[graph]) for graph in module}
