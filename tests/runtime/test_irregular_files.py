"""What is no regular file would block a reader, or never end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from converter.errors import UsageError
from converter.runtime import load_state, save_state

HASH = "ab" * 32


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_would_never_end_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "mine.state")
    with pytest.raises(UsageError, match=r"mine\.state"):
        load_state(tmp_path / "mine.state", HASH)
    with pytest.raises(UsageError, match=r"mine\.state"):
        save_state(tmp_path / "mine.state", HASH, {"w": np.ones(3, np.float32)})
