"""LiteRT.js in headless Chromium: WebGPU, on SwiftShader where there is no GPU, and WebAssembly. Both must be right."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from converter.runtime.engines.delegate_log import refusals
from converter.runtime.engines.engine import Engine, Refusal, engines_folder
from converter.runtime.engines.tools import replaced, run
from converter.support.invocation import command

#: What npm installs; all at LiteRT.js' version.
PACKAGES, VERSION = ("@litertjs/core", "@litertjs/wasm-utils"), "2.5.3"
#: Where Chromium is, for those who keep it elsewhere than on the PATH.
CHROMIUM = "CHROMIUM"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Return the command of the browser, where there is one."""
    return next(filter(None, map(shutil.which, (os.environ.get(CHROMIUM, ""), *_BROWSERS))), None)


class Web(Engine):
    """A browser chooses WebGPU or WebAssembly by what it has, so a program must be right on both."""

    name = "web"
    title = "LiteRT.js"
    precision = "float32"
    worker = "converter.runtime.engines.workers.web"
    has_truth_values = False
    version = VERSION

    def __init__(self, processor: str = "", accelerator: str = "webgpu") -> None:
        super().__init__(processor)
        self._accelerator = accelerator

    @property
    def parts(self) -> tuple[Engine, ...]:
        return self, Web(accelerator="wasm")

    @property
    def label(self) -> str:
        return {"webgpu": "WebGPU", "wasm": "WebAssembly"}[self._accelerator]

    @property
    def _folder(self) -> Path:
        return engines_folder() / "web"

    @property
    def _is_here(self) -> bool:
        return all(_version(self._folder / "node_modules" / package) == VERSION for package in PACKAGES)

    def missing(self) -> str | None:
        if find_chromium() is None:
            return f"there is no Chromium ({', '.join(_BROWSERS)}) on the PATH, nor does ${CHROMIUM} name one"
        if not self._is_here:
            return f"{PACKAGES[0]} {VERSION} is not here: {command('engines web')}"
        return None

    def options(self) -> dict[str, Any]:
        packages = str(self._folder / "node_modules")
        return {"browser": find_chromium(), "packages": packages, "accelerator": self._accelerator}

    def set_up(self, accepted: bool) -> str:
        if not self._is_here:
            with replaced(self._folder) as (_, ready):
                (ready / "package.json").write_text('{"private": true}')
                # Nothing that is used here needs the scripts of its package.
                flags = ["--no-fund", "--no-audit", "--ignore-scripts", "--save-exact"]
                named = [f"{package}@{VERSION}" for package in PACKAGES]
                run(["npm", "install", *flags, *named], ready, "it comes with Node.js")
        return f"{PACKAGES[0]} {VERSION} (Apache 2.0) is in {self._folder}"

    def refusals(self, log: str) -> list[Refusal]:
        return refusals(log)


def _version(package: Path) -> str | None:
    """Of a package that npm has installed."""
    try:
        return str(json.loads((package / "package.json").read_text())["version"])
    except (OSError, ValueError, KeyError):
        return None
