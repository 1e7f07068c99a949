"""Build record, kept in the program file for a report: the model by layer, the forms, the memory of a step.

The metadata entry `pocketune.account` holds the number of a buffer, which is JSON, compressed by zlib. What the
manifest, the operators of the file and `converter.program.origins` say already is not repeated.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Literal

from converter.backend.lowering.forms import FormChoice
from converter.program.file import ProgramFile
from converter.program.flatbuffer.metadata import ACCOUNT
from converter.support.errors import UsageError
from converter.support.notes import Note
from converter.support.records import decode

#: No account is larger; a limit for readers of files that they do not trust.
MAX_BYTES = 32 << 20
#: What `MemoryRecord.kinds` count in; the last two are of microcontrollers, whose arena is told from the file.
KINDS = ("tensor", "scratch", "workspace", "loop", "records", "copy")


@dataclass(frozen=True)
class ModelPart:
    """Neighbouring operations of one layer of the model, as it was imported.

    Attributes:
        layer: its path; empty for what no layer is known of.
        operations: how often each occurs.
        result: type of what the last one gives.
        reads: the parts whose results these read, as positions.
        inputs: the model's inputs that these read.
        outputs: the model's outputs that these make.
        parameters: the weights that these read.
        flops: of one forward pass.
    """

    layer: str
    operations: dict[str, int]
    result: str
    reads: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    flops: int


@dataclass(frozen=True)
class MemoryRecord:
    """Arena and workspace over a call, by columns: the pieces in no order.

    Attributes:
        nbytes: of each piece.
        first, last: the operators while which it is there, by their places in the order of execution.
        maker: the place of the operator that it belongs to, -1 for an input.
        kinds: indices in `KINDS`.
        arena, workspace: bytes as planned, gaps included.
    """

    nbytes: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    maker: tuple[int, ...]
    kinds: tuple[int, ...]
    arena: int
    workspace: int

    def alive(self, operators: int) -> list[int]:
        """Return bytes in use while each of so many operators runs, in the order of execution."""
        changes = [0] * (operators + 1)
        for nbytes, first, last in zip(self.nbytes, self.first, self.last, strict=True):
            changes[first] += nbytes
            changes[last + 1] -= nbytes
        return list(accumulate(changes[:-1]))


@dataclass(frozen=True)
class RecordedCall:
    """A call of a signature of the step, by columns: one number for each operator in the file's order.

    Attributes:
        flops: of one call.
        costs: of one call by the target's table, in its unit, rounded.
        order: the operators in the order of execution; empty: that of the file.
        partitions: the delegate's, in the order of execution; -1: the runtime's own kernel.
        memory: over the call.
    """

    flops: tuple[int, ...]
    costs: tuple[int, ...]
    order: tuple[int, ...]
    partitions: tuple[int, ...]
    memory: MemoryRecord


@dataclass(frozen=True)
class Account:
    """What a build did.

    Attributes:
        weights: the shape of each weight of the model, whether it trains or not.
        trainable: how many numbers of them can train: those that the model does not fix, and that a loss depends on.
        model: its parts in topological order.
        calls: by signature of the step.
        forms: which form each operation of the step got, where there was a choice.
        notes: what became of the model that its author may not expect.
    """

    weights: dict[str, tuple[int, ...]]
    trainable: int
    model: tuple[ModelPart, ...]
    calls: dict[str, RecordedCall]
    forms: tuple[FormChoice, ...]
    notes: tuple[Note, ...]
    format: Literal["pocketune-account/1"] = "pocketune-account/1"

    def to_bytes(self) -> bytes:
        """Return the buffer of the metadata entry."""
        return zlib.compress(
            json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(), 9
        )


def read_account(program: ProgramFile) -> Account:
    """Return the account in a program file.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    if ACCOUNT not in program.metadata:
        raise UsageError(
            "it holds no account of its build: build it again with this version of Pocketune", page="program-files"
        )
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(program.metadata[ACCOUNT], MAX_BYTES)
        if not unpacker.eof:
            raise UsageError(f"account: more than {MAX_BYTES} bytes, or cut short", page="program-files")
        account: Account = decode(Account, json.loads(text), "account")
    except (zlib.error, ValueError, RecursionError) as error:
        raise UsageError(
            f"account: it cannot be read ({error}): build the program again", page="program-files"
        ) from None
    _check(account)
    return account


def _check(account: Account) -> None:
    """Raises UsageError where numbers point at what is not there."""
    for place, part in enumerate(account.model):
        if not all(0 <= read < place for read in part.reads):
            raise UsageError(f"account: model[{place}] reads what comes after it", page="program-files")
    for name, call in account.calls.items():
        count, memory = len(call.flops), call.memory
        columns = (memory.nbytes, memory.first, memory.last, memory.maker, memory.kinds)
        good = (
            len(call.costs) == len(call.partitions) == count
            and (not call.order or sorted(call.order) == list(range(count)))
            and len({len(column) for column in columns}) == 1
            and all(0 <= first <= last < count for first, last in zip(memory.first, memory.last, strict=True))
            and all(-1 <= maker < count for maker in memory.maker)
            and all(0 <= kind < len(KINDS) for kind in memory.kinds)
            and all(nbytes >= 0 for nbytes in memory.nbytes)
        )
        if not good:
            raise UsageError(f"account: the columns of {name} do not fit each other", page="program-files")
