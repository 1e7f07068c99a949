"""Error messages and exit codes of the command line."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

from converter.support.errors import PocketuneError, UsageError, is_ours

#: Exit code of a defect of Pocketune itself; those of all other failures stand in `converter.support.errors`.
BUG = 1
#: Set to anything to see tracebacks, as `--debug` does.
DEBUG = "POCKETUNE_DEBUG"

_ADVICE = f"Run again with --debug (or {DEBUG}=1) for the traceback, and report it with the model."
#: Between our call and the user's line: never to blame by themselves.
_LIBRARIES = {
    *sys.stdlib_module_names,
    *("ai_edge_litert", "flatbuffers", "flax", "h5py", "jax", "jaxlib", "keras", "ml_dtypes", "numpy", "optax"),
    *("rich", "scipy", "tensorflow", "torch", "typer"),
} - {"__main__"}


def explain(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code for an exception.

    An exception that the user's own code raised is theirs: it is shown with its file and line.
    """
    if isinstance(error, PocketuneError):
        return "\n".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code
    raised = _reason(error)
    if (place := their_line(error.__traceback__)) is not None:
        return f"your code failed at {place}\n{raised}", UsageError.exit_code
    return f"{raised}\nThis is a bug in Pocketune. {_ADVICE}", BUG


def report(error: Exception, debug: bool) -> int:
    """Prints what went wrong to stderr; with `debug`, the traceback before it. Returns the exit code."""
    message, code = explain(error)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    print(f"error: {message}", file=sys.stderr)
    return code


def their_line(trace: TracebackType | None) -> str | None:
    """`file:line in function` of the user's code that raised; None when ours did, or nobody of either."""
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        module = str(frame.f_globals.get("__name__", ""))
        owner = module.partition(".")[0]
        if is_ours(module) or owner in ("examples", "__main__"):
            return None
        if owner not in _LIBRARIES:
            return f"{_short(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
    return None


def _reason(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).partition("--------------------")[0].strip()


def _short(path: str) -> str:
    """Return a path as the user would type it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
