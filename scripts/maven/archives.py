"""The files of a library: jars and AARs, with the same bytes for the same classes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

#: All that is in an archive is of this time: the bytes then depend on the contents alone.
TIME = (2024, 1, 1, 0, 0, 0)


def jar(folder: Path, suffixes: tuple[str, ...], extra: dict[str, bytes] | None = None) -> bytes:
    """Returns a zip of the files under a folder that end in one of the suffixes, and of some more."""
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.suffix in suffixes}
    return packed(files | (extra or {}))


def aar(classes: bytes, namespace: str, min_sdk: int, compile_sdk: int, license_text: bytes, rules: bytes) -> bytes:
    """Returns an Android library without resources, as the AAR format has it.

    `AndroidManifest.xml`, `classes.jar` and `R.txt` must be there; the metadata is what Android's Gradle plugin
    checks in apps that use the library; the rules are what R8 keeps in these.
    """
    manifest = (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{namespace}">\n'
        f'    <uses-sdk android:minSdkVersion="{min_sdk}" />\n'
        "</manifest>\n"
    )
    metadata = (
        f"aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk={compile_sdk}\n"
        "minCompileSdkExtension=0\nminAndroidGradlePluginVersion=1.0.0\n"
    )
    return packed(
        {
            "AndroidManifest.xml": manifest.encode(),
            "classes.jar": classes,
            "R.txt": b"",
            "proguard.txt": rules,
            "META-INF/com/android/build/gradle/aar-metadata.properties": metadata.encode(),
            "META-INF/LICENSE": license_text,
        }
    )


def packed(files: dict[str, bytes]) -> bytes:
    """Returns a zip of files by their names."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return made.getvalue()
