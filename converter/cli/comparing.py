"""Cost comparison of schemes, for `schemes` and `estimate`; or why the model does not allow one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from converter.cli.narration import Narrator
from converter.cli.resolve import BuildJob, resolve_update
from converter.driver.compare import DEFAULT_SCHEMES, compare_schemes, import_once
from converter.driver.options import Options
from converter.support.errors import PocketuneError


def schemes_of(job: BuildJob, updates: Sequence[str] | None) -> list[Any]:
    """Return the schemes that were asked for; without any the usual ones, and the job's own."""
    if updates:
        return [resolve_update(name) for name in updates]
    own = [job.update] if job.update else []
    return [*(name for name in DEFAULT_SCHEMES if name not in own), *own]


def compare(job: BuildJob, model: Any, schemes: Sequence[Any], narrator: Narrator, **more: Any) -> list[dict[str, Any]]:
    """Return one row a scheme. One that the model does not allow is a row with its reason.

    Args:
        job: what was asked for.
        model: what it makes.
        schemes: names of schemes, or schemes.
        narrator: says what is done.
        **more: options in place of the job's own.

    Raises:
        PocketuneError: all fail.
    """
    options = job.options() | more
    with narrator.stage("import the model"):
        source = import_once(model, Options(**options))
    rows: list[dict[str, Any]] = []
    failures: list[PocketuneError] = []
    for scheme in schemes:
        name = scheme if isinstance(scheme, str) else scheme.name
        try:
            with narrator.stage(f"compile {name}"):
                rows += compare_schemes(source, [job.scheme(scheme)], **options)
        except PocketuneError as error:
            failures.append(error)
            rows.append({"scheme": name, "error": str(error)})
    if len(failures) == len(rows):
        raise failures[0]
    return rows
