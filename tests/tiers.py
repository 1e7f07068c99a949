"""The quick run and the whole one: which cases only the whole one takes.

Of each test the quick run takes the cheapest case, and others while all of them take less than `CASES` seconds of a
CPU; none where the cheapest takes more than `FIRST` seconds, unless the test is marked `quick` because nothing else
holds what it holds. The rest stands in `slow_cases.txt`, which `python -m tests.slow_cases` writes from what a run has
measured.
"""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow_cases.txt")
#: Seconds of a CPU that the cases of a test may take in the quick run, and that its cheapest case may.
CASES, FIRST = 1.0, 2.0
#: Whether a case is slow by a mark in its file.
BY_HAND = pytest.StashKey[bool]()


@dataclass(frozen=True)
class Cost:
    """What a case took.

    Attributes:
        case: its id, as pytest has it.
        seconds: of a CPU, with what it set up and the processes that it waited for.
        quick: whether it is marked so.
    """

    case: str
    seconds: float
    quick: bool


def slow_cases(costs: Iterable[Cost]) -> list[str]:
    """Return the ids of the cases that are too expensive for the quick run, in order."""
    tests: dict[str, list[Cost]] = defaultdict(list)
    for cost in costs:
        tests[name_of(cost.case)].append(cost)
    return sorted(cost.case for cases in tests.values() for cost in _expensive(cases))


def name_of(case: str) -> str:
    """Return the id of the test that a case belongs to: without its parameters."""
    return case.split("[", 1)[0]


def _expensive(cases: list[Cost]) -> Iterator[Cost]:
    spent = 0.0
    for number, cost in enumerate(sorted(cases, key=lambda cost: (cost.seconds, cost.case))):
        spent += cost.seconds
        if spent > CASES if number else spent > FIRST and not cost.quick:
            yield cost


def read_costs(folder: Path) -> list[Cost]:
    """Return what the processes of a run wrote into a folder: of a case that two gates took, the larger cost."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines())
    costs = sorted((Cost(**json.loads(line)) for line in lines), key=lambda cost: cost.seconds)
    return list({cost.case: cost for cost in costs}.values())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the folder where the costs are written."""
    parser.addoption("--costs", metavar="FOLDER", type=Path, help="write what each test costs, in seconds of a CPU")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what only the whole run takes, before `-m` is looked at."""
    known = set(LIST.read_text(encoding="utf-8").splitlines())
    for item in items:
        item.stash[BY_HAND] = item.get_closest_marker("slow") is not None
        if item.nodeid in known:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Writes what a case took, where the run was asked to and nobody has marked the case as slow by hand."""
    folder: Path | None = item.config.getoption("--costs")
    begun = _spent()
    result = yield
    if folder is not None and not item.stash[BY_HAND]:
        folder.mkdir(parents=True, exist_ok=True)
        cost = Cost(item.nodeid, round(_spent() - begun, 3), item.get_closest_marker("quick") is not None)
        with (folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(asdict(cost)) + "\n")
    return result


def _spent() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
