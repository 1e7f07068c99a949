"""The list of what can be imported: complete, and its conditions are those of the rules."""

import jax
import jax.numpy as jnp
import pytest

import converter
from jax_frontend.catalogue import catalogue
from jax_frontend.table import RULES

BY_NAME = {entry.primitive: entry for entry in catalogue()}


def test_every_rule_says_what_it_does() -> None:
    entries = catalogue()
    assert set(RULES) <= {entry.primitive for entry in entries}
    assert not [entry.primitive for entry in entries if not entry.how]


@pytest.mark.parametrize(
    ("primitive", "function"),
    [
        ("conv_general_dilated", lambda x: jax.lax.conv(x, x, (1, 1), "SAME")),
        ("reduce", lambda x: jax.lax.reduce(x, jnp.int32(3), lambda a, b: a * b + 1, (0, 1, 2, 3))),
        ("fft", lambda x: jnp.abs(jnp.fft.fft(x.astype(jnp.float32)))),
    ],
)
def test_what_it_says_is_refused_is(primitive: str, function: object) -> None:
    with pytest.raises(converter.UnsupportedError) as refused:
        converter.function(function, jnp.ones((2, 2, 2, 2), jnp.int32))
    entry = BY_NAME[primitive]
    assert any(site.reason in entry.refused or site.advice == entry.how for site in refused.value.sites)
