"""Losses whose probabilities Keras clips, from logits too, where logits are sure: value and gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.training.losses.test_named import CASES, ONE_HOT, X, compare

CLIPPED = [case for case in CASES if "focal" in case[0] or (case[2] is ONE_HOT and case[0] == "kl_divergence")]


@pytest.mark.parametrize(("name", "options", "y", "theirs"), CLIPPED, ids=[f"{c[0]}-{'-'.join(c[1])}" for c in CLIPPED])
@pytest.mark.parametrize("size", [30, 200])
def test_probabilities_are_clipped_as_in_keras(
    name: str, options: dict[str, float], y: np.ndarray, theirs: Callable[[Any, Any], Any], size: float
) -> None:
    """Logits that are sure, rightly and wrongly, beside others."""
    compare(name, options, np.where(np.arange(X.size).reshape(X.shape) % 4 < 3, np.sign(X) * size, X), y, theirs)
