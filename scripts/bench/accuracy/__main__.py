"""What the update schemes reach with real weights on real data, trained in the stock runtime.

    scripts/pretrained
    .venv/bin/python scripts/bench/accuracy         # 30 minutes of one core; stopped, it goes on where it was
    .venv/bin/python scripts/bench/accuracy --task minilm  # only that, whose section is written anew

Every scheme of a task starts from the same weights, sees the same samples as often, and has the same course of the
learning rate, whose height is the one of a few that does best on validation rows with the first choice of samples, or
the first few; with it, the net learns each of several choices and is judged on rows that nothing was chosen with. The
figures go into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path

from document import document, section, sections
from journal import Journal
from judge import Judge
from personal import PERSONAL
from tasks import PRETRAINED

from scripts.arguments import writable
from scripts.bench.facts import checkout, machine

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    """Trains what was not trained yet, and writes the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = {task.name: task for task in (*PRETRAINED, *PERSONAL)}
    parser.add_argument("--task", action="append", choices=tasks, help="only that one; repeat it for more")
    parser.add_argument(
        "--journal", type=writable, default=ROOT / "out" / "accuracy.jsonl", help="what was found, line by line"
    )
    parser.add_argument("--document", type=writable, default=ROOT / "docs" / "accuracy.md")
    arguments = parser.parse_args()
    journal = Journal(arguments.journal)
    found = sections(arguments.document.read_text()) if arguments.task else {}
    for task in map(tasks.__getitem__, arguments.task or tasks):
        judge = Judge(task, journal)
        schemes = {}
        for scheme in task.rates:
            schemes[scheme] = judge.figures(scheme)
            print(f"{task.name} {scheme}: {schemes[scheme]}", file=sys.stderr, flush=True)
        found[task.name] = section(task.name, judge.setting | {"schemes": schemes}, _made())
    arguments.document.write_text(document([found[name] for name in tasks if name in found]))


def _made() -> str:
    """Return when, of which commit and on which machine figures are made."""
    commit, is_changed = checkout()
    of = "an unknown commit" if commit is None else f"commit {commit[:8]}{' with changes' if is_changed else ''}"
    here = machine()
    return (
        f"Made on {date.today():%Y-%m-%d}, {of}, on {here['cpu']} ({', '.join(here['flags'])}) with ai-edge-litert "
        f"{here['versions']['ai-edge-litert']}"
    )


if __name__ == "__main__":
    main()
