"""Qualcomm's Hexagon: LiteRT's compiler plugin for the SoC, and Qualcomm's emulation of its processor, in float16."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from converter.runtime.engines.engine import Engine, Refusal, engines_folder
from converter.runtime.engines.tools import replaced, run
from converter.support.errors import UsageError, nearest
from converter.support.extras import how_to_install, missing
from converter.support.invocation import command

#: The wheel of QNN's libraries, and what is taken from it.
QNN, QNN_VERSION = "onnxruntime-qnn", "2.7.0"
_LIBRARIES = ("libQnnHtp.so", "libQnnSystem.so", "libQnnIr.so", "libQnnSaver.so", "libonnxruntime_providers_qnn.so")
_LICENCE = "Qualcomm_LICENSE.pdf"
#: By SoC: what QNN calls it, and its processor.
SOCS = {"SM8550": ("43", "73"), "SM8650": ("57", "75"), "SM8750": ("69", "79")}


class Hexagon(Engine):
    """The plugin takes a signature whole or not at all; what it compiles runs on the emulation."""

    name = "hexagon"
    title = "Qualcomm QNN HTP"
    precision = "float16"
    worker = "converter.runtime.engines.workers.hexagon"
    apart = True
    version = QNN_VERSION

    def __init__(self, processor: str = "") -> None:
        self.soc = processor or "SM8650"
        if self.soc not in SOCS:
            known = ", ".join(f"hexagon:{soc}" for soc in SOCS)
            raise UsageError(
                f"on: no emulation of {self.soc} is known here, but {known}.{nearest(self.soc, SOCS)}", page="engines"
            )

    @property
    def on(self) -> str:
        return f"{self.name}:{self.soc}"

    @property
    def _folder(self) -> Path:
        return engines_folder() / "qnn"

    @property
    def _is_here(self) -> bool:
        return (self._folder / f".done-{QNN_VERSION}").exists()

    def missing(self) -> str | None:
        if lacking := missing("hexagon"):
            return f"{' and '.join(lacking)}: {how_to_install('hexagon')}"
        if not self._is_here:
            return f"Qualcomm's libraries are not here: {command('engines hexagon')}"
        return None

    def environment(self) -> dict[str, str]:
        paths = [str(self._folder), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}

    def options(self) -> dict[str, Any]:
        number, architecture = SOCS[self.soc]
        return {"soc": self.soc, "number": number, "architecture": architecture, "libraries": str(self._folder)}

    def set_up(self, accepted: bool) -> str:
        if self._is_here:
            return f"Qualcomm's libraries {QNN_VERSION} are in {self._folder}"
        if not accepted:
            raise UsageError(
                f"Qualcomm's libraries are not ours to give: they are in the wheel {QNN} {QNN_VERSION} on PyPI, under "
                f"Qualcomm's licence, which is in it ({_LICENCE}). Add --accept-licence if you do, and they are "
                "fetched",
                page="engines",
            )
        with replaced(self._folder) as (temporary, ready):
            wheel = ["--no-deps", "--only-binary=:all:", "-q", "-d", str(temporary), f"{QNN}=={QNN_VERSION}"]
            run([sys.executable, "-m", "pip", "download", *wheel])
            shutil.unpack_archive(next(temporary.glob("*.whl")), temporary / "wheel", "zip")
            package = temporary / "wheel" / "onnxruntime_qnn"
            for file in [*(package / n for n in (*_LIBRARIES, _LICENCE)), *package.with_suffix(".libs").iterdir()]:
                shutil.copy(file, ready)
            # LiteRT's plugin is linked with a library that the wheel lacks, and calls nothing in it here.
            empty = ["-shared", "-fPIC", "-x", "c", os.devnull, "-Wl,-soname,libQnnLpai.so"]
            run(["cc", *empty, "-o", str(ready / "libQnnLpai.so")])
            (ready / f".done-{QNN_VERSION}").touch()
        return f"Qualcomm's libraries {QNN_VERSION} are in {self._folder}, their licence is {_LICENCE} there"

    def refusals(self, log: str) -> list[Refusal]:
        found = re.findall(r"(?:Failed to validate op|Unsupported op|not supported)[^\n]*", log)
        return [Refusal("", line[:200]) for line in dict.fromkeys(found)]
