"""Unsupported operations: the report on every site in a model, grouped, with what to do."""

from __future__ import annotations

from typing import NamedTuple

from converter.support.errors import NotImportable, UnsupportedError, UnsupportedSite
from jax_frontend.origins import Site

#: Names in the report for what many primitives and element types come from.
COMPLEX, RANDOM = "complex numbers, as in fft", "random numbers"


class UnsupportedForm(NamedTuple):
    """A form of a primitive that its rule does not import, and what to do: the arguments of NotImportable."""

    what: str
    advice: str = ""


_NOISE = (
    "make the step deterministic: turn dropout and noise off, or pass the random array in as an input; an augmentation "
    "draws with the key that it is given (uniform, normal, bernoulli, randint and what is made of them)"
)
_HOST = "runs Python at each step, which a compiled program cannot: take it out of the model"
_FREEZE = "compute it outside the model and pass the result as an input, or write it with elementwise operations"

#: Primitives that the user knows under one name.
GROUPS: dict[str, str] = {
    **{f"random_{kind}": RANDOM for kind in ("bits", "seed", "wrap", "unwrap", "fold_in", "split", "clone", "gamma")},
    **dict.fromkeys(("threefry2x32", "rng_bit_generator", "rng_uniform"), RANDOM),
    **dict.fromkeys(("fft", "complex", "real", "imag", "conj"), COMPLEX),
}
#: What to do about a primitive; `_FREEZE` for those not named.
HINTS: dict[str, str] = {
    RANDOM: _NOISE,
    COMPLEX: "there are none in TFLite training programs: compute with real and imaginary parts, or outside the model",
    **dict.fromkeys(("pure_callback", "io_callback", "debug_callback", "outside_call"), _HOST),
    **dict.fromkeys(("cholesky", "lu", "qr", "svd", "eigh", "eig", "triangular_solve"), "factorise outside the model"),
    "all_gather": "train on one device: take the model out of pmap or shard_map",
    "psum": "train on one device: take the model out of pmap or shard_map",
}


class Problems:
    """Sites that could not be imported, grouped by what they use.

    Attributes:
        refuses_known_keys: whether what is drawn by a constant key is one: in a model it is the same in every step.
        halves: what is no problem, but worth a word: where the model is of half precision, and of which type.
    """

    def __init__(self, refuses_known_keys: bool = True, halves: dict[str, str] | None = None) -> None:
        self._sites: dict[str, dict[Site, str]] = {}
        self._advice: dict[str, str] = {}
        self.refuses_known_keys = refuses_known_keys
        self.halves = {} if halves is None else halves

    def empty(self) -> Problems:
        """Return another report, on a part of the same model."""
        return Problems(self.refuses_known_keys, self.halves)

    def __bool__(self) -> bool:
        """Return whether there is anything to report."""
        return bool(self._sites)

    def add(self, problem: NotImportable, where: Site, primitive: str = "") -> None:
        """Notes one site; the same place is kept once."""
        self._sites.setdefault(problem.what, {}).setdefault(where, primitive or problem.what)
        self._advice[problem.what] = problem.advice or HINTS.get(problem.what, _FREEZE)

    def check(self) -> None:
        """Raises UnsupportedError with the whole report if there is anything to report."""
        if not self._sites:
            return
        count = len(self._sites)
        lines = [f"The model uses {count} operation{'s' * (count > 1)} that Pocketune cannot compile:"]
        records = []
        for what, sites in self._sites.items():
            advice = self._advice[what]
            lines.append(f"  {what}")
            lines += [f"    {describe(where)}" for where in sites]
            lines.append(f"    what to do: {advice}")
            records += [UnsupportedSite(name, at.layer, at.source, what, advice) for at, name in sites.items()]
        raise UnsupportedError("\n".join(lines), records, page="operations")


def describe(where: Site) -> str:
    """Return a site in words."""
    layer = f"in layer {where.layer}" if where.layer else "outside of any named layer"
    source = f" at {where.source}" if where.source else ""
    return f"{layer}{source}{f' in {where.function}' if where.function else ''}"
