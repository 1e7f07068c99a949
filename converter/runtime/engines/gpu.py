"""LiteRT's GPU engine: CompiledModel through WebGPU, on whatever Vulkan driver there is; SwiftShader where none is."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from converter.runtime.engines.debian import fetch
from converter.runtime.engines.delegate_log import refusals
from converter.runtime.engines.engine import Engine, Refusal, engines_folder
from converter.runtime.engines.smallest import smallest_program
from converter.runtime.engines.work import Task
from converter.support.invocation import command

_LIBRARIES = ("libvk_swiftshader.so", "vk_swiftshader_icd.json", "libvulkan.so.1")


class Gpu(Engine):
    """The GPU delegate of phones, in float32."""

    name = "gpu"
    title = "LiteRT GPU"
    precision = "float32"
    worker = "converter.runtime.engines.workers.gpu"

    @property
    def version(self) -> str:
        return metadata.version("ai-edge-litert")

    @property
    def _folder(self) -> Path:
        return engines_folder() / "vulkan"

    @property
    def _has_own(self) -> bool:
        return all((self._folder / name).exists() for name in _LIBRARIES)

    def missing(self) -> str | None:
        if self._has_own:
            return None
        how = f"{command('engines gpu')} sets one up that needs no GPU"
        if not ctypes.util.find_library("vulkan"):
            return f"there is no Vulkan driver: {how}"
        return None if _runs_here() else f"LiteRT can use no Vulkan driver of this machine: {how}"

    def environment(self) -> dict[str, str]:
        if not self._has_own:
            return {}
        driver = str(self._folder / "vk_swiftshader_icd.json")
        found = [str(self._folder), os.environ.get("LD_LIBRARY_PATH", "")]
        runtime = engines_folder() / "run"
        runtime.mkdir(mode=0o700, exist_ok=True)
        return {
            "VK_DRIVER_FILES": driver,
            "VK_ICD_FILENAMES": driver,
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, found)),
            "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", str(runtime)),
        }

    def enter(self) -> None:
        """Makes the driver known to this process, as `environment` does to another one."""
        for name, value in self.environment().items():
            os.environ.setdefault(name, value)
        if self._has_own:
            ctypes.CDLL(str(self._folder / _LIBRARIES[-1]), mode=ctypes.RTLD_GLOBAL)

    def set_up(self, accepted: bool) -> str:
        if self._has_own:
            return f"SwiftShader is in {self._folder}"
        # SwiftShader is in chromium-common, which is much smaller than chromium.
        fetch(("libvulkan1", "chromium-common"), _LIBRARIES, self._folder)
        return f"SwiftShader (Apache 2.0) and the Vulkan loader, from Debian's packages, are in {self._folder}"

    def refusals(self, log: str) -> list[Refusal]:
        return refusals(log)


@cache
def _runs_here() -> bool:
    """Return whether LiteRT finds a driver that it can use: there may be a loader, and drivers that lack a feature."""
    x = np.arange(4, dtype=np.float32)
    (outcome,) = Gpu().run([Task(smallest_program(), [("main", {"x": x})])])
    return not outcome.error and np.array_equal(outcome.results[0]["y"], 2 * x)
