"""HTML page of a report, with everything in it: it loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib import resources

from converter.backend.targets import unit_of
from converter.program.origins import PHASES
from converter.support.words import amount, count, size
from converter.tools.report import tables
from converter.tools.report.beside import Beside
from converter.tools.report.contents import STATUSES, ReportContents
from converter.tools.report.runs import Run

#: In the order in which a browser runs them.
_SCRIPTS = (
    "vendor/cytoscape.min.js",
    "vendor/cytoscape-dagre.min.js",
    "vendor/uPlot.iife.min.js",
    "page/common.js",
    "page/graph.js",
    "page/memory.js",
    "page/tables.js",
)
_STYLES = ("vendor/uPlot.min.css", "page/report.css")


def render(
    contents: ReportContents,
    runs: Sequence[Run] = (),
    state: Sequence[tables.Row] = (),
    figures: Sequence[tables.Row] = (),
    beside: Beside | None = None,
) -> str:
    """Return the page.

    Args:
        contents: of the program.
        runs: trainings of it.
        state: what a saved state changed, a row a weight.
        figures: loss and accuracy on samples, as the program was built and with the state.
        beside: how another program differs.

    Raises:
        UsageError: the file's parts do not fit each other.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"size": size, "count": count}
    manifest, account = contents.program.manifest, contents.account
    drawn = {
        "graph": contents.graph(),
        "memory": contents.memory(),
        "runs": [asdict(run) for run in runs],
        "statuses": STATUSES,
    }
    return environment.from_string(_file("page/report.html.j2")).render(
        manifest=manifest,
        title=manifest.name if contents.program.head is None else f"{manifest.name}, head {contents.program.head}",
        notes=account.notes,
        trainable=account.trainable,
        flops=sum(manifest.costs.get(f"flops_{phase}") or 0 for phase in PHASES),
        file_bytes=len(contents.program.data),
        statuses={name: words for name, words in STATUSES.items() if name in contents.statuses},
        parts=tables.parts(contents),
        updates=tables.updates(contents),
        peaks=contents.peaks(),
        is_micro=contents.is_micro,
        resident=tables.resident(contents),
        step=tables.step(contents),
        phases=PHASES,
        costs=tables.costs(contents),
        forms=tables.forms(contents),
        signatures=tables.signatures(contents),
        operators=tables.operators(contents),
        state_tensors=tables.state_tensors(contents),
        amount=partial(amount, unit=unit_of(manifest.target)),
        runs=runs,
        state=state,
        figures=figures,
        beside=beside,
        # A layer may be called </script>: of JSON nothing is left that HTML would read.
        data=jinja2.utils.htmlsafe_json_dumps(drawn, separators=(",", ":"), ensure_ascii=False),
        styles="\n".join(map(_file, _STYLES)),
        scripts=[_file(name) for name in _SCRIPTS],
    )


def _file(name: str) -> str:
    return resources.files("converter.tools.report").joinpath(name).read_text(encoding="utf-8")
