"""A manifest from the bytes in a file, or from JSON: checked, since files are not trusted."""

from __future__ import annotations

import json
from typing import Any

from converter.program.manifest.checks import check_manifest
from converter.program.manifest.records import FORMAT, MAX_BYTES, Manifest
from converter.support.errors import UsageError
from converter.support.records import decode


def manifest_of_json(data: Any) -> Manifest:
    """Return a checked manifest from parsed JSON.

    Raises:
        UsageError: a field is missing, unknown or ill-typed, or two of them contradict each other.
    """
    if isinstance(data, dict) and data.get("format") != FORMAT:
        raise UsageError(
            f"manifest: format {data.get('format')!r} is not known here, only {FORMAT!r}: update Pocketune",
            page="program-files",
        )
    manifest = decode(Manifest, data, "manifest")
    check_manifest(manifest)
    return manifest


def manifest_of_bytes(data: bytes) -> Manifest:
    """Return a checked manifest from the metadata entry `pocketune.manifest`. Raise UsageError."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"manifest: {len(data)} bytes, more than {MAX_BYTES}", page="program-files")
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"manifest: not JSON ({error})", page="program-files") from None
    return manifest_of_json(parsed)
