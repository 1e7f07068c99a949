"""Damaged programs with mended checksums, each in a process of its own, which is watched.

    python -m tests.runtime.engines.tflm_hostile keyword.tflite --cases 500 --from 0

Every fourth one is run by TensorFlow Lite Micro, of the others the C++ is exported. A case is refused by a sentence or
goes through; whatever else comes of it is printed with its number.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import converter
from converter.program.checksum import with_new_checksum
from converter.support.errors import PocketuneError
from converter.tools.micro.export import export_c
from tests.tflite_frontend.mutations import mutated

#: Seconds by the clock that a case may take, on a busy machine.
LIMIT = 300
#: Of so many cases one runs in the interpreter.
RUN = 4


def outcome(data: bytes, runs: bool, folder: Path) -> str:
    """Return what comes of a damaged program in a process of its own: in a word, or what went wrong."""
    path, said = folder / "p.tflite", folder / "said"
    path.write_bytes(data)
    said.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        signal.alarm(LIMIT)
        try:
            said.write_text(_asked(path, runs))
        except BaseException:
            said.write_text(traceback.format_exc())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return said.read_text()


def _asked(path: Path, runs: bool) -> str:
    try:
        if not runs:
            export_c(path, path.parent / "c")
            return "exported"
        return "certified" if converter.certify(path, on="tflm", steps=1).ok else "not certified"
    except PocketuneError as error:
        return "refused" if str(error) else traceback.format_exc()


def cases(program: bytes, numbers: Iterable[int]) -> Counter[str]:
    """Return how many cases came to what; what went wrong is printed."""
    found = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            damaged = mutated(program, number)
            with suppress(ValueError):  # where the entry is not there any more
                damaged = with_new_checksum(damaged)
            said = outcome(damaged, number % RUN == 0, Path(folder))
            word = said if said in ("exported", "certified", "not certified", "refused") else "wrong"
            found[word] += 1
            if word == "wrong":
                print(f"case {number}: {said}", flush=True)
    return found


def main() -> int:
    """Run all cases; return 1 if one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--from", dest="first", type=int, default=0)
    args = parser.parse_args()
    found = cases(args.program.read_bytes(), range(args.first, args.first + args.cases))
    print(", ".join(f"{count} {word}" for word, count in sorted(found.items())))
    return int("wrong" in found)


if __name__ == "__main__":
    sys.exit(main())
