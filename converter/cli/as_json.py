"""Results of commands as JSON."""

from __future__ import annotations

import json
from typing import Any


def print_json(result: dict[str, Any]) -> None:
    """Print a result for programs that read it; it holds no NaN and no infinity."""
    print(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False))
