"""Every primitive in every form, through front end, derivative, lowering and the stock interpreter, against JAX.

Cases are run several at a time, as one program: that is quicker, and they must not disturb each other.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import converter
from tests.jax_frontend.primitives import CASES, Case

#: Cases in one program.
TOGETHER = 12


def groups() -> list[list[str]]:
    """Names of cases that are tried together: those whose derivative is compared, and the others."""
    sorts = [[n for n, c in CASES.items() if (c.gradient and bool(c.floats)) == kind] for kind in (True, False)]
    return [names[k : k + TOGETHER] for names in sorts for k in range(0, len(names), TOGETHER)]


@pytest.mark.parametrize("names", groups(), ids=lambda names: f"{names[0]}...{names[-1]}".replace(" ", "_"))
def test_values_and_derivatives_equal_jax(names: list[str]) -> None:
    cases = [CASES[name] for name in names]
    arguments = [case.args for case in cases]
    gradient = cases[0].gradient and bool(cases[0].floats)

    def together(*arguments: Any) -> list[list[Any]]:
        return [jax.tree_util.tree_leaves(c.fn(*given)) for c, given in zip(cases, arguments, strict=True)]

    outputs, cotangents, derivatives = reference(together, cases, gradient)
    program = converter.function(together, *arguments, gradient=gradient)
    found = iter(program.run(*arguments, *cotangents))
    for name, case, expected in zip(names, cases, outputs, strict=True):
        for number, array in enumerate(expected):
            compare(next(found), array, case, 1, f"{name}, output {number}")
    for name, case, expected in zip(names, cases, derivatives, strict=True):
        for number, array in zip(case.floats if gradient else [], expected, strict=True):
            compare(next(found), array, case, 5, f"{name}, derivative by argument {number}")
    assert next(found, None) is None


def reference(together: Any, cases: list[Case], gradient: bool) -> tuple[list[Any], list[Any], list[Any]]:
    """JAX's outputs, cotangents for the float ones, and the derivatives of each case by its float arguments."""
    options = {"xla_backend_optimization_level": 0}
    arguments = [case.args for case in cases]
    outputs = jax.jit(together, compiler_options=options)(*arguments)
    if not gradient:
        return outputs, [], [[]] * len(cases)
    rng = np.random.default_rng(0)
    leaves = [y for ys in outputs for y in ys if y.dtype == np.float32]
    cotangents = [rng.uniform(0.5, 1.5, y.shape).astype(np.float32) for y in leaves]

    def pulled_back(floats: list[Any], cotangents: list[Any]) -> Any:
        def of_floats(floats: list[Any]) -> list[Any]:
            filled = [list(map(jnp.asarray, case.args)) for case in cases]
            for case, given, args in zip(cases, floats, filled, strict=True):
                for number, array in zip(case.floats, given, strict=True):
                    args[number] = array
            return [y for y in jax.tree_util.tree_leaves(together(*filled)) if y.dtype == jnp.float32]

        return jax.vjp(of_floats, floats)[1](cotangents)[0]

    floats = [[case.args[number] for number in case.floats] for case in cases]
    return outputs, cotangents, jax.jit(pulled_back, compiler_options=options)(floats, cotangents)


def compare(found: np.ndarray, expected: Any, case: Case, times: float, what: str) -> None:
    """Asserts that two arrays agree as closely as the case asks for, a derivative less."""
    expected = np.asarray(expected)
    assert found.shape == expected.shape, what
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    finite = np.abs(expected[np.isfinite(expected)])
    largest = min(float(finite.max()), 10.0) if finite.size else 0.0
    np.testing.assert_allclose(found, expected, rtol=times * case.rtol, atol=times * case.atol * largest, err_msg=what)


X = np.ones((3, 4), np.float32)
REFUSED = {
    "nextafter": lambda x: lax.nextafter(x, 2 * x),
    "fft": lambda x: jnp.fft.fft(x).real,
    "cholesky": lambda x: jnp.linalg.cholesky(x[:, :3]),
    "reduce": lambda x: lax.reduce(x, np.float32(0), lambda a, b: a * b + a, (0,)),
    "conv_general_dilated": lambda x: lax.conv(
        jnp.ones((1, 1, 2, 2, 2, 2)) * x[0, 0], jnp.ones((1,) * 6), (1,) * 4, "SAME"
    ),
}


@pytest.mark.parametrize("primitive", REFUSED)
def test_what_is_not_supported_says_so(primitive: str) -> None:
    with pytest.raises(converter.UnsupportedError) as caught:
        converter.function(REFUSED[primitive], X)
    assert [site.primitive for site in caught.value.sites] == [primitive]
    for site in caught.value.sites:
        assert site.source.startswith("tests/jax_frontend/test_primitives.py:")
        assert site.reason
        assert site.advice


def test_a_derivative_of_ones_own_is_honoured() -> None:
    @jax.custom_jvp
    def straight(x: jax.Array) -> jax.Array:
        return jnp.round(x)

    straight.defjvp(lambda primals, tangents: (straight(*primals), tangents[0] * 3))
    (y, dx) = converter.function(straight, X * 0.7, gradient=True).run(X * 0.7, X)
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(dx, 3 * X)
