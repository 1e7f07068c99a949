"""Whether phones with pages of 16 KiB can map what an APK stores.

python -m scripts.app_assets.pages APK: names the native libraries that do not load there.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from scripts.arguments import existing, parser

PAGE = 16 << 10
#: Of a file's entry in an APK: its fixed part, and where the lengths of name and extra field stand in it.
_LOCAL, _LENGTHS = 30, struct.Struct("<26xHH")
_LOAD = 1


def stored_at(apk: Path) -> dict[str, int]:
    """Return where the bytes of each file begin that is stored as it is."""
    places = {}
    with zipfile.ZipFile(apk) as archive, apk.open("rb") as file:
        for info in archive.infolist():
            if info.compress_type == zipfile.ZIP_STORED and info.file_size:
                file.seek(info.header_offset)
                name, extra = _LENGTHS.unpack(file.read(_LOCAL))
                places[info.filename] = info.header_offset + _LOCAL + name + extra
    return places


def segment_alignment(library: bytes) -> int:
    """Return the least alignment of what an ELF file asks to be loaded."""
    if library[:4] != b"\x7fELF":
        raise ValueError("it is no ELF file")
    wide = library[4] == 2
    start, size, count = (
        (struct.unpack_from("<Q", library, 32)[0], *struct.unpack_from("<HH", library, 54))
        if wide
        else (struct.unpack_from("<I", library, 28)[0], *struct.unpack_from("<HH", library, 42))
    )
    headers = [library[start + i * size :][:size] for i in range(count)]
    loaded = [h for h in headers if struct.unpack_from("<I", h)[0] == _LOAD]
    return min(struct.unpack_from("<Q", h, 48)[0] if wide else struct.unpack_from("<I", h, 28)[0] for h in loaded)


def misaligned(apk: Path) -> dict[str, int]:
    """Return the 64-bit native libraries that do not load, and how they are aligned.

    Phones with such pages run no others.
    """
    places = stored_at(apk)
    with zipfile.ZipFile(apk) as archive:
        found = {
            name: segment_alignment(archive.read(name))
            for name in archive.namelist()
            if name.endswith(".so") and "64" in Path(name).parent.name
        }
    return {name: a for name, a in found.items() if a % PAGE or places.get(name, 1) % PAGE}


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("apk", type=existing, metavar="APK", help="the file to look at")
    bad = misaligned(options.parse_args().apk)
    for name, alignment in bad.items():
        print(f"{name} is aligned to {alignment >> 10} KiB and does not load on phones with pages of 16 KiB")
