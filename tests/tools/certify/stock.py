"""An engine that is the stock interpreter, but for a result that it makes too large."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from converter.runtime.engines.engine import Engine, Refusal
from converter.runtime.engines.work import Arrays, serve

WRONG = "POCKETUNE_TEST_WRONG"


class Stock(Engine):
    """Keeps variables. `wrong` is a signature and its result which is off by 5 %."""

    name = "android"
    title = "the stock interpreter"
    precision = "float32"
    worker = "tests.tools.certify.stock"
    version = "1"
    has_variables = True

    def __init__(self, *wrong: str) -> None:
        super().__init__()
        self._wrong = wrong

    def missing(self) -> str | None:
        return None

    def set_up(self, accepted: bool) -> str:
        return ""

    def environment(self) -> dict[str, str]:
        return {WRONG: json.dumps(self._wrong)}

    def refusals(self, log: str) -> list[Refusal]:
        return []


class _Runner:
    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._interpreter, self._wrong = Interpreter(str(path)), json.loads(os.environ[WRONG])

    def said(self, log: str) -> dict[str, Any]:
        return {"whole": True}

    def __call__(self, signature: str, feed: Arrays) -> Arrays:
        given = self._interpreter.get_signature_runner(signature)(**feed)
        return {n: a * np.float32(1.05) if [signature, n] == self._wrong else a for n, a in given.items()}


if __name__ == "__main__":
    serve(_Runner)
