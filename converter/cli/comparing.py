"""What `schemes` and `estimate` share: the costs of several schemes, or why the model does not allow one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from converter.cli.narration import Narrator
from converter.cli.resolve import Job, resolve_update
from converter.compare import DEFAULT_SCHEMES, compare_schemes, import_once
from converter.errors import PocketuneError


def schemes_of(job: Job, updates: Sequence[str] | None) -> tuple[list[str], list[Any]]:
    """The usual schemes that are to be compared, and those that were asked for."""
    asked = [resolve_update(name) for name in updates] if updates else [job.update] if job.update else []
    return [] if updates else [name for name in DEFAULT_SCHEMES if name not in asked], asked


def compare(
    job: Job, model: Any, usual: Sequence[str], asked: Sequence[Any], narrator: Narrator, **more: Any
) -> list[dict[str, Any]]:
    """One row a scheme. One of the usual ones that the model does not allow is a row with its reason.

    Args:
        job: what was asked for.
        model: what it makes.
        usual: schemes that nobody asked for.
        asked: schemes that were.
        narrator: says what is done.
        **more: options in place of the job's own.

    Raises:
        PocketuneError: a scheme that was asked for fails, or all do.
    """
    options = job.options() | more
    with narrator.stage("import the model"):
        source = import_once(model, **options)

    def one(scheme: Any) -> list[dict[str, Any]]:
        with narrator.stage(f"compile {scheme if isinstance(scheme, str) else scheme.name}"):
            return compare_schemes(source, [job.scheme(scheme)], **options)

    rows: list[dict[str, Any]] = []
    failures: list[PocketuneError] = []
    for name in usual:
        try:
            rows += one(name)
        except PocketuneError as error:
            failures.append(error)
            rows.append({"scheme": name, "error": str(error)})
    for scheme in asked:
        rows += one(scheme)
    if len(failures) == len(rows):
        raise failures[0]
    return rows
