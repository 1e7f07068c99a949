"""Names that llama.cpp has for the weights of a language model, kept in the program for adapters of its kind.

The metadata entry `pocketune.gguf` is JSON: `architecture`, and `weights`, by the name of each matrix the tensor of a
`.gguf` file and, where its rows lie there in another order, the width of the heads that they are of.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from converter.program.file import ProgramFile
from converter.support.errors import UsageError
from converter.support.records import decode

#: Name of the metadata entry.
ENTRY = "pocketune.gguf"


@dataclass(frozen=True)
class StoredAs:
    """A weight as a file has it.

    Attributes:
        tensor: its name there.
        paired: the width of a head whose rows that rotate together lie beside each other; 0: rows lie as here.
    """

    tensor: str
    paired: int = 0


@dataclass(frozen=True)
class Names:
    """What llama.cpp calls the weights of a model.

    Attributes:
        architecture: of the model.
        weights: by their names here.
    """

    architecture: str
    weights: dict[str, StoredAs]

    def entry(self) -> bytes:
        """Return the metadata entry."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def read_names(program: ProgramFile) -> Names | None:
    """Return the names in a program; None: it was built from something else than a language model that llama.cpp has.

    Raises:
        UsageError: the entry is senseless.
    """
    if ENTRY not in program.metadata:
        return None
    try:
        names = decode(Names, json.loads(bytes(program.metadata[ENTRY])), "gguf")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"its metadata entry {ENTRY!r} is not JSON ({error})", page="adapters") from None
    assert isinstance(names, Names)
    if any(one.paired < 0 or one.paired % 2 for one in names.weights.values()):
        raise UsageError(f"its metadata entry {ENTRY!r} has heads of no even width", page="adapters")
    return names
