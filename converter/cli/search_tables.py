"""Tables of search results."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from converter.cli.tables import Results
from converter.support.invocation import command
from converter.support.words import amount, share, size
from converter.tools.search import Found
from converter.tools.search.analysis import GUESSES
from converter.tools.search.findings import Trained

#: Combinations that a table shows beside the named schemes, and parts.
_MOST_ROWS = 30


def show(results: Results, found: Found, folder: Path, trusted: bool) -> None:
    """Print the parts, the schemes, whether the found one is better, and what to do next.

    Args:
        results: prints them.
        found: what the search found.
        folder: where its files are.
        trusted: whether the recipe names code of the user's, which a build must be told to run.
    """
    findings = found.findings
    if findings.units:
        _parts(results, found)
    score = "accuracy" if found.counted else "minus loss"
    measured = ("measured", "off by") if findings.measured else ()
    results.table(
        "Schemes, the best first",
        (
            "scheme",
            score,
            "selecting",
            "held-out",
            "rate",
            "memory",
            "step",
            *measured,
            "of full",
            "within",
            "front",
        ),
        [_scheme(found, t) for t in findings.reported[: None if results.wide else _MOST_ROWS]],
        right=range(1, 8 + len(measured)),
        extra=[2, 3, 4, *range(7, 7 + len(measured)), 9 + len(measured)],
    )
    for name, why in findings.refused.items():
        results.line(f"{name}: not for this model: {why}")
    results.line(f"found: {findings.found.name}, with {found.course}")
    for sentence in found.sentences():
        results.line(sentence)
    worst = ", ".join(f"{name} {error:.0%}" for name, error in findings.chosen.worst.items())
    complete = "" if findings.chosen.complete else "; not all that may fit was judged"
    if findings.units:
        results.line(
            f"{findings.chosen.proposals} proposals at the budgets, costs foreseen within: {worst or '-'}{complete}"
        )
    results.line(f"wrote {folder / 'recipe.toml'}, {folder / 'search.json'}")
    recipe = quote(str(folder / "recipe.toml"))
    results.line(f"next: {command(f'build --recipe {recipe}')}{' --trust' * trusted}")


def _parts(results: Results, found: Found) -> None:
    findings = found.findings
    units = sorted(findings.gains, key=lambda name: -findings.gains[name].mean)
    results.table(
        "What each part gains alone, over the head",
        ("part", "gain", *GUESSES),
        [
            (
                name,
                found.figure(findings.gains[name], sign=True),
                *(_guess(findings.guesses[g].get(name)) for g in GUESSES),
            )
            for name in units[: None if results.wide else _MOST_ROWS]
        ],
        right=range(1, 2 + len(GUESSES)),
    )
    for ranking in findings.rankings:
        rho = "-" if ranking.rho is None else f"{ranking.rho:+.2f}"
        results.line(f"{ranking.guess} ({GUESSES[ranking.guess]}): rank correlation {rho} over {ranking.units} parts")
    results.line()


def _guess(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.2g}"


def _scheme(found: Found, trained: Trained) -> tuple[str, ...]:
    held_out, costs = found.held_out(trained.name), trained.costs
    factor, digits = (100, 1) if found.counted else (1, 3)
    step = amount("step_cost", costs["step_cost"], found.unit)
    off, taken = found.off_by(trained), found.findings.measured.get(trained.name, 0)
    measured = () if off is None else (f"{taken / 1e6:.2f} ms", f"{off:+.0%}")
    return (
        trained.name,
        found.figure(found.score(trained)),
        f"{factor * trained.mean:.{digits}f}",
        "" if held_out is None else f"{factor * held_out.mean:.{digits}f}",
        f"{trained.rate:g}",
        size(costs["resident_bytes"]),
        step,
        *measured,
        share(1.0) if trained.name == "full" else f"{costs['step_cost'] / found.findings.full['step_cost']:.0%}",
        "yes" if trained.within else "no",
        "yes" if trained.name in found.findings.pareto else "",
    )
