"""What the update schemes reach with real weights on real data, trained in the stock runtime.

    scripts/pretrained
    .venv/bin/python scripts/bench/accuracy         # 15 minutes of one core

Every scheme of a task starts from the same weights and sees the same samples. Its learning rate is the one of a few
that does best on validation rows with the first samples; with it, the net learns each of several choices of samples
and is judged on rows that nothing was chosen with. The figures go into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from document import document
from judge import Judge
from tasks import TASKS

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    """Trains, and writes the figures and the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names, schemes = [task.name for task in TASKS], list(TASKS[0].rates)
    parser.add_argument("--tasks", nargs="+", choices=names, default=names)
    parser.add_argument("--schemes", nargs="+", choices=schemes, default=schemes)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "out" / "accuracy.json", help="the figures; what is not made anew stays"
    )
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "accuracy.md")
    arguments = parser.parse_args()
    file: Path = arguments.json
    results = json.loads(file.read_text()) if file.exists() else {}
    for task in (task for task in TASKS if task.name in arguments.tasks):
        judge = Judge(task)
        kept = results.get(task.name, {}).get("schemes", {})
        for scheme in (scheme for scheme in task.rates if scheme in arguments.schemes):
            kept[scheme] = judge.figures(scheme)
            in_order = {scheme: kept[scheme] for scheme in task.rates if scheme in kept}
            results[task.name] = judge.setting | {"schemes": in_order}
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(results, indent=2) + "\n")
    arguments.document.write_text(document(results))


if __name__ == "__main__":
    main()
