"""Fixtures of the tests of language models."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import run  # noqa: F401 (a fixture)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Say for how many more files there is room on the disk."""
    write, room = os.write, [1 << 30]

    def limited(descriptor: int, data: Any) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= 1
        return write(descriptor, data)

    def say(files: int) -> None:
        room[0] = files

    monkeypatch.setattr(os, "write", limited)
    return say
