"""Android's TFLite: the unmodified library of the official AAR for x86-64.

What it wants of Android's C library is passed on to this machine's (bionic/).
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from converter.runtime.engines.engine import Engine, Refusal, engines_folder
from converter.runtime.engines.tools import replaced, run
from converter.support.errors import UsageError
from converter.support.invocation import command

#: The newest on Maven Central: what apps depend on (android_app/pom.xml).
VERSION = "2.16.1"
#: Of Maven, by name and version.
MAVEN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_LIBRARY = "libtensorflowlite_jni.so"
_BUILD = Path(__file__).with_name("bionic") / "build"


class Android(Engine):
    """What an app runs on a phone's CPU, XNNPACK included; its operators are older than those of LiteRT here."""

    name = "android"
    title = "TensorFlow Lite for Android"
    precision = "float32"
    worker = "converter.runtime.engines.workers.android"
    has_variables = True
    version = VERSION

    @property
    def _folder(self) -> Path:
        return engines_folder() / "android"

    @property
    def _is_here(self) -> bool:
        return (self._folder / f".done-{VERSION}").exists()

    def missing(self) -> str | None:
        if not _is_linux_on_x86():
            return "the library runs on Linux on x86-64 only"
        if not self._is_here:
            return f"Android's library is not here: {command('engines android')}"
        return None

    def options(self) -> dict[str, Any]:
        return {"libraries": str(self._folder), "library": _LIBRARY}

    def set_up(self, accepted: bool) -> str:
        if not _is_linux_on_x86():
            raise UsageError(f"Android's library runs on Linux on x86-64 only, this is {sys.platform}", page="engines")
        if not self._is_here:
            with replaced(self._folder) as (temporary, ready):
                wanted = [f"-Dartifact=org.tensorflow:tensorflow-lite:{VERSION}:aar", f"-DoutputDirectory={temporary}"]
                run(["mvn", "-q", "-B", MAVEN, *wanted], temporary, "it is Maven, which fetches the AAR")
                shutil.unpack_archive(next(temporary.glob("*.aar")), temporary / "aar", "zip")
                library = temporary / "aar/jni/x86_64" / _LIBRARY
                run(["sh", str(_BUILD), str(ready), str(library)], None, "it needs gcc and nm")
                (ready / f".done-{VERSION}").touch()
        return f"{self.title} {VERSION} (Apache 2.0) is in {self._folder}"

    def refusals(self, log: str) -> list[Refusal]:
        # As TFLite writes of an operator that is newer than itself.
        found = re.findall(r"Didn't find op for builtin opcode '(\w+)' version '(\d+)'", log)
        return [Refusal(kind, f"the library has no version {number} of it") for kind, number in dict.fromkeys(found)]


def _is_linux_on_x86() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"
