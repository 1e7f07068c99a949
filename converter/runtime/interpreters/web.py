"""LiteRT.js in headless Chromium, as a page has it: on WebGPU, or in WebAssembly."""

from __future__ import annotations

import tempfile
import weakref
from functools import partial
from pathlib import Path

import numpy as np

from converter.program.file import ProgramFile
from converter.program.manifest import Signature
from converter.runtime.engines.web import Web
from converter.runtime.engines.workers.web import Loaded, Pages
from converter.runtime.interpreters.entry import ProgramEngine, Report, SignatureEntry
from converter.support.errors import DeviceError


class WebEntry(SignatureEntry):
    """One signature; all that it takes and gives is carried to the page and back."""

    def __init__(self, loaded: Loaded, name: str, signature: Signature) -> None:
        super().__init__(name, signature)
        self._loaded = loaded
        self._inputs = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in signature.inputs}
        self._outputs: dict[str, np.ndarray] = {}

    def allocate(self) -> None:
        """The page does when it runs."""

    def input(self, name: str) -> np.ndarray:
        return self._inputs[name]

    def output(self, name: str) -> np.ndarray:
        return self._outputs[name]

    def run(self) -> None:
        given = self._loaded(self.name, self._inputs)
        self._outputs = {spec.name: given[spec.name].reshape(spec.shape) for spec in self.signature.outputs}


class WebEngine(ProgramEngine):
    """A program in a page; WebAssembly runs what WebGPU refuses, and the report says so."""

    def __init__(self, program: ProgramFile, accelerator: str) -> None:
        """Opens a browser, which ends with the session.

        Args:
            program: which.
            accelerator: `webgpu` or `wasm`.

        Raises:
            DeviceError: there is no browser or no LiteRT.js, or it does not take the program.
        """
        web = Web(accelerator=accelerator)
        if (lacking := web.missing()) is not None:
            raise DeviceError(lacking)
        folder, console = tempfile.TemporaryDirectory(ignore_cleanup_errors=True), list[str]()
        pages = Pages(console.append)
        weakref.finalize(self, _end, pages, folder)
        path = Path(folder.name) / "program.tflite"
        path.write_bytes(program.data)
        try:
            loaded = Loaded(pages, path, web.options())
        except RuntimeError as error:
            raise DeviceError(f"LiteRT.js does not take the program: {error}") from None
        refusals, said = web.refusals("\n".join(console)), loaded.said("")
        report = Report(
            runs="gpu" if accelerator == "webgpu" else "cpu",
            driver=said["driver"],
            emulated=True,
            whole=said["whole"] and not refusals,
            reasons=tuple(": ".join(filter(None, refusal)) for refusal in refusals),
        )
        super().__init__(program.manifest, partial(WebEntry, loaded), report)


def _end(pages: Pages, folder: tempfile.TemporaryDirectory) -> None:
    pages.close()
    folder.cleanup()
