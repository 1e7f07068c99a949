"""Random set-ups of PyTorch train as they do there: five steps beside eager PyTorch in float64."""

from __future__ import annotations

import pytest

from tests.torch_frontend.random_training import judge

#: Few builds, each of another body, goal and optimizer; the rest is slow.
QUICK = (10, 12, 14)


@pytest.mark.quick
@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s in QUICK else pytest.mark.slow) for s in range(60)])
def test_a_set_up_trains_as_in_pytorch(seed: int) -> None:
    verdict, why = judge(seed)
    assert verdict == "RIGHT", why
