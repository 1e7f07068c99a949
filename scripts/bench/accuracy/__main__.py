"""What the update schemes reach with real weights on real data, trained in the stock runtime.

    scripts/pretrained
    .venv/bin/python scripts/bench/accuracy         # 20 minutes of one core; stopped, it goes on where it was

Every scheme of a task starts from the same weights, sees the same samples as often, and has the same course of the
learning rate, whose height is the one of a few that does best on validation rows with the first samples; with it, the
net learns each of several choices of samples and is judged on rows that nothing was chosen with. The figures go into
docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from document import document
from journal import Journal
from judge import Judge
from personal import PERSONAL
from tasks import PRETRAINED

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    """Trains what was not trained yet, and writes the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--journal", type=Path, default=ROOT / "out" / "accuracy.jsonl", help="what was found, line by line"
    )
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "accuracy.md")
    arguments = parser.parse_args()
    journal = Journal(arguments.journal)
    results = {}
    for task in (*PRETRAINED, *PERSONAL):
        judge = Judge(task, journal)
        schemes = {}
        for scheme in task.rates:
            schemes[scheme] = judge.figures(scheme)
            print(f"{task.name} {scheme}: {schemes[scheme]}", file=sys.stderr, flush=True)
        results[task.name] = judge.setting | {"schemes": schemes}
    arguments.document.write_text(document(results))


if __name__ == "__main__":
    main()
