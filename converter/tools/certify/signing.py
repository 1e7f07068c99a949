"""Certificates written into a program's manifest."""

from __future__ import annotations

import os
from dataclasses import replace

from converter.program import checksum
from converter.program.file import read_program
from converter.program.flatbuffer.metadata import with_entry
from converter.program.manifest import MANIFEST, Certificate
from converter.support.files import write_atomically


def sign(path: str | os.PathLike, certificate: Certificate) -> None:
    """Writes a certificate into a program, in the place of an older one of that engine; the file is whole throughout.

    Raises:
        UsageError: it is no program, or cannot be written.
    """
    program = read_program(path)
    others = tuple(c for c in program.manifest.certificates if c.on != certificate.on)
    manifest = replace(program.manifest, certificates=(*others, certificate))
    data = with_entry(bytes(program.data), MANIFEST, manifest.to_bytes())
    write_atomically(path, checksum.with_new_checksum(data))
