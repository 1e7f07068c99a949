"""Modules on the device meta, whose weights are given beside them and read when they are asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from converter.frontends import torch as torch_frontend
from converter.support.errors import UsageError
from tests.backend.quantize.test_lazy import Read, built


class Tied(torch.nn.Module):
    """A table that is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(100, 64)
        self.inner = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 100, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.inner(self.tokens(x))))


def test_a_module_on_the_device_meta_is_given_its_weights() -> None:
    module = Tied()
    with torch.device("meta"):
        empty = Tied()
    x = (torch.zeros(1, 4, dtype=torch.int32),)
    own = {name: array.numpy() for name, array in module.state_dict().items()}
    given = {name: Read(array) if array.ndim > 1 else array for name, array in own.items() if name != "tokens.weight"}
    options: dict[str, Any] = {"update": {"*": 0, "inner.bias": 1}}
    made = built(torch_frontend.Model(empty, x, weights=given), **options)
    assert made.data == built(torch_frontend.Model(module, x), **options).data
    with pytest.raises(UsageError, match=r"inner.weight is on the device meta and has no value"):
        torch_frontend.Model(empty, x, weights={"head.weight": own["head.weight"]})
    with pytest.raises(UsageError, match=r"Tied has no 'heads.weight'"):
        torch_frontend.Model(empty, x, weights={"heads.weight": own["head.weight"]})
