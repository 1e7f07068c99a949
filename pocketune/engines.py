"""What an engine to certify on is made of, by its public name: the interface, and what serves programs of it."""

from __future__ import annotations

from converter.runtime.engines import Engine, engines_folder
from converter.runtime.engines.engine import Refusal
from converter.runtime.engines.work import serve
from converter.support.errors import UsageError

__all__ = ["Engine", "Refusal", "UsageError", "engines_folder", "serve"]
