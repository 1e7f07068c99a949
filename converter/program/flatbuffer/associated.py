"""Files that are appended to a TFLite file as a ZIP archive: TFLite Metadata has labels so."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping

#: Files and bytes of all of them, at most: of strangers.
_MOST_FILES, _MOST_BYTES = 256, 1 << 24


def associated_files(data: bytes) -> dict[str, bytes]:
    """Return the files that are appended to a file, by name; none where there are too many or they are damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > _MOST_FILES or sum(member.file_size for member in members) > _MOST_BYTES:
                return {}
            return {member.filename: archive.read(member) for member in members}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError):
        return {}


def archive_of(files: Mapping[str, bytes], start: int) -> bytes:
    """Return an archive as it is appended to a file of so many bytes: equal files give equal bytes."""
    if not files:
        return b""
    whole = _Behind(start)
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return whole.getvalue()


class _Behind(io.BytesIO):
    """Bytes that believe that others are before them."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self._start = start

    def tell(self) -> int:
        return super().tell() + self._start

    def seek(self, offset: int, whence: int = 0) -> int:
        return super().seek(offset - (self._start if whence == 0 else 0), whence) + self._start
