"""Five programs from an MLP to a decoder of more than 3,000 operators, built once a test run."""

from __future__ import annotations

import functools

import converter
from converter.driver.program import Program
from examples import llama
from tests.models.zoo import CASES

#: The decoder has more than 3,000 operators.
NAMES = ("mlp", "lenet", "vit", "encoder", "llama")


@functools.cache
def program(name: str) -> Program:
    if name == "llama":
        model = llama.build(layers=15, width=32, heads=4, length=16, vocabulary=64)
        return converter.build(model, loss="next_token", update="full", batch=2, check=False)
    case = CASES[name]
    return converter.build(case.model(), loss=case.loss, update=case.update("sparse"), batch=8, check=False)
