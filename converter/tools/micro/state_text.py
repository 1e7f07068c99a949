"""Header of state files as text with gaps for the generation and the digests of the tensors."""

from __future__ import annotations

from converter.program.file import ProgramFile
from converter.runtime.state.interchange import labels_of
from converter.runtime.state.state_file import ALIGNMENT, FORMAT, Header, StoredTensor
from converter.tools.micro.entries import nbytes


def header_pieces(program: ProgramFile) -> list[str]:
    """Return the text before the generation, before the digest of each tensor, and after the last one."""
    manifest = program.manifest
    stored, end = list[StoredTensor](), 0
    for tensor in manifest.state_tensors:
        offset, size = end + padding(end), nbytes(tensor.shape, tensor.dtype)
        stored.append(
            StoredTensor(tensor.tensor, tensor.dtype, tensor.shape, offset, size, "", tensor.slot, tensor.model)
        )
        end = offset + size
    text = Header(FORMAT, manifest.graph_hash, 0, manifest.identity, tuple(stored), labels_of(manifest)).text()
    # No text inside of a string has quotation marks without a backslash, so these are the fields themselves; nor zeros.
    gaps = text.replace('"generation":0', '"generation":\0', 1).replace('"sha256":""', '"sha256":"\0"')
    return gaps.split("\0")


def padding(end: int) -> int:
    """Return the zeros between what ends at a place and the next tensor."""
    return -end % ALIGNMENT
