"""What a fresh process keeps resident when it trains a program."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: Grown since before the interpreter was made: anonymous memory, and pages of the program's file. Freed memory that the
#: process already had would hide what it takes, so nothing is computed before.
_CODE = """
import ctypes, re, sys
from pathlib import Path
import numpy as np
from converter.program.file import read_program
from converter.runtime.engine import open_engine

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def mapped(path):
    blocks = re.split(r"\\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    pages = {}
    for block in blocks:
        if block.split("\\n")[0].endswith(path):
            pages[block.split("-")[0]] = int(re.search(r"\\nRss:\\s+(\\d+)", block)[1]) << 10
    return max(pages.values(), default=0)

program = read_program(sys.argv[1])
ctypes.CDLL(None).malloc_trim(0)
before = anonymous()
engine = open_engine(program)
step = [engine.entry(name) for name in dict.fromkeys((program.manifest.step, program.manifest.updating))]
initial = {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
for entry in int(sys.argv[2]) * step:
    for spec in entry.signature.inputs:
        array = entry.input(spec.name)
        array[...] = initial[spec.name] if spec.role == "state" else spec.role in ("input", "weight")
    entry.invoke()
print(anonymous() - before, mapped(sys.argv[1]))
"""


@dataclass(frozen=True)
class Grown:
    """Bytes."""

    anonymous: int
    mapped: int


def grown_by_training(path: Path, steps: int = 3, freed_at_once: bool = False) -> Grown:
    """Opens a program in a process of its own and takes some steps.

    `freed_at_once`: freed blocks go back to the system, where glibc keeps more or less of them by how the heap lies.
    """
    command = [sys.executable, "-c", _CODE, str(path), str(steps)]
    malloc = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"} if freed_at_once else {}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | malloc)
    return Grown(*map(int, found.stdout.split()))
