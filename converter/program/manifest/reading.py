"""A manifest from the bytes in a file, or from JSON: checked, since files are not trusted."""

from __future__ import annotations

from typing import Any

from converter.program.manifest.checks import check_manifest
from converter.program.manifest.records import Manifest
from converter.program.manifest.schema import LIMITS, SCHEMA
from converter.support.errors import UsageError
from converter.support.records import decode
from converter.support.strict_json import parse_json


def manifest_of_json(data: Any) -> Manifest:
    """Return a checked manifest from parsed JSON.

    Raises:
        UsageError: a field is missing, unknown or ill-typed, or two of them contradict each other.
    """
    if isinstance(data, dict) and data.get("format") != SCHEMA["format"]:
        raise UsageError(
            f"manifest: format {data.get('format')!r} is not known here, only {SCHEMA['format']!r}: update Pocketune",
            page="program-files",
        )
    manifest = decode(Manifest, data, "manifest")
    check_manifest(manifest)
    return manifest


def manifest_of_bytes(data: bytes) -> Manifest:
    """Return a checked manifest from the metadata entry `pocketune.manifest`. Raise UsageError."""
    if len(data) > LIMITS["bytes"]:
        raise UsageError(f"manifest: {len(data)} bytes, more than {LIMITS['bytes']}", page="program-files")
    try:
        parsed = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"manifest: not JSON ({error})", page="program-files") from None
    return manifest_of_json(parsed)
