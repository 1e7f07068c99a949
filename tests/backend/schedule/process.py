"""What a fresh process has resident while it trains a program, whatever lies on its heap."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: What glibc keeps of freed blocks depends on how the heap lies, and that on the machine. With a fixed threshold, large
#: blocks have pages of their own and go back when they are freed; threads share one heap.
STEADY_HEAP = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072:glibc.malloc.arena_max=1"}

#: Grown since before the interpreter was made: anonymous memory, in the end and at its peak, and pages of the program's
#: file. Freed memory that the process already had would hide what it takes, so nothing is computed before.
_CODE = """
import ctypes, re, sys
from pathlib import Path
import numpy as np
from converter.program.file import read_program
from converter.runtime.interpreters.choice import open_engine

def status(what):
    return int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def mapped(path):
    blocks = re.split(r"\\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    pages = {}
    for block in blocks:
        if block.split("\\n")[0].endswith(path):
            pages[block.split("-")[0]] = int(re.search(r"\\nRss:\\s+(\\d+)", block)[1]) << 10
    return max(pages.values(), default=0)

program = read_program(sys.argv[1])
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
before = status("RssAnon")
engine = open_engine(program)
step = [engine.entry(name) for name in dict.fromkeys((program.manifest.step, program.manifest.updating))]
initial = {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
for entry in int(sys.argv[2]) * step:
    for spec in entry.signature.inputs:
        array = entry.input(spec.name)
        array[...] = initial[spec.name] if spec.role == "state" else spec.role in ("input", "weight")
    entry.invoke()
# Pages of files stay, so those of now are those of the peak.
print(status("RssAnon") - before, status("VmHWM") - status("RssFile") - before, mapped(sys.argv[1]))
"""


@dataclass(frozen=True)
class Grown:
    """Bytes.

    Attributes:
        anonymous: kept after the last step.
        peak: the most meanwhile.
        mapped: pages of the file.
    """

    anonymous: int
    peak: int
    mapped: int


def grown_by_training(path: Path, steps: int = 3) -> Grown:
    """Opens a program in a process of its own and takes some steps."""
    command = [sys.executable, "-c", _CODE, str(path), str(steps)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | STEADY_HEAP)
    return Grown(*map(int, found.stdout.split()))
