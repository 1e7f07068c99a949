"""TensorFlow Lite Micro: the stock interpreter of microcontrollers, from its wheel, with its reference kernels."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata

from converter.runtime.engines.engine import Engine, Refusal
from converter.support.errors import UsageError
from converter.support.extras import how_to_install, missing

#: What it writes of an operator that it has not registered, and of one that it has no kernel of such operands of.
_ABSENT = re.compile(r"Didn't find op for builtin opcode '(\w+)'|Failed to get registration from op code (\w+)")
_PREPARE = re.compile(r"Node (\w+) \(number \d+\w*\) failed to (?:prepare|invoke)")


class Tflm(Engine):
    """The interpreter takes the first subgraph of a file, so each signature stands in one of its own."""

    name = "tflm"
    title = "TensorFlow Lite Micro"
    precision = "float32"
    worker = "converter.runtime.engines.workers.tflm"
    apart = True

    @property
    def version(self) -> str:
        return metadata.version("tflite-micro")

    def missing(self) -> str | None:
        if not missing("micro"):
            return None
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            return "the wheels of tflite-micro are for Linux on x86-64 only"
        return f"tflite_micro is not installed: {how_to_install('micro')}"

    def set_up(self, accepted: bool) -> str:
        if (lacking := self.missing()) is not None:
            raise UsageError(f"tflm: {lacking}", page="engines")
        return f"tflite-micro {self.version} is installed"

    def refusals(self, log: str) -> list[Refusal]:
        """Return what it wrote, of no operator: it stops at the first, so that all are tried for what else it lacks."""
        lines, found = log.splitlines(), dict[Refusal, None]()
        for number, line in enumerate(lines):
            if match := _ABSENT.search(line):
                found[Refusal("", f"it has no {match[1] or match[2]}")] = None
            elif match := _PREPARE.search(line):
                said = lines[number - 1].strip()[-200:] if number else ""
                found[Refusal("", f"{match[1]}: {said or 'the kernel does not take it'}")] = None
        return list(found)
