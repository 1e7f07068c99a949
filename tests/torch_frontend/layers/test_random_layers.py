"""Random layers of PyTorch: values and gradients are those of PyTorch in double precision, in any order of a step."""

from __future__ import annotations

import pytest

from tests.backend.schedule.eager import overwrite_early
from tests.torch_frontend.layers.judged_layers import judge
from tests.torch_frontend.layers.random_layers import draw

#: One build each, with layers of all kinds among them; the rest is slow.
QUICK = (0, 1, 5)


@pytest.mark.quick
@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s in QUICK else pytest.mark.slow) for s in range(60)])
def test_layers_compute_as_in_pytorch(seed: int) -> None:
    assert judge(draw(seed), seed) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_weights_that_are_overwritten_early(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    overwrite_early(monkeypatch)
    assert judge(draw(seed), seed) == {}
