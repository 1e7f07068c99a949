"""Job execution: in this process, in others on this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any, Protocol

from converter.support.errors import DeviceError
from converter.tools.search.subject import Evaluation

#: How often in a row workers may die with nothing done before the search ends.
_DEATHS = 3

#: Seconds after which those who wait for jobs look whether it is over.
_LOOK = 0.5

#: What does a job.
Function = Callable[[Evaluation], dict[str, Any]]
#: Whether what is not done yet is to be left.
IsOver = Callable[[], bool]


def never() -> bool:
    """Return that it is not over."""
    return False


class Workers(Protocol):
    """Those who do jobs."""

    def each(self, jobs: Sequence[Evaluation], is_over: IsOver = never) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the number of each job and what came out, as they are done, until it is over."""

    def close(self) -> None:
        """Lets them go; what was asked for and not done yet is left."""


class Inline:
    """This process does the jobs, one after the other."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def each(self, jobs: Sequence[Evaluation], is_over: IsOver = never) -> Iterator[tuple[int, dict[str, Any]]]:
        """See `Workers`."""
        for number, job in enumerate(jobs):
            if is_over():
                return
            yield number, self._function(job)

    def close(self) -> None:
        """See `Workers`."""


class Processes:
    """New processes of this machine do them; when one dies, what it had not finished is done again."""

    def __init__(self, function: Function, count: int) -> None:
        self._pickled, self._count = _pickled(function), count
        self._pool: ProcessPoolExecutor | None = None
        self._spawn = multiprocessing.get_context("spawn")
        #: Workers hold the other end: when this one is closed, or its process is gone, they end.
        self._lifeline: Connection | None = None

    def each(self, jobs: Sequence[Evaluation], is_over: IsOver = never) -> Iterator[tuple[int, dict[str, Any]]]:
        """See `Workers`."""
        left, deaths = dict(enumerate(jobs)), 0
        while left:
            futures = {self._open().submit(_do, job): number for number, job in left.items()}
            waiting = set(futures)
            try:
                while waiting:
                    if is_over():
                        self.close()
                        return
                    done, waiting = wait(waiting, _LOOK, FIRST_COMPLETED)
                    for future in done:
                        found = future.result()
                        del left[futures[future]]
                        deaths = 0
                        yield futures[future], found
            except BrokenProcessPool:
                self._pool, deaths = None, deaths + 1
                if deaths == _DEATHS:
                    raise DeviceError(
                        f"workers died {deaths} times with nothing done, perhaps for lack of memory: fewer of them "
                        "(--workers 1), or a smaller batch"
                    ) from None

    def close(self) -> None:
        """See `Workers`."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    def _open(self) -> ProcessPoolExecutor:
        if self._pool is None:
            end, self._lifeline = self._spawn.Pipe(duplex=False)
            given = (self._pickled, end)
            self._pool = ProcessPoolExecutor(self._count, self._spawn, initializer=_begin, initargs=given)
        return self._pool


class Ray:
    """A Ray cluster does them, with Ray's own way to try again what a lost worker had."""

    def __init__(self, function: Function, address: str) -> None:
        import ray

        self._ours = not ray.is_initialized()
        if self._ours:
            ray.init(address=None if address == "local" else address, log_to_driver=False)
        self._ray, self._pickled = ray, ray.put(_pickled(function))
        self._do = ray.remote(num_cpus=1, max_retries=_DEATHS)(_do_pickled)

    def each(self, jobs: Sequence[Evaluation], is_over: IsOver = never) -> Iterator[tuple[int, dict[str, Any]]]:
        """See `Workers`."""
        waiting = {self._do.remote(self._pickled, job): number for number, job in enumerate(jobs)}
        while waiting:
            if is_over():
                for left in waiting:
                    self._ray.cancel(left)
                return
            finished, _ = self._ray.wait(list(waiting), timeout=_LOOK)
            for done in finished:
                try:
                    yield waiting.pop(done), self._ray.get(done)
                except self._ray.exceptions.WorkerCrashedError as error:
                    raise DeviceError(f"Ray's workers died {_DEATHS + 1} times over the same job: {error}") from None

    def close(self) -> None:
        """See `Workers`."""
        if self._ours:
            self._ray.shutdown()


def _pickled(function: Function) -> bytes:
    """Losses, optimizers and augmentations are often closures, which pickle alone does not take."""
    import cloudpickle

    dumped: bytes = cloudpickle.dumps(function)
    return dumped


_function: Function | None = None


def _begin(pickled: bytes, lifeline: Connection) -> None:
    """In a new process: takes the function, and ends with the process that wanted it, or when it is let go."""
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the search, which ends with what it knows
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _function = _loaded(pickled)


def _end_with(lifeline: Connection) -> None:
    """End at once where the other end is closed: what still runs is of no use, and would wait for jobs for ever.

    No lock is shared for that: a worker that died with one would hold up the search.
    """
    with suppress(OSError):
        lifeline.poll(None)
    os._exit(1)


def _do(job: Evaluation) -> dict[str, Any]:
    assert _function is not None
    return _function(job)


@lru_cache(1)
def _loaded(pickled: bytes) -> Function:
    function: Function = pickle.loads(pickled)  # noqa: S301  made by `_pickled` in the process that started this one
    return function


def _do_pickled(pickled: bytes, job: Evaluation) -> dict[str, Any]:
    return _loaded(pickled)(job)
