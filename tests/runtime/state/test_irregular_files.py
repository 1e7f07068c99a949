"""What is no regular file would block a reader, or never end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from converter.program.manifest import StateTensor
from converter.runtime import StateSpec, load_state, save_state
from converter.support.errors import UsageError

SPEC = StateSpec("ab" * 32, (StateTensor("w", (3,), "float32", slot=False),))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_would_never_end_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "mine.state")
    with pytest.raises(UsageError, match=r"mine\.state"):
        load_state(tmp_path / "mine.state")
    with pytest.raises(UsageError, match=r"mine\.state"):
        save_state(tmp_path / "mine.state", SPEC, {"w": np.ones(3, np.float32)})
